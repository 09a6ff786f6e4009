"""What the machine decides and no question does: where caches lie, how long to wait for a server."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """Read once from the environment (`DUBITO_CACHE_DIR`, `DUBITO_TIMEOUT_S`, ...)."""

    model_config = SettingsConfigDict(env_prefix="DUBITO_", frozen=True)

    cache_dir: Path = Field(
        default=Path("~/.cache/dubito"), description="Where indexes and embeddings that were computed once are kept."
    )
    timeout_s: float = Field(default=120.0, gt=0, description="Seconds to wait for one reply of a model server.")
    api_key: SecretStr | None = Field(
        default=None, description="Key sent to OpenAI-compatible servers; without it OPENAI_API_KEY is used, if set."
    )

    qdrant_api_key: SecretStr | None = Field(default=None, description="Key sent to Qdrant servers.")

    otlp_endpoint: str | None = Field(
        default=None, description="Collector that spans of all runs are sent to; without it there are none."
    )

    allow: str | None = Field(
        default=None,
        description="What questions may name beside what dubito brings, as setting=value separated by spaces, such as "
        "corpus=notes.index llm=vllm:http://127.0.0.1:8000/v1; without it everything.",
    )

    @property
    def cache(self) -> Path:
        """The cache folder with `~` expanded."""
        return self.cache_dir.expanduser()


@lru_cache(maxsize=1)
def settings() -> Settings:
    """Return the process's settings."""
    return Settings()
