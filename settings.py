"""Settings of the process: folders, timeouts, keys. They come from environment variables, or but for the keys from the
table `[process]` of the configuration file. Questions cannot change them."""

import os
import shlex
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator

from .config import PROCESS, config
from .errors import UserFault


class Settings(BaseModel):
    """The environment variables `DUBITO_CACHE_DIR`, `DUBITO_TIMEOUT_S`, ..., read once."""

    model_config = ConfigDict(frozen=True)

    cache_dir: Path = Field(
        default=Path("~/.cache/dubito"), description="The folder of computed indexes and embeddings."
    )
    timeout_s: float = Field(
        default=120.0, gt=0, description="The longest wait for a reply of a model server, in seconds."
    )
    outage_s: float = Field(
        default=300.0,
        ge=0,
        description="How long to wait for a model server that answered before and now refuses everything, in seconds.",
    )
    max_unpacked_gb: float = Field(
        default=1.0,
        gt=0,
        description="The most gigabytes to which a file of a corpus may unpack, of gzip or of Word.",
    )
    graph_exact_up_to: int = Field(
        default=50_000,
        ge=100,
        description="The most chunks whose document graph compares every pair of them. Among more chunks "
        "nearest-neighbour descent finds nearly all neighbours in a fraction of the time.",
    )
    api_key: SecretStr | None = Field(
        default=None,
        description="The key for OpenAI-compatible servers. It goes to those that are named on the command line, in "
        "DUBITO_ALLOW, in DUBITO_KEYS or in the file that --config or DUBITO_CONFIG names. The key in OPENAI_API_KEY "
        "goes to https://api.openai.com alone.",
    )
    qdrant_api_key: SecretStr | None = Field(
        default=None, description="The key for Qdrant servers; it goes where DUBITO_API_KEY may go."
    )
    keys: SecretStr | None = Field(
        default=None,
        description="Further servers that get a key, separated by spaces: HOST for DUBITO_API_KEY, HOST=KEY or "
        "HOST=$VARIABLE for another one. HOST means https://HOST; write http:// or a port where needed.",
    )

    otlp_endpoint: str | None = Field(
        default=None, description="The collector that receives the spans of all runs; without it no spans are sent."
    )

    token: SecretStr | None = Field(
        default=None,
        description="The token that every request to `dubito ui` and to a server of graphs must carry, as "
        "'Authorization: Bearer TOKEN'. Without it everybody who reaches the server may ask.",
    )

    allow: str | None = Field(
        default=None,
        description="The allow-list: models, corpora and other resources that a request may name, in addition to the "
        "built-in ones. A list of setting=value separated by spaces, such as corpus=notes.index "
        "llm=vllm:http://127.0.0.1:8000/v1. '*' allows everything. Without the list a request may name any "
        "resource, and a server that others can reach does not start.",
    )

    @field_validator("token")
    @classmethod
    def _none_if_empty(cls, token: SecretStr | None) -> SecretStr | None:
        """An empty token would let everybody in where one is required."""
        return token or None

    @classmethod
    def read(cls) -> Self:
        """The settings of the environment, then of the configuration file; `ValidationError`, or `UserFault`."""
        variables = {name: f"DUBITO_{name.upper()}" for name in cls.model_fields}
        in_environment = {name: os.environ[variable] for name, variable in variables.items() if variable in os.environ}
        return cls.model_validate({**cls._of_file(), **in_environment})

    @classmethod
    def _of_file(cls) -> dict[str, Any]:
        known = (name for name, field in cls.model_fields.items() if field.annotation != SecretStr | None)
        entries = config().check_names(PROCESS, known)
        is_list = isinstance(entries.get("allow"), list)
        return {**entries, "allow": shlex.join(map(str, entries["allow"]))} if is_list else dict(entries)

    @property
    def cache(self) -> Path:
        """The cache folder, with `~` expanded."""
        return self.cache_dir.expanduser()


@lru_cache(maxsize=1)
def settings() -> Settings:
    """The settings of the process; `UserFault` for a value that cannot be used."""
    try:
        return Settings.read()
    except ValidationError as fault:
        sentences = []
        for error in fault.errors():
            name = str(error["loc"][0])
            in_file = config().tables.get(PROCESS, {}).get(name) == error["input"]
            place = config().place(name, PROCESS) if in_file else f"DUBITO_{name.upper()}"
            sentences.append(f"{place} is {error['input']!r}: {error['msg']}")
        raise UserFault("; ".join(sentences) + ".") from None
