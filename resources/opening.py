"""Opens a chat model, an encoder or a corpus by its name."""

from __future__ import annotations

import asyncio
import os
from importlib import resources as package_files
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserFault
from ..settings import settings

if TYPE_CHECKING:
    from ..models.interfaces import ChatModel, Encoder

SAMPLE = "sample"
QDRANT = "qdrant:"
CHAT_NAMES = (
    "embedded, vllm:URL#model, vllm:URL#model&states=URL, engine:folder-or-hub-name, openai:URL#model, "
    "hf:folder-or-hub-name, gguf:file"
)
ENCODER_NAMES = "embedded, st:folder-or-hub-name, openai:URL#model"


def corpus_path(name: str) -> Path:
    """The path of a corpus: the path of the bundled sample for `sample`, else the name itself."""
    if name == SAMPLE:
        return Path(str(package_files.files("dubito") / "examples" / "sample" / "corpus.jsonl"))
    return Path(name).expanduser()


def check_corpus(name: str) -> None:
    """Raise `UserFault` for a path that does not exist. A Qdrant collection is not checked."""
    if not name.startswith(QDRANT) and not os.path.exists(corpus_path(name)):  # noqa: PTH110 - Path.exists raises for odd names
        raise UserFault(f"There is no corpus at '{name}': give an index folder, or a corpus file or folder.")


def open_chat_model(name: str) -> ChatModel:
    """Open a chat model by name. Weights load at its first call. Raises `UserFault` for an unknown name."""
    kind, _, rest = name.partition(":")
    if kind in {"vllm", "openai"} and rest:
        from ..models.openai_chat import open_server  # noqa: PLC0415 - backends load when first needed

        return open_server(name, rest, "vllm" if kind == "vllm" else "openai")
    if kind == "engine" and rest:
        from ..models.vllm_engine import open_engine  # noqa: PLC0415

        return open_engine(name)
    if name == "embedded" or (kind in {"hf", "gguf"} and rest):
        from ..models.transformers_chat import TransformersChat  # noqa: PLC0415
        from ..models.weights import smollm2_gguf  # noqa: PLC0415

        return TransformersChat(name, str(smollm2_gguf()) if name == "embedded" else rest)
    raise UserFault(f"There is no chat model named '{name}': use one of {CHAT_NAMES}.")


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
