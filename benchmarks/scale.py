"""What does a corpus of 10,000 to 1,000,000 passages cost: to index, on the disk, in memory, to open, to ask?

    python benchmarks/scale.py --data DIR [--sizes 10000 100000] [--without hnsw] [--write docs/measurements/scale.md]

DIR holds 2wikimultihopqa/, hotpotqa/ and musique/ with questions and their paragraphs. Every row is appended to
--results when it is measured, and a row that is there is not measured again, so that a run can be ended and begun
again. Needs Linux. With --write the measured part of the page is replaced, and the curves beside it (scale.png).

Texts: the first 4,823 passages are windows of 100 words over the questions' paragraphs. Each further passage has the
first half of one of their words, the second half of another's, and the title of the first. Vectors: the first
passages' own under all-MiniLM-L6-v2; of a further passage w a + (1 - w) b + e, normalised, where a and b are the
vectors of its two passages, w is uniform in [0.2, 0.8], and e is Gaussian of expected length 0.3. The questions have
their own vectors.

Our searches and the libraries alone answer the same questions in turn, in one process with one thread. Structures are
built with as many threads as there are cores. Seconds are of the processor, so that other programs hardly change them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from dubito.benchmarks.gmmr import plain
from dubito.benchmarks.sunar_recall import Mute
from dubito.evals.datasets.loading import load_dataset
from dubito.graphs import neighbourhood
from dubito.models.interfaces import Vectors
from dubito.nodes.candidates import candidates
from dubito.resources.resources import Resources, shared_resources
from dubito.retrieval.bm25 import open_bm25
from dubito.retrieval.chunkers import open_chunker
from dubito.retrieval.chunking import embedding_text
from dubito.retrieval.corpus import Corpus, Document, read_corpus
from dubito.retrieval.document_graph import cached_graph
from dubito.retrieval.first_stage import open_first_stage
from dubito.retrieval.index import Index
from dubito.state.df_rag import DFRagContext
from dubito.state.neighbourhood import NeighbourhoodContext
from dubito.state.records import Chunk

Found = Sequence[int]
Search = Callable[[Any], Awaitable[Found]]

K, SEED, AT_ONCE = 10, 0, 32
QUESTIONS = 100
FILES = (
    ("2wiki", "2wikimultihopqa/dev_distractor.json"),
    ("hotpotqa", "hotpotqa/dev_distractor_native.jsonl"),
    ("musique", "musique/dev.jsonl"),
)
"""The questions, and their paragraphs."""

WIKIPEDIA = 21_000_000
"""The passages of Wikipedia of 2018, cut into 100 words (Karpukhin et al. 2020)."""

DESCENT = 1.14
"""The time of nearest-neighbour descent grows with N to this power (Dong et al. 2011)."""

STRUCTURES = ("ivf", "ivf_pq", "hnsw")
EXPLORATION, SWEEP = "exploration", "sweep"
"""SUNAR's, by the graph `neighbourhood` without a penalty; DF-RAG's over all λ, by the node `candidates`."""

SEARCHES = ("bm25", "flat", "hybrid", EXPLORATION, SWEEP, *STRUCTURES)
COLUMNS = (
    *("N", "search", "index, s", "disk, MB", "open, s", "held, MB", "with 32 at once"),
    *("first p50, ms", "p50, ms", "p95, ms"),
    *("library alone, p50", "p95", "ratio of p50", "recall@10", "library alone"),
)
BEGIN, END = "<!-- measured -->", "<!-- end of what was measured -->"


class KnownVectors:
    """An encoder whose vectors are there: of the questions, and of the passages in order or by the hash of the text."""

    name = "known"

    def __init__(
        self, passages: Vectors, questions: Mapping[str, Vectors], rows: Mapping[int, int] | None = None
    ) -> None:
        self._passages, self._questions, self._rows, self._next = passages, questions, rows, 0

    async def dimension(self) -> int:
        """See `Encoder.dimension`."""
        length: int = next(iter(self._questions.values())).shape[0]
        return length

    async def token_counter(self) -> None:
        """See `Encoder.token_counter`."""

    async def max_tokens(self) -> None:
        """See `Encoder.max_tokens`."""

    async def embed(self, texts: Sequence[str], *, query: bool = False) -> Vectors:
        """The questions, the passages of these texts, or the next passages."""
        if query:
            return np.stack([self._questions[text] for text in texts])
        if self._rows is not None:
            return self._passages[[self._rows[hash(text)] for text in texts]]
        self._next += len(texts)
        return self._passages[self._next - len(texts) : self._next]


async def real(data: Path, work: Path) -> None:
    """Embed the real passages and questions, once; what is embedded is in dubito's cache folder."""
    encoder = await shared_resources().encoder_named("embedded")
    passages = await encoder.embed([embedding_text(chunk) for chunk in await passages_of(data)])
    np.savez(work / "real.npz", passages=passages, questions=await encoder.embed(questions_of(data), query=True))


async def passages_of(data: Path) -> list[Chunk]:
    """The real passages."""
    windows = open_chunker("words:100")
    return [chunk for _, file in FILES for chunk in await windows.cut(read_corpus(data / file).documents, None)]


def questions_of(data: Path) -> list[str]:
    """The questions that are asked, from each file in turn."""
    files = [[one.question for one in load_dataset(f"{kind}:{data / file}").questions] for kind, file in FILES]
    return [question for turn in zip(*files, strict=False) for question in turn][:QUESTIONS]


def recombined(passages: Sequence[Chunk], real_vectors: Vectors, n: int) -> tuple[list[tuple[str, str]], Vectors]:
    """N titles and texts and their vectors; see above."""
    rng, count = np.random.default_rng(SEED), len(passages)
    first, second = rng.integers(count, size=(2, n))
    vectors = np.empty((n, real_vectors.shape[1]), np.float32)
    for start in range(0, n, 65_536):
        part = slice(start, start + 65_536)
        w = rng.uniform(0.2, 0.8, size=(len(first[part]), 1)).astype(np.float32)
        noise = rng.standard_normal((len(w), vectors.shape[1]), np.float32) * (0.3 / vectors.shape[1] ** 0.5)
        mixed = w * real_vectors[first[part]] + (1 - w) * real_vectors[second[part]] + noise
        vectors[part] = mixed / np.linalg.norm(mixed, axis=1, keepdims=True)
    vectors[:count] = real_vectors[:n]
    texts = [(chunk["title"], chunk["text"]) for chunk in passages]
    words = [text.split() for _, text in texts]
    joined = [
        (texts[a][0], " ".join(words[a][: len(words[a]) // 2] + words[b][len(words[b]) // 2 :]))
        for a, b in zip(first.tolist(), second.tolist(), strict=True)
    ]
    joined[:count] = texts[:n]
    return joined, vectors


def status(field: str) -> float:
    """A figure of this process in MB: RssAnon is what it holds without mapped files."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1e6


def megabytes(folder: Path) -> float:
    """The size of a folder's files."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6


async def measure(
    n: int, data: Path, work: Path, searches: Sequence[str], write: Callable[[dict[str, Any]], None]
) -> None:
    """Index N passages for every search, and ask each in a process of its own."""
    known, folder, cache = np.load(work / "real.npz"), work / f"{n}.index", work / f"{n}.cache"
    texts, vectors = recombined(await passages_of(data), known["passages"], n)
    corpus = Corpus(tuple(Document(str(i), title, text) for i, (title, text) in enumerate(texts)))
    encoder = KnownVectors(vectors, {"": known["questions"][0]})
    del texts
    begun = time.process_time()
    index = await Index.build(corpus, open_chunker("words:100000"), encoder)
    await index.save(folder)
    seconds = {"flat": time.process_time() - begun, "hybrid": 0.0, SWEEP: 0.0}
    size = {"flat": megabytes(folder), "hybrid": 0.0, SWEEP: 0.0}
    del corpus, encoder, vectors
    shutil.rmtree(cache, ignore_errors=True)
    begun = time.process_time()
    await open_bm25(index, cache)
    seconds["bm25"], size["bm25"] = time.process_time() - begun, megabytes(cache)
    for search in searches:
        extra: dict[str, Any] = {}
        if search == EXPLORATION:
            begun = time.process_time()
            await cached_graph(index, K, cache)
            seconds[search], size[search] = time.process_time() - begun, megabytes(cache) - size["bm25"]
        if search in STRUCTURES:
            begun = time.process_time()
            index = await index.searched_by(search)
            seconds[search] = time.process_time() - begun
            await index.save(folder)
            size[search] = (folder / "search.faiss").stat().st_size / 1e6
            if index.manifest.search is not None:
                extra = index.manifest.search.model_dump()
        told = asked_alone(search, folder, cache, data, work)
        write({"n": n, "search": search, "seconds": seconds[search], "mb": size[search], **extra, **told})


def asked_alone(search: str, *paths: Path) -> dict[str, Any]:
    """What `ask` gives, from a process of its own."""
    own = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "DUBITO_CACHE_DIR": str(paths[1])}
    command = [sys.executable, __file__, "--ask", search, *map(str, paths)]
    done = subprocess.run(command, env={**os.environ, **own}, check=True, stdout=subprocess.PIPE, text=True)
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


async def ask(search: str, folder: Path, cache: Path, data: Path, work: Path) -> dict[str, Any]:
    """Open one search of an index and ask it the questions, in turn with the library alone."""
    texts, known = questions_of(data), np.load(work / "real.npz")["questions"][:QUESTIONS]
    encoder = KnownVectors(known[:0], vector_of := dict(zip(texts, known, strict=False)))
    if search == EXPLORATION:  # its re-ranker compares the vectors of texts
        index = await Index.load(folder, encoder)
        rows = {hash(embedding_text(chunk)): row for row, chunk in enumerate(index.chunks)}
        encoder = KnownVectors(index.vectors, vector_of, rows)
    resources = Resources(Mute(), encoder)  # type: ignore[arg-type]
    before, begun = status("RssAnon"), time.process_time()
    index, ours = await opened(search, folder, cache, resources)
    seconds, held = time.process_time() - begun, status("RssAnon") - before
    first = [(await timed(ours, text))[0] for text in texts]  # reads what the questions need into memory
    await asyncio.gather(*(ours(text) for text in texts[:AT_ONCE]))
    busy = status("RssAnon") - before
    told = {"open": seconds, "held_mb": held, "busy_mb": busy, "first_p50": float(np.median(first)) * 1e3}
    _, exact = faiss.knn(known[: len(texts)], index.vectors, K, metric=faiss.METRIC_INNER_PRODUCT)
    bare = library(search, index, folder)
    times: dict[str, list[float]] = {"ours": [], "bare": []}
    hits = {"ours": 0, "bare": 0}
    for at in range(len(texts)):
        for who, answer in (("ours", ours), ("bare", bare)):
            if answer is None:
                continue
            lasted, found = await timed(answer, texts[at] if who == "ours" or search == "bm25" else known[at])
            times[who].append(lasted)
            hits[who] += len(set(found) & set(exact[at].tolist()))
    for who, taken in times.items():
        if taken:
            told |= {f"{who}_p{q}": float(np.percentile(taken, q)) * 1e3 for q in (50, 95)}
            if search not in {"bm25", "hybrid", SWEEP}:
                told[f"{who}_recall"] = hits[who] / len(taken) / K
    return told


async def opened(search: str, folder: Path, cache: Path, resources: Resources) -> tuple[Index, Search]:
    """An index, and what finds rows of it for a question."""
    explored, swept = NeighbourhoodContext(corpus=str(folder), penalty="none"), DFRagContext(corpus=str(folder))
    index: Any = await resources.retriever(explored)
    if search == EXPLORATION:
        await resources.first_stage(explored)
        await resources.document_graph(explored)
        graph = neighbourhood.build(resources).compile()

        async def explore(text: str) -> Found:
            found = await graph.ainvoke({"question": text}, context=explored)
            return [int(chunk["doc_id"]) for chunk in found["evidence"]]

        return index, explore
    if search == SWEEP:

        async def sweep(text: str) -> Found:
            found = await candidates({"question": text}, swept, resources)
            return [row for rows in found["rows"] for row in rows]

        return index, sweep
    stage: Any = await open_first_stage(search if search in {"bm25", "hybrid"} else "dense", index, cache)

    async def rank(text: str) -> Found:
        rows: Found = (await stage.ranker.rank(text, K)).rows.tolist()
        return rows

    return index, rank


async def timed(answer: Search, asked: Any) -> tuple[float, Found]:  # noqa: ANN401
    """The seconds of an answer, and the answer."""
    begun = time.process_time()
    found = await answer(asked)
    return time.process_time() - begun, found


def library(search: str, index: Any, folder: Path) -> Search | None:  # noqa: ANN401
    """The library alone, in memory: FAISS's flat index or the same structure, bm25s, or gMMR by its definition."""
    if search in {"hybrid", EXPLORATION}:
        return None
    if search == "bm25":
        import bm25s  # noqa: PLC0415

        words = bm25s.tokenize([embedding_text(chunk) for chunk in index.chunks], stopwords="en", show_progress=False)
        model = bm25s.BM25(method="lucene")
        model.index(words, show_progress=False)

        async def by_words(text: str) -> Found:
            asked = bm25s.tokenize([text], stopwords="en", show_progress=False)
            return model.retrieve(asked, k=K, show_progress=False)[0][0].tolist()  # type: ignore[no-any-return]

        return by_words
    structure: Any = faiss.IndexFlatIP(index.vectors.shape[1])
    if search == "flat":
        structure.add(index.vectors)
    elif search == SWEEP:
        held = np.array(index.vectors)
    else:
        structure, chosen = faiss.read_index(str(folder / "search.faiss")), index.manifest.search
        faiss.ParameterSpace().set_index_parameter(structure, chosen.parameter, chosen.value)

    async def by_vector(vector: Vectors) -> Found:
        rows = plain(vector, held) if search == SWEEP else structure.search(vector[None], K)[1]
        found: Found = rows.ravel().tolist()
        return found

    return by_vector


def read(file: Path) -> dict[tuple[int, str], dict[str, Any]]:
    """The last row of each size and search."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    rows = [json.loads(line) for line in lines]
    return {(row["n"], row["search"]): row for row in sorted(rows, key=_place)}


def _place(row: dict[str, Any]) -> tuple[int, int]:
    return row["n"], SEARCHES.index(row["search"])


def tables(rows: dict[tuple[int, str], dict[str, Any]]) -> str:
    """The measured part of the page."""
    lines = [
        f"Python {platform.python_version()}, {os.cpu_count()} cores ({platform.machine()}), numpy {np.__version__}.\n",
        f"| {' | '.join(COLUMNS)} |",
        f"|{'---|' * len(COLUMNS)}",
    ]
    for (n, _), row in rows.items():
        cells = [f"{n:,}", named(row), f"{row['seconds']:,.1f}", f"{row['mb']:,.0f}", f"{row['open']:.2f}"]
        cells += [f"{row['held_mb']:,.0f}", f"{row['busy_mb']:,.0f}"]
        cells += [f"{row[key]:.2f}" for key in ("first_p50", "ours_p50", "ours_p95")]
        bare = "bare_p50" in row
        cells += [f"{row['bare_p50']:.2f}", f"{row['bare_p95']:.2f}"] if bare else ["", ""]
        cells += [f"{row['ours_p50'] / row['bare_p50']:.2f}" if bare else ""]
        cells += [f"{row[key]:.3f}" if key in row else "" for key in ("ours_recall", "bare_recall")]
        if not row["mb"]:
            cells[2] = cells[3] = "no more"
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *reckoned(rows)])


def named(row: dict[str, Any]) -> str:
    """A search with its parameters."""
    if "factory" not in row:
        return str(row["search"])
    return f"{row['search']} ({row['factory']}, {row['parameter']} {row['value']}, told {row['recall']:.3f})"


def reckoned(rows: dict[tuple[int, str], dict[str, Any]]) -> list[str]:
    """What 21 million passages would take, from the largest size of each search."""
    about = (
        f"Reckoned for {WIKIPEDIA:,} passages from the largest size of each search. Disk, and the time of a query by "
        "`bm25`, `flat` and `sweep`, grow with N; of `exploration` that of `bm25` within it, and the rest stays. With "
        "inverted lists the time of a query grows with √N and that of building with N√N, with `hnsw` with log N "
        f"and N log N. The document graph takes N^{DESCENT}, the law that Dong et al. (2011) found for the descent.\n"
    )
    lines = [
        about,
        "| search | from N | index, hours | disk, GB | p50, ms |",
        "|---|---|---|---|---|",
    ]
    for search in (name for name in SEARCHES if name != "hybrid"):
        sizes = [n for n, other in rows if other == search]
        if not sizes:
            continue
        n, row = max(sizes), rows[max(sizes), search]
        more = WIKIPEDIA / n
        words = rows.get((n, "bm25"), row)["ours_p50"] / row["ours_p50"]
        root, log = more**0.5, np.log(WIKIPEDIA) / np.log(n)
        slower = {"ivf": root, "ivf_pq": root, "hnsw": log, EXPLORATION: 1 + (more - 1) * words}.get(search, more)
        longer = {EXPLORATION: more**DESCENT}.get(search, more * slower if search in STRUCTURES else more)
        cells = (
            f"{row['seconds'] * longer / 3600:.1f} | {row['mb'] * more / 1e3:,.0f} | {row['ours_p50'] * slower:,.1f}"
        )
        lines.append(f"| {search} | {n:,} | {cells} |")
    return lines


def plot(rows: dict[tuple[int, str], dict[str, Any]], file: Path) -> None:
    """A query, the index and the disk against N."""
    import matplotlib  # noqa: PLC0415 - only where a plot is asked for

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
    figures = {"ours_p50": "a query, p50, ms", "seconds": "to index, s of the processor", "mb": "disk, MB"}
    for axis, (key, label) in zip(axes, figures.items(), strict=True):
        for place, search in enumerate(SEARCHES):
            sizes = [n for n, other in rows if other == search]
            if not sizes or not rows[max(sizes), search][key]:
                continue
            axis.plot(sizes, [rows[n, search][key] for n in sizes], ".-", color=f"C{place}", label=search)
            if key == "ours_p50" and "bare_p50" in rows[max(sizes), search]:
                axis.plot(sizes, [rows[n, search]["bare_p50"] for n in sizes], "--", color=f"C{place}", alpha=0.6)
        axis.set(xscale="log", yscale="log", xlabel="passages", ylabel=label)
        axis.grid(alpha=0.3)
    axes[0].plot([], [], "k--", alpha=0.6, label="library alone")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center")
    figure.savefig(file, dpi=110)


def main() -> None:
    """Measure what is missing, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--sizes", type=int, nargs="*", default=[10_000, 100_000])
    parser.add_argument("--without", choices=SEARCHES, nargs="*", default=[], help="leave these searches out")
    parser.add_argument("--work", type=Path, default=Path("build/scale"), help="for vectors and indexes")
    parser.add_argument("--results", type=Path, default=Path(__file__).with_suffix(".jsonl"))
    parser.add_argument("--write", type=Path, metavar="PAGE")
    parser.add_argument("--ask", nargs=5, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.ask:
        print(json.dumps(asyncio.run(ask(given.ask[0], *map(Path, given.ask[1:])))))
        return
    given.work.mkdir(parents=True, exist_ok=True)
    searches = [search for search in SEARCHES if search not in given.without]

    def write(row: dict[str, Any]) -> None:
        with given.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)

    for n in given.sizes:
        missing = [search for search in searches if (n, search) not in read(given.results)]
        if not missing:
            continue
        if not (given.work / "real.npz").exists():
            asyncio.run(real(given.data, given.work))
        asyncio.run(measure(n, given.data, given.work, missing, write))
    rows = read(given.results)
    print(tables(rows))
    if given.write:
        page = given.write.read_text(encoding="utf-8")
        head, tail = page.split(BEGIN)[0], page.split(END)[1]
        given.write.write_text(f"{head}{BEGIN}\n\n{tables(rows)}\n\n{END}{tail}", encoding="utf-8")
        plot(rows, given.write.with_suffix(".png"))


if __name__ == "__main__":
    main()
