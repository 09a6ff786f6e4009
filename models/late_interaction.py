"""Late interaction (ColBERT, Khattab and Zaharia 2020): one vector per token of a text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import UserFault
from .interfaces import Vectors
from .local_weights import OneThread, fingerprint, load_weights, local_extra

if TYPE_CHECKING:
    from sentence_transformers import MultiVectorEncoder

COLBERT = "colbert:"
"""Prefix of the names of late-interaction models."""


class LateInteractionModel:
    """A multi-vector model of sentence-transformers on this machine, loaded at the first call.

    It reads folders of MultiVectorEncoder, PyLate and Stanford's ColBERT.
    """

    def __init__(self, name: str, source: str) -> None:
        """name: in manifests and messages; source: a folder, which is looked at (in a thread), or a name on the hub."""
        self.name, self.weights = name, fingerprint(source)
        self._model = OneThread(partial(_load, source), "dubito-late-interaction")

    async def tokens(self, texts: Sequence[str]) -> list[Vectors]:
        """The token vectors of each text, encoded as a document: float32 [t, d], L2-normalised or zero.

        `UserFault` if the model cannot be loaded, is of another kind, or gives vectors that are not finite.
        """
        return await self._model.run(lambda model: self._tokens(model, list(texts)))

    def _tokens(self, model: MultiVectorEncoder, texts: list[str]) -> list[Vectors]:
        encoded: Any = model.encode_document(
            texts, show_progress_bar=False, convert_to_numpy=True, normalize_embeddings=True
        )
        vectors = [np.asarray(rows, dtype=np.float32) for rows in encoded]
        if not all(np.isfinite(rows).all() for rows in vectors):
            raise UserFault(f"The late-interaction model '{self.name}' gave vectors that are not finite: use another.")
        return vectors


def _load(source: str) -> MultiVectorEncoder:
    with local_extra("late-interaction model", source):
        from sentence_transformers import MultiVectorEncoder  # noqa: PLC0415 - seconds of import, an extra
        from sentence_transformers.util import load_file_path  # noqa: PLC0415

    def load(folder: str, *, local_files_only: bool = False) -> MultiVectorEncoder:
        files = (
            load_file_path(folder, name, local_files_only=local_files_only)
            for name in ("config_sentence_transformers.json", "config.json")
        )
        if not is_multi_vector(*(_content(file) for file in files)):
            # the library would add a randomly initialised projection
            raise ValueError("it gives one vector per text, not one per token")
        return MultiVectorEncoder(folder, local_files_only=local_files_only)

    return load_weights(
        load, source, "late-interaction model", f"local MultiVectorEncoder or ColBERT folder works too: {COLBERT}"
    )


def is_multi_vector(saved: dict[str, Any], config: dict[str, Any]) -> bool:
    """Whether a model gives one vector per token, by its config_sentence_transformers.json and config.json."""
    if saved:
        # PyLate did not always save the type
        return saved.get("model_type") in {"MultiVectorEncoder", "ColBERT"} or "query_prefix" in saved
    architectures: list[str] = config.get("architectures") or []
    return any(name == "HF_ColBERT" or name.endswith("ForRetrieval") for name in architectures)


def _content(file: str | None) -> dict[str, Any]:
    if file is None:
        return {}
    content: dict[str, Any] = json.loads(Path(file).read_bytes())
    return content
