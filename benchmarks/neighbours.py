"""How long does the document graph take, and how much memory, against scikit-learn's exact search?

    python benchmarks/neighbours.py [--sizes 10000 100000] [--index FOLDER] [--methods exact descent] [--write FILE]

Vectors are random in clusters, or those of an index, recombined. Seconds are of the processor, so that other programs
hardly change them. Needs scikit-learn, and Linux for the peak of memory. Every method runs in a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.integer]
Vectors = NDArray[np.float32]
Search = Callable[[], Rows]

K, D = 10, 384
WARM = 1_000
SAMPLE = 200

ABOUT = """\
The {k} nearest others by cosine of each of N vectors of {d} dimensions{vectors}. Seconds are of the processor, in
{threads} thread(s), on {machine} with numpy {numpy}. Every method runs once, in a process of its own, after a run over
{warm:,} vectors that loads and compiles what it needs.

- *exact*: `DocumentGraph.build`, which compares every pair.
- *descent*: the same above `DUBITO_GRAPH_EXACT_UP_TO`: descent finds {candidates} candidates for each vector, which are
  compared again.
- *scikit-learn*: `NearestNeighbors(algorithm="brute", metric="euclidean")`, exact: unit vectors rank alike by cosine
  and by distance, and this is its fastest way.
- *memory*: the most that the process held beyond what it held before, the vectors being there already.
- *recall*: the share of the true neighbours, by float64, of {sample} vectors that were found.
"""

CLUSTERED = """: N/100 random centres, and around each about 100
members at random directions, as far off as the centre is long (members of one cluster have a cosine of about 0.5)"""

RECOMBINED = """. They are the {count:,} vectors
of the index and weighted means of random pairs of them: about the vector of a passage of which a part is from each"""


def clustered(n: int) -> Vectors:
    """Random unit vectors in clusters of about 100."""
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((n, D), dtype=np.float32)
    vectors += rng.standard_normal((max(1, n // 100), D), dtype=np.float32)[rng.integers(max(1, n // 100), size=n)]
    unit: Vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit


def recombined(vectors: Vectors, n: int) -> Vectors:
    """n unit vectors: these, then weighted means of random pairs of them."""
    rng = np.random.default_rng(0)
    one, other = rng.integers(len(vectors), size=(2, n))
    weight = rng.uniform(0.2, 0.8, size=(n, 1)).astype(np.float32)
    mixed = weight * vectors[one] + (1 - weight) * vectors[other]
    mixed[: len(vectors)] = vectors[:n]
    unit: Vectors = mixed / np.linalg.norm(mixed, axis=1, keepdims=True)
    return unit


def of_index(folder: Path) -> Vectors:
    """The vectors of an index."""
    vectors: Vectors = np.load(folder / "vectors.npy", mmap_mode="r")
    return vectors


def graph(vectors: Vectors, exact_up_to: int) -> Search:
    """Ours, over an index that is there."""
    os.environ["DUBITO_GRAPH_EXACT_UP_TO"] = str(exact_up_to)
    from dubito.retrieval.document_graph import DocumentGraph  # noqa: PLC0415
    from dubito.retrieval.index import Index  # noqa: PLC0415
    from dubito.retrieval.index_files import Manifest  # noqa: PLC0415

    n = len(vectors)
    manifest = Manifest(encoder="", dimension=D, chunker="", corpus="", documents=n, chunks=n, chunks_sha256="")
    chunks: list[Any] = [{"id": str(row)} for row in range(n)]
    encoder: Any = None  # nothing is embedded
    index = Index(manifest, chunks, vectors, encoder)
    return lambda: asyncio.run(DocumentGraph.build(index, K)).nearest.rows


def scikit_learn(vectors: Vectors) -> Search:
    """Exact, by blocks."""
    from sklearn.neighbors import NearestNeighbors  # noqa: PLC0415

    def search() -> Rows:
        fitted = NearestNeighbors(n_neighbors=K, algorithm="brute", metric="euclidean").fit(vectors)
        rows: Rows = fitted.kneighbors(return_distance=False)  # of the fitted rows, without themselves
        return rows

    return search


METHODS: dict[str, Callable[[Vectors], Search]] = {
    "exact": lambda vectors: graph(vectors, 10**9),
    "descent": lambda vectors: graph(vectors, 100),
    "scikit-learn": scikit_learn,
}


def status(field: str) -> int:
    """A figure of this process in bytes: VmRSS is what it holds, VmHWM the most it held."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


def one(method: str, file: Path) -> dict[str, float]:
    """Run a method over the vectors of a file: seconds, bytes, recall."""
    vectors: Vectors = np.load(file)
    METHODS[method](vectors[:WARM])()
    search = METHODS[method](vectors)
    Path("/proc/self/clear_refs").write_text("5")  # begins VmHWM anew
    before, begun = status("VmRSS"), time.process_time()
    rows = search()
    seconds = time.process_time() - begun
    return {"seconds": seconds, "bytes": status("VmHWM") - before, "recall": recall(vectors, rows)}


def recall(vectors: Vectors, rows: Rows) -> float:
    """The share of true neighbours that are there, of a sample of the vectors."""
    hits, exact = 0, vectors.astype(np.float64)
    for row in np.random.default_rng(0).choice(len(vectors), SAMPLE, replace=False).tolist():
        cosines = exact @ exact[row]
        cosines[row] = -np.inf
        hits += len(set(np.argpartition(-cosines, K)[:K].tolist()) & set(rows[row].tolist()))
    return hits / (SAMPLE * K)


def measured(method: str, file: Path, threads: int) -> dict[str, float]:
    """What `one` gives, from a process of its own."""
    count = str(threads)
    limits = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), count)
    command = [sys.executable, __file__, "--one", method, "--file", str(file)]
    done = subprocess.run(command, env={**os.environ, **limits}, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def table(sizes: list[int], methods: list[str], threads: int, known: Vectors | None) -> list[str]:
    """The measurements as Markdown, a line a size and method."""
    lines = [f"| N | method | seconds | ÷ {methods[0]} | memory, MB | recall |", "|---|---|---|---|---|---|"]
    print(*lines, sep="\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for n in sizes:
            file = Path(folder) / "vectors.npy"
            np.save(file, clustered(n) if known is None else recombined(known, n))
            first = 0.0
            for method in methods:
                found = measured(method, file, threads)
                first = first or found["seconds"]
                cells = f"{found['seconds']:.1f} | {found['seconds'] / first:.2f} | {found['bytes'] / 1e6:,.0f}"
                lines.append(f"| {n:,} | {method} | {cells} | {found['recall']:.4f} |")
                print(lines[-1], flush=True)
    return lines


def main() -> None:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--threads", type=int, default=1, help="of every method")
    parser.add_argument("--index", type=Path, help="a folder of `dubito index`")
    parser.add_argument("--methods", choices=METHODS, nargs="+", default=list(METHODS))
    parser.add_argument("--write", type=Path)
    parser.add_argument("--one", choices=METHODS, help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(one(given.one, given.file)))
        return
    known = None if given.index is None else of_index(given.index)
    lines = table(given.sizes, given.methods, given.threads, known)
    if given.write:
        from dubito.retrieval.neighbours import SPARE  # noqa: PLC0415 - the peers' processes do without

        about = ABOUT.format(
            k=K,
            d=D,
            threads=given.threads,
            machine=f"{os.cpu_count()} cores ({platform.machine()})",
            numpy=np.__version__,
            warm=WARM,
            candidates=K + 1 + SPARE,
            vectors=CLUSTERED if known is None else RECOMBINED.format(count=len(known)),
            sample=SAMPLE,
        )
        command = f"python benchmarks/neighbours.py {' '.join(sys.argv[1:])}"
        page = f"# The document graph: time, memory, recall\n\n    {command}\n\n{about}\n{chr(10).join(lines)}\n"
        given.write.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
