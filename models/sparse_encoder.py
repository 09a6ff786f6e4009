"""Sparse encoders (SPLADE, Formal et al. 2021): a text as weighted words of the model's vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import UserFault
from .local_weights import OneThread, fingerprint, load_weights, local_extra

if TYPE_CHECKING:
    from sentence_transformers import SparseEncoder


class SparseVectors(NamedTuple):
    """n sparse vectors by their entries, all [entries]; vocabulary: the number of words.

    rows: int32, each entry's vector, ascending; words: int32; weights: float32, finite and not 0.
    """

    rows: NDArray[np.int32]
    words: NDArray[np.int32]
    weights: NDArray[np.float32]
    vocabulary: int


class SparseModel:
    """A sentence-transformers SparseEncoder on this machine, loaded at the first call."""

    def __init__(self, name: str, source: str) -> None:
        """source: a folder with the model, or its name on the Hugging Face hub. A folder is looked at: in a thread."""
        self.name, self.weights = name, fingerprint(source)
        self._model = OneThread(partial(_load, source), "dubito-sparse")

    async def encode(self, texts: Sequence[str], *, query: bool = False) -> SparseVectors:
        """The vectors of texts; query: use the query side of a model that has two."""
        return await self._model.run(lambda model: self._encode(model, list(texts), query))

    def _encode(self, model: SparseEncoder, texts: list[str], query: bool) -> SparseVectors:
        encode = model.encode_query if query else model.encode_document
        encoded: Any = encode(texts, show_progress_bar=False, convert_to_sparse_tensor=True, save_to_cpu=True)
        vectors = encoded.coalesce()
        rows, words = vectors.indices().numpy().astype(np.int32)
        weights = vectors.values().float().numpy()
        if not np.isfinite(weights).all():
            raise UserFault(f"The sparse encoder '{self.name}' gave weights that are not finite: use another one.")
        return SparseVectors(rows, words, weights, int(vectors.shape[1]))


def _load(source: str) -> SparseEncoder:
    with local_extra("sparse encoder", source):
        from sentence_transformers import SparseEncoder  # noqa: PLC0415 - seconds of import, an extra
    return load_weights(
        SparseEncoder, source, "sparse encoder", "local sentence-transformers SparseEncoder folder works too: splade:"
    )
