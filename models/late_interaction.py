"""Late interaction (ColBERT, Khattab and Zaharia 2020): a text as one vector a token."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import UserFault
from .encoders import load_weights
from .interfaces import Vectors

if TYPE_CHECKING:
    from sentence_transformers import MultiVectorEncoder

COLBERT = "colbert:"
"""How names of late-interaction models begin."""


class LateInteractionModel:
    """A multi-vector model of sentence-transformers on this machine, loaded at the first call.

    Folders of MultiVectorEncoder, PyLate and Stanford's ColBERT are read.
    """

    def __init__(self, name: str, source: str) -> None:
        """name: what it is called in manifests and messages; source: a folder, or a name on the Hugging Face hub."""
        self.name = name
        self._source = source
        self._model: MultiVectorEncoder | None = None
        # the model's one thread: torch uses every core for one batch, and loading happens once
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="dubito-late-interaction")

    async def tokens(self, texts: Sequence[str]) -> list[Vectors]:
        """For each text the vectors of its tokens as a document, float32 [t, d], L2-normalised or zero.

        `UserFault` if the model cannot be loaded, is none of this kind, or gives vectors that are not finite.
        """
        return await asyncio.get_running_loop().run_in_executor(self._worker, self._tokens, list(texts))

    def _tokens(self, texts: list[str]) -> list[Vectors]:
        if self._model is None:
            self._model = _load(self._source)
        found: Any = self._model.encode_document(
            texts, show_progress_bar=False, convert_to_numpy=True, normalize_embeddings=True
        )
        vectors = [np.asarray(rows, dtype=np.float32) for rows in found]
        if not all(np.isfinite(rows).all() for rows in vectors):
            raise UserFault(f"The late-interaction model '{self.name}' gave vectors that are not finite: use another.")
        return vectors


def _load(source: str) -> MultiVectorEncoder:
    try:
        from sentence_transformers import MultiVectorEncoder  # noqa: PLC0415 - seconds of import, an extra
        from sentence_transformers.util import load_file_path  # noqa: PLC0415
    except ImportError as error:
        raise UserFault(
            f"The late-interaction model '{source}' needs a package: pip install \"dubito[local]\"."
        ) from error

    def load(folder: str, *, local_files_only: bool = False) -> MultiVectorEncoder:
        files = (
            load_file_path(folder, name, local_files_only=local_files_only)
            for name in ("config_sentence_transformers.json", "config.json")
        )
        if not is_multi_vector(*(_content(file) for file in files)):
            # the library would add a projection that it draws by chance
            raise ValueError("it gives one vector a text, not one a token")
        return MultiVectorEncoder(folder, local_files_only=local_files_only)

    return load_weights(
        load, source, "late-interaction model", f"local MultiVectorEncoder or ColBERT folder works too: {COLBERT}"
    )


def is_multi_vector(saved: dict[str, Any], config: dict[str, Any]) -> bool:
    """Was the model made to give a vector a token? By its `config_sentence_transformers.json` and `config.json`."""
    if saved:
        # PyLate did not always save the type
        return saved.get("model_type") in {"MultiVectorEncoder", "ColBERT"} or "query_prefix" in saved
    architectures: list[str] = config.get("architectures") or []
    return any(name == "HF_ColBERT" or name.endswith("ForRetrieval") for name in architectures)


def _content(file: str | None) -> dict[str, Any]:
    if file is None:
        return {}
    found: dict[str, Any] = json.loads(Path(file).read_bytes())
    return found
