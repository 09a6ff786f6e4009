"""Does the diversity level matter? Supporting-title recall of every λ on 2WikiMultihopQA, with the embedded encoder.

    python benchmarks/lambda_recall.py --data DIR [--write docs/measurements/lambda_recall.md]

DIR holds 2wikimultihopqa/ with the corpus of 6,119 passages and the 177 open questions. The corpus is cut into windows
of 100 words and embedded anew, each chunk below its title. Compared are gMMR and MMR over all chunks, and gMMR over the
200 nearest (DF-RAG's `search: ann`).
With --write the measured part of the page is replaced; what stands outside its two marks is kept.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from dubito.models.encoders import SentenceTransformersEncoder
from dubito.models.weights import minilm_folder
from dubito.retrieval.chunkers import open_chunker
from dubito.retrieval.corpus import read_corpus
from dubito.retrieval.gmmr import gmmr_sweep, mmr_sweep
from dubito.retrieval.index import Index
from numpy.typing import NDArray

K = 5
CHUNKER = "words:100"
LAMBDAS = np.arange(1, 11, dtype=np.float32) / 10
Sweep = Callable[..., NDArray[np.int64]]
SWEEPS: dict[str, tuple[Sweep, int | None]] = {
    "gMMR": (gmmr_sweep, None),
    "gMMR, nearest 200": (gmmr_sweep, 200),
    "MMR": (mmr_sweep, None),
}
"""What is compared: the rule, and how many of the chunks nearest to the question it selects among (None: all)."""
BEGIN, END = "<!-- measured -->", "<!-- end of what was measured -->"

Floats = NDArray[np.float64]


async def measure(data: Path) -> str:
    """The measured part of the page, as Markdown."""
    folder = data / "2wikimultihopqa"
    questions = json.loads((folder / "dev_open_corpus.json").read_text(encoding="utf-8"))
    encoder = SentenceTransformersEncoder("embedded", str(minilm_folder()))
    await encoder.embed(["the model is loaded before the clock starts"])
    start, busy = time.perf_counter(), time.process_time()
    corpus = read_corpus(folder / "2wikimultihopqa_corpus.json")
    index = await Index.build(corpus, open_chunker(CHUNKER), encoder, show)
    seconds, busy = time.perf_counter() - start, time.process_time() - busy
    recalls, overlaps, cosine = await sweep_all(index, questions)
    setting = (
        f"{len(questions)} questions, {len(corpus.documents):,} passages, {index.manifest.chunks:,} chunks. Reading, "
        f"cutting, embedding and indexing took {seconds:.0f} s on {os.cpu_count()} cores and {busy:.0f} s of processor "
        f"time, with the model loaded before; the load average was {os.getloadavg()[0]:.1f} (2 is this work alone)."
    )
    tables = [
        recall_table(recalls, cosine),
        gains(recalls, cosine),
        best_lambda_table(recalls),
        overlap_tables(overlaps),
    ]
    return "\n\n".join([setting, *tables])


async def sweep_all(
    index: Index, questions: Sequence[dict[str, Any]]
) -> tuple[dict[str, Floats], dict[str, Floats], Floats]:
    """For each sweep recall [questions, λ] and overlap [questions, λ, λ]; recall of plain cosine [questions]."""
    recalls: dict[str, list[list[float]]] = {name: [] for name in SWEEPS}
    overlaps: dict[str, list[Floats]] = {name: [] for name in SWEEPS}
    cosine = []
    for question in questions:
        wanted = {title for title, _ in question["supporting_facts"]}
        for name, (sweep, top_n) in SWEEPS.items():
            pool = await index.pool(question["question"], top_n)
            rows = sweep(pool.query, pool.vectors, LAMBDAS, K)
            recalls[name].append([recall([pool.chunk(int(row))["title"] for row in chosen], wanted) for chosen in rows])
            overlaps[name].append(jaccard(rows))
        nearest = await index.pool(question["question"], K)
        cosine.append(recall([nearest.chunk(i)["title"] for i in range(K)], wanted))
    return (
        {name: np.array(rows) for name, rows in recalls.items()},
        {name: np.array(rows) for name, rows in overlaps.items()},
        np.array(cosine),
    )


def recall(titles: Sequence[str], wanted: set[str]) -> float:
    """The share of the supporting titles that are among these."""
    return len(wanted & set(titles)) / len(wanted)


def jaccard(rows: NDArray[np.int64]) -> Floats:
    """[L, k] chunk sets → [L, L]: what two sets share of what they have together."""
    sets = [set(chosen.tolist()) for chosen in rows]
    return np.array([[len(a & b) / len(a | b) for b in sets] for a in sets])


def recall_table(recalls: dict[str, Floats], cosine: Floats) -> str:
    """Mean recall of each way to choose."""
    head = [f"| supporting-title recall@{K} | {' | '.join(SWEEPS)} |", "|---|" + "---|" * len(SWEEPS)]
    rows = [("cosine, top 5", [float(cosine.mean())] * len(SWEEPS))]
    rows += [(f"λ = {level:.1f}", [r[:, i].mean() for r in recalls.values()]) for i, level in enumerate(LAMBDAS)]
    rows += [("best λ of each question", [r.max(axis=1).mean() for r in recalls.values()])]
    return "\n".join(
        [*head, *(f"| {name} | " + " | ".join(f"{v:.3f}" for v in values) + " |" for name, values in rows)]
    )


def gains(recalls: dict[str, Floats], cosine: Floats) -> str:
    """Differences per question, with bootstrap intervals."""
    lines = ["| gain in recall, mean [95 % bootstrap interval] | " + " | ".join(SWEEPS) + " |"]
    lines += ["|---|" + "---|" * len(SWEEPS)]
    fixed = {name: r[:, r.mean(axis=0).argmax()] for name, r in recalls.items()}
    best = {name: r.max(axis=1) for name, r in recalls.items()}
    for what, pairs in {
        "best fixed λ over cosine": [(fixed[name], cosine) for name in recalls],
        "best λ of each question over best fixed λ": [(best[name], fixed[name]) for name in recalls],
        "best λ of each question over cosine": [(best[name], cosine) for name in recalls],
    }.items():
        lines.append(f"| {what} | " + " | ".join(interval(a - b) for a, b in pairs) + " |")
    return "\n".join(lines)


def interval(differences: Floats) -> str:
    """The mean and where 95 % of 10,000 resampled means lie."""
    draws = np.random.default_rng(0).integers(len(differences), size=(10_000, len(differences)))
    low, high = np.quantile(differences[draws].mean(axis=1), [0.025, 0.975])
    return f"{differences.mean():+.3f} [{low:+.3f}, {high:+.3f}]"


def best_lambda_table(recalls: dict[str, Floats]) -> str:
    """How often each λ is best, alone or with others; ties go to the upper median λ, as in DF-RAG."""
    head = ["| λ | " + " | ".join(f"{name}: among the best | {name}: chosen" for name in SWEEPS) + " |"]
    head += ["|---|" + "---|---|" * len(SWEEPS)]
    among = {name: r == r.max(axis=1, keepdims=True) for name, r in recalls.items()}
    matters = {name: ~tied.all(axis=1) for name, tied in among.items()}
    chosen = {
        name: np.bincount([np.flatnonzero(t)[t.sum() // 2] for t in tied[matters[name]]], minlength=len(LAMBDAS))
        for name, tied in among.items()
    }
    rows = [
        f"| {level:.1f} | "
        + " | ".join(f"{among[name][matters[name], i].sum()} | {chosen[name][i]}" for name in SWEEPS)
        + " |"
        for i, level in enumerate(LAMBDAS)
    ]
    counts = " and ".join(f"{m.sum()} of {len(m)} ({name})" for name, m in matters.items())
    return f"Questions for which λ matters at all: {counts}. Among them:\n\n" + "\n".join([*head, *rows])


def overlap_tables(overlaps: dict[str, Floats]) -> str:
    """What the chunk sets of two λ share (the paper's Figure 4)."""
    parts = []
    for name, all_questions in overlaps.items():
        mean = all_questions.mean(axis=0)
        neighbours = float(np.diagonal(mean, offset=1).mean())
        head = [
            f"| {name} | " + " | ".join(f"{level:.1f}" for level in LAMBDAS) + " |",
            "|---|" + "---|" * len(LAMBDAS),
        ]
        rows = [
            f"| {level:.1f} | " + " | ".join(f"{v:.2f}" for v in row) + " |"
            for level, row in zip(LAMBDAS, mean, strict=True)
        ]
        parts.append(
            f"Neighbouring {name} sets overlap by {neighbours:.2f} (mean Jaccard index).\n\n"
            + "\n".join([*head, *rows])
        )
    return "\n\n".join(parts)


def show(done: int, total: int) -> None:
    """Progress on one line."""
    print(f"\rembedding {done:,} of {total:,}", end="\n" if done == total else "", flush=True)


def main() -> None:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--write", type=Path)
    arguments = parser.parse_args()
    measured = asyncio.run(measure(arguments.data))
    print(measured)
    if arguments.write:
        page = arguments.write.read_text(encoding="utf-8") if arguments.write.exists() else f"{BEGIN}\n{END}\n"
        before, after = page.partition(BEGIN)[0], page.partition(END)[2]
        arguments.write.write_text(f"{before}{BEGIN}\n\n{measured}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
