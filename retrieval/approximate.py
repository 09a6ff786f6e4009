"""Approximate nearest neighbours, by FAISS: a structure finds candidates without a comparison of all rows.

The structure keeps the rows in 4 or 8 bits a number. The index compares the candidates with the rows themselves, so
cosines and the order of the found rows are exact, and only rows can be missed.
"""

import math
from pathlib import Path
from typing import Any, Literal, Self, cast, get_args

import faiss
import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from ..errors import UserFault
from ..json_files import open_file
from ..models.interfaces import Vectors
from .chunking import Progress, batches

Kind = Literal["hnsw", "ivf", "ivf_pq"]

FLAT_UP_TO, IVF_UP_TO = 200_000, 5_000_000
"""The most chunks for which `auto` takes an exact search, and `ivf`; see docs/measurements/scale.md."""

FEWEST = 1_000
"""Fewer chunks are searched exactly."""

RECALL = 0.95
"""The recall for which the search's parameter is chosen, as long as it stays within `VALUES`."""

VALUES = (16, 32, 64, 128, 256, 512)

QUERIES, K = 200, 10

BATCH = 65_536
"""Rows added together."""

PROBES = 8
"""Rows that an opened structure must find."""

ERROR = 1e-5
"""Above the rounding of a float32 product of unit vectors."""

TRAINED = 64
"""Rows per inverted list that k-means sees, at most."""


class SearchManifest(BaseModel):
    """An approximate search and its cost in recall.

    factory: FAISS's description of the structure. parameter, value: `efSearch` of HNSW or `nprobe` of inverted lists.
    recall: the mean share of the `k` nearest other chunks that the search finds, for `queries` chunks of the corpus.
    """

    model_config = ConfigDict(frozen=True)

    kind: Kind
    factory: str
    parameter: Literal["efSearch", "nprobe"]
    value: int = Field(ge=1, le=VALUES[-1])
    recall: float
    k: int = K
    queries: int


def kind_for(name: str, chunks: int) -> Kind | None:
    """The kind of structure for a search of that name over this many chunks; None for `flat`, the exact search.

    `auto` takes `flat`, `ivf` or `ivf_pq` by the number of chunks. `UserFault` for an unknown name, and for fewer
    chunks than a structure needs.
    """
    if name == "auto":
        return None if chunks <= FLAT_UP_TO else "ivf" if chunks <= IVF_UP_TO else "ivf_pq"
    if name == "flat":
        return None
    if name not in get_args(Kind):
        raise UserFault(f"There is no search named '{name}': use auto, flat, {', '.join(get_args(Kind))}.")
    if chunks < FEWEST:
        raise UserFault(
            f"The search '{name}' needs at least {FEWEST:,} chunks and the index has {chunks:,}: use 'flat', "
            "which compares all chunks."
        )
    return cast("Kind", name)


class ApproximateSearch:
    """A FAISS structure over an index's rows."""

    def __init__(self, manifest: SearchManifest, structure: Any) -> None:  # noqa: ANN401 - faiss has no types
        """For `build` and `read`."""
        self.manifest, self._structure = manifest, structure
        _set(structure, manifest.parameter, manifest.value)

    @classmethod
    def build(cls, kind: Kind, rows: Vectors, progress: Progress | None = None) -> Self:
        """Train the structure on a sample of the rows [N, d] and add all; progress: gets the number of added rows.

        The search's parameter is doubled until it finds `RECALL` of the neighbours of a sample of rows.
        """
        n, d = rows.shape
        # as many lists as keep lists and their lengths in balance; FAISS wants 39 rows a list to train with
        lists = max(1, min(round(2 * math.sqrt(n)), n // 39))
        codes = d // 2 if d % 2 == 0 else d
        factory = {"hnsw": "HNSW32_SQ8", "ivf": f"IVF{lists},SQ8", "ivf_pq": f"IVF{lists},PQ{codes}x4fs"}[kind]
        structure = faiss.index_factory(d, factory, faiss.METRIC_INNER_PRODUCT)
        structure.train(rows[_sample(n, TRAINED * lists)])
        return cls._of(kind, factory, structure, rows, progress)

    def grown(self, rows: Vectors, progress: Progress | None = None) -> Self:
        """The same structure with more rows; rows: those that it has, followed by the new ones."""
        structure = faiss.deserialize_index(faiss.serialize_index(self._structure))  # a mapped one takes no rows
        return self._of(self.manifest.kind, self.manifest.factory, structure, rows, progress)

    @classmethod
    def _of(cls, kind: Kind, factory: str, structure: Any, rows: Vectors, progress: Progress | None) -> Self:  # noqa: ANN401
        for batch in batches(rows[structure.ntotal :], BATCH, progress):
            structure.add(batch)
        parameter: Literal["efSearch", "nprobe"] = "efSearch" if kind == "hnsw" else "nprobe"
        sample = _sample(len(rows), QUERIES)
        kth_best = _kth_best(rows, sample)
        for value in VALUES:
            _set(structure, parameter, value)
            found = _recall(structure, kind, rows, sample, kth_best)
            if found >= RECALL:
                break
        about = SearchManifest(
            kind=kind, factory=factory, parameter=parameter, value=value, recall=found, queries=len(sample)
        )
        return cls(about, structure)

    def candidates(self, vector: Vectors, count: int) -> NDArray[np.int64] | None:
        """Rows among which nearly all of the `count` nearest to a vector [d] are; None if it finds fewer rows."""
        found = _found(self._structure, self.manifest.kind, vector[None], count)[0]
        found = found[found >= 0]
        return None if len(found) < count else found

    def write(self, file: Path) -> None:
        """Write the structure; `OSError` if the disk is full."""
        with file.open("wb") as opened:
            try:
                faiss.write_index(self._structure, faiss.PyCallbackIOWriter(opened.write))  # type: ignore[attr-defined]
            except RuntimeError as fault:  # FAISS tells of the disk in words of C++
                raise OSError(str(fault)) from fault

    @classmethod
    def read(cls, file: Path, manifest: SearchManifest, rows: Vectors) -> Self:
        """Open a structure, memory-mapped; `ValueError` unless it is a structure over these rows."""
        try:
            with open_file(file):  # FAISS would wait for a pipe
                structure = faiss.read_index(str(file), faiss.IO_FLAG_MMAP_IFC)
            if structure is None or (structure.ntotal, structure.d) != rows.shape:  # FAISS reads a null index as None
                raise ValueError(f"{file} has other rows than the index")
            opened = cls(manifest, structure)
        except (RuntimeError, MemoryError) as fault:
            raise ValueError(f"{file} is not a structure of this search") from fault
        probes = rows[np.linspace(0, len(rows) - 1, PROBES, dtype=np.int64)]
        best = _products(probes, rows, _found(structure, manifest.kind, probes, 1)).max(axis=1)
        # the nearest to a row is the row itself or its equal; an approximate search may miss it now and then
        if np.mean(best >= np.einsum("qd,qd->q", probes, probes) - ERROR) < 0.5:
            raise ValueError(f"{file} was made of other rows than those of the index")
        return opened


def _set(structure: Any, parameter: str, value: int) -> None:  # noqa: ANN401
    faiss.ParameterSpace().set_index_parameter(structure, parameter, value)


def _found(structure: Any, kind: Kind, queries: Vectors, count: int) -> NDArray[np.int64]:  # noqa: ANN401
    """Candidates for the `count` nearest of each query, [q, m], -1 where there are fewer.

    The codes of `ivf_pq` are coarse, so the nearest are looked for among ten times as many.
    """
    most = min(10 * count + 10 if kind == "ivf_pq" else count + 10, structure.ntotal)
    rows: NDArray[np.int64] = structure.search(queries, most)[1]
    return rows


def _sample(n: int, count: int) -> NDArray[np.int64]:
    return np.sort(np.random.default_rng(0).choice(n, min(count, n), replace=False))


def _products(queries: Vectors, rows: Vectors, found: NDArray[np.int64]) -> Vectors:
    """The products of each query with the rows found for it, [q, m]; -inf where there are fewer."""
    products: Vectors = np.einsum("qd,qmd->qm", queries, rows[found])
    products[found < 0] = -np.inf
    return products


def _kth_best(rows: Vectors, sample: NDArray[np.int64]) -> Vectors:
    """The product of each sampled row with the worst of its nearest others."""
    products, found = faiss.knn(rows[sample], rows, K + 1, metric=faiss.METRIC_INNER_PRODUCT)
    products[found == sample[:, None]] = -np.inf
    kth: Vectors = np.sort(products, axis=1)[:, 1]
    return kth


def _recall(structure: Any, kind: Kind, rows: Vectors, sample: NDArray[np.int64], kth_best: Vectors) -> float:  # noqa: ANN401
    """The mean share of the sampled rows' nearest others that are among the candidates; equal rows count alike."""
    found = _found(structure, kind, rows[sample], K + 1)
    products = _products(rows[sample], rows, found)
    products[found == sample[:, None]] = -np.inf
    hits = np.count_nonzero(products >= kth_best[:, None] - ERROR, axis=1)
    return float(np.minimum(hits, K).mean() / K)
