"""Opens a chat model, an encoder or a corpus by its name."""

from __future__ import annotations

import asyncio
import os
import re
from difflib import get_close_matches
from importlib import resources as package_files
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ModelFault, ModelUnavailable, UserFault
from ..retrieval.vector_databases import Place, names_database, refuse_unknown_database
from ..server_url import checked_url, each_url, ollama_url
from ..settings import settings

if TYPE_CHECKING:
    from ..models.interfaces import ChatModel, Encoder

SAMPLE = "sample"
CHAT_NAMES = (
    "embedded, vllm:URL#model, vllm:URL,URL#model, vllm:URL#model&states=URL, ollama:model, "
    "http://host:port (any other server), engine:folder-or-hub-name, openai:URL#model, hf:folder-or-hub-name, gguf:file"
)
ENCODER_NAMES = "embedded, st:folder-or-hub-name, openai:URL#model"

OWN_CACHE = ".dubito"
"""A folder of this name in a corpus folder keeps what is computed from the corpus, in place of the cache folder."""


def corpus_path(name: str) -> Path:
    """The path of a corpus: the path of the bundled sample for `sample`, else the name itself."""
    return sample_file("corpus.jsonl") if name == SAMPLE else Path(name).expanduser()


def sample_file(name: str) -> Path:
    """The path of a file of the bundled sample."""
    return Path(str(package_files.files("dubito") / "examples" / "sample" / name))


def cache_of(corpus: str) -> Path:
    """The folder for what is computed from a corpus."""
    own = corpus_path(corpus) / OWN_CACHE
    return own if os.path.isdir(own) else settings().cache  # noqa: PTH112 - Path.is_dir raises for odd names


def check_corpus(name: str) -> None:
    """Raise `UserFault` for a path that does not exist. Of a vector database's collection only the name is checked."""
    if names_database(name):
        Place.named(name)
    elif not os.path.exists(corpus_path(name)):  # noqa: PTH110 - Path.exists raises for odd names
        refuse_unknown_database(name)
        raise UserFault(f"There is no corpus at '{name}': give an index folder, or a corpus file or folder.")


def open_chat_model(name: str) -> ChatModel:
    """Open a chat model by name. Weights load at its first call. Raises `UserFault` for an unknown name."""
    kind, _, rest = name.partition(":")
    if (server := server_of(name)) is not None:
        from ..models.openai_chat import FLAVOURS, open_server  # noqa: PLC0415 - backends load when first needed

        return open_server(name, server, FLAVOURS.get(kind))
    if kind == "engine" and rest:
        from ..models.vllm_engine import open_engine  # noqa: PLC0415

        return open_engine(name)
    if name == "embedded" or (kind in {"hf", "gguf"} and rest) or _is_folder_or_hub_name(name):
        from ..models.transformers_chat import TransformersChat  # noqa: PLC0415
        from ..models.weights import smollm2_gguf  # noqa: PLC0415

        return TransformersChat(name, str(smollm2_gguf()) if name == "embedded" else rest or name)
    raise UserFault(f"There is no chat model named '{name}': {_advice(name)}.")


def server_of(name: str) -> str | None:
    """`URL#model&...` of a chat model on a server, the URL's path left out or not; None for any other name."""
    kind, _, rest = name.partition(":")
    if kind in {"http", "https"} and rest:
        return name
    if kind == "ollama" and rest:
        return f"{ollama_url()}#{rest}"
    return rest if kind in {"vllm", "openai"} and rest else None


def check_server(name: str) -> None:
    """Raise `ModelUnavailable` if a chat model's server cannot be reached. It blocks, and imports nothing slow."""
    from ..models.server_list import listed_models  # noqa: PLC0415 - backends load when first needed

    for address in (server_of(name) or "").split("&states="):
        for url in each_url(address.partition("#")[0].partition("&")[0]):
            try:
                if url:
                    listed_models(checked_url(url, "http://127.0.0.1:8000/v1"))
            except ModelFault as fault:
                raise ModelUnavailable(fault.endpoint, 1, fault.reason) from None


def _is_folder_or_hub_name(name: str) -> bool:
    """A folder, or `owner/model`."""
    return re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", name) is not None or os.path.isdir(name)  # noqa: PTH112 - Path.is_dir raises for odd names


_HOST = re.compile(
    r"(?:localhost|[\w-]+(?:\.[\w-]+)+|\[[0-9a-f:]+\]|[\w.-]+(?=:\d{2,5}(?:[/#]|$)))(?::\d+)?(?:[/#].*)?"
)
_KINDS = ["vllm", "openai", "ollama", "engine", "hf", "gguf"]


def _advice(name: str) -> str:
    """The right name, if the name shows what is meant; else all names."""
    kind, colon, rest = name.partition(":")
    if name.lower().endswith(".gguf"):
        return f"for a file write gguf:{name}"
    if name.lower().startswith(("gpt-", "chatgpt-")):
        return f"for OpenAI's API write openai:https://api.openai.com/v1#{name}"
    if rest and (close := get_close_matches(kind.lower(), _KINDS, n=1)):
        return f"did you mean {close[0]}:{rest}"
    if _HOST.fullmatch(name.lower()) and (":" in name or "/" in name):
        return f"for a server write http://{name}"
    if re.fullmatch(r"[\w.:-]*\w", name) and not (colon and not kind):
        return f"for a model of Ollama write ollama:{name}, else use one of {CHAT_NAMES}"
    return f"use one of {CHAT_NAMES}"


def open_encoder(name: str) -> Encoder:
    """Open an encoder by name, with its cache on disk. Weights load at its first call.

    Raises `UserFault` for an unknown name.
    """
    from ..models.embedding_cache import CachedEncoder  # noqa: PLC0415 - backends load when first needed
    from ..models.encoders import SentenceTransformersEncoder, ServerEncoder  # noqa: PLC0415
    from ..models.weights import minilm_folder  # noqa: PLC0415

    kind, _, rest = name.partition(":")
    encoder: Encoder
    if name == "embedded":
        encoder = SentenceTransformersEncoder(name, str(minilm_folder()))
    elif kind == "st" and rest:
        encoder = SentenceTransformersEncoder(name, rest)
    elif kind == "openai" and "#" in rest:
        url, _, model = rest.partition("#")
        encoder = ServerEncoder(name, url, model)
    else:
        raise UserFault(f"There is no encoder named '{name}': use one of {ENCODER_NAMES}.")
    return CachedEncoder(encoder, settings().cache / "embeddings.sqlite")


async def check_weights(name: str, prefix: str, role: str) -> None:
    """Raise `UserFault` if a name of this kind is a folder that does not exist. The weights load when needed."""
    from ..models.local_weights import check_folder  # noqa: PLC0415 - backends load when first needed

    if name.startswith(prefix):
        await asyncio.to_thread(check_folder, name.removeprefix(prefix), role)
