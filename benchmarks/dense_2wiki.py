"""Is an uncertain answer a wrong one? DSE against EM and F1 on 2WikiMultihopQA, as DENSE's Figures 2 and 3.

    python benchmarks/dense_2wiki.py --data DIR --run FILE.jsonl [--questions 50] [--llm embedded] [--judge NAME]
    python benchmarks/dense_2wiki.py --data DIR --run FILE.jsonl --plot FILE.png --write FILE.md

DIR holds 2wikimultihopqa/ with the corpus of 6,119 passages and the 177 open questions. Every finished question is a
line of the run file; started again, it goes on with the questions that are missing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dubito.evals.answers import exact_match, f1
from dubito.graphs import dense
from dubito.state.dense import DenseContext

BINS = [(0.0, 0.1), (0.1, 0.2), (0.2, 0.4), (0.4, 0.6), (0.6, 0.8), (0.8, 1.0), (1.0, 1.4), (1.4, 1.8)]
"""Of DSE, in nats: log 6 = 1.79 is the most at k = 5."""


def sampled(data: Path, count: int) -> list[dict[str, Any]]:
    """The same questions in every run."""
    questions: list[dict[str, Any]] = json.loads((data / "2wikimultihopqa" / "dev_open_corpus.json").read_text("utf-8"))
    return random.Random(0).sample(questions, min(count, len(questions)))


async def run(questions: Sequence[dict[str, Any]], context: DenseContext, file: Path, at_once: int) -> None:
    """Measure what is missing from the run file, `at_once` questions at a time."""
    done = {line["id"] for line in read(file)}
    gate = asyncio.Semaphore(at_once)

    async def one(record: dict[str, Any]) -> None:
        async with gate:
            begun = time.perf_counter()
            result = await dense.graph.ainvoke({"question": record["question"]}, context=context)
        titles = {title for title, _ in record["supporting_facts"]}
        line = {
            "id": record["_id"],
            "question": record["question"],
            "gold": record["answer"],
            "answer": result["answer"],
            "dse": result["dse"],
            "responses": result["responses"],
            "unprobed": sum("was not rephrased" in warning for warning in result["warnings"]),
            "recall": len(titles & {chunk["title"] for chunk in result["evidence"]}) / len(titles),
            "calls": result["usage"]["calls"],
            "seconds": time.perf_counter() - begun,
        }
        with file.open("a", encoding="utf-8") as out:
            out.write(json.dumps(line, ensure_ascii=False) + "\n")
        print(f"{line['seconds']:5.0f} s  DSE {line['dse']:.3f}  {line['gold']}  <-  {line['answer']}", flush=True)

    await asyncio.gather(*(one(record) for record in questions if record["_id"] not in done))


def read(file: Path) -> list[dict[str, Any]]:
    """The finished questions."""
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []


def scored(lines: Sequence[dict[str, Any]]) -> list[tuple[float, float, float]]:
    """DSE, EM and F1 of every question."""
    return [(x["dse"], exact_match(x["answer"], [x["gold"]]), f1(x["answer"], [x["gold"]])) for x in lines]


def binned(scores: Sequence[tuple[float, float, float]]) -> list[list[tuple[float, float, float]]]:
    """The scores by bin; a bin holds its lower end and not its upper one."""
    return [[s for s in scores if low <= s[0] < high] for low, high in BINS]


def mean(values: Sequence[float]) -> str:
    """The mean with three digits, a dash of nothing."""
    return f"{sum(values) / len(values):.3f}" if values else "-"


def report(lines: Sequence[dict[str, Any]]) -> str:
    """The tables as Markdown."""
    scores = scored(lines)
    rows = [
        f"| {low:.1f}-{high:.1f} | {len(some)} | {mean([s[1] for s in some])} | {mean([s[2] for s in some])} |"
        for (low, high), some in zip(BINS, binned(scores), strict=True)
    ]
    for name, some in {
        "certain (DSE at most 0.2)": [s for s in scores if s[0] <= 0.2],
        "uncertain": [s for s in scores if s[0] > 0.2],
        "all": scores,
    }.items():
        rows.append(f"| {name} | {len(some)} | {mean([s[1] for s in some])} | {mean([s[2] for s in some])} |")
    right = [s[0] for s in scores if s[2] > 0]
    wrong = [s[0] for s in scores if s[2] == 0]
    pairs = [(w > r) + 0.5 * (w == r) for w in wrong for r in right]
    auroc = f"{sum(pairs) / len(pairs):.2f}" if pairs else "-"
    head = "| DSE | questions | EM | F1 |\n|---|---|---|---|\n"
    seconds = sorted(x["seconds"] for x in lines)
    return (
        f"{head}{chr(10).join(rows)}\n\n"
        f"AUROC of the DSE for an answer that shares no word with the gold answer: {auroc} (0.5 is a coin). "
        f"Calls per question: {mean([x['calls'] for x in lines])}; chunks that could not be probed: "
        f"{sum(x['unprobed'] for x in lines)} of {sum(len(x['responses']) - 1 for x in lines)}; "
        f"supporting titles among the chunks: {mean([x['recall'] for x in lines])}; "
        f"median {seconds[len(seconds) // 2]:.0f} s a question.\n"
    )


def plot(lines: Sequence[dict[str, Any]], file: Path) -> None:
    """How many questions, and their EM and F1, by bin of DSE."""
    import matplotlib  # noqa: PLC0415 - only where a plot is asked for

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    bins = binned(scored(lines))
    names = [f"{low:.1f}-{high:.1f}" for low, high in BINS]
    figure, (counts, quality) = plt.subplots(1, 2, figsize=(11, 4))
    counts.bar(names, [len(some) for some in bins], color="#7a6fac")
    counts.set(title="Questions by DSE", xlabel="DSE (nats)", ylabel="questions")
    for position, label, colour in ((1, "EM", "#c44e52"), (2, "F1", "#4c72b0")):
        values = [sum(s[position] for s in b) / len(b) if b else float("nan") for b in bins]
        quality.plot(names, values, marker="o", label=label, color=colour)
    quality.set(title="Answer quality by DSE", xlabel="DSE (nats)", ylabel="mean", ylim=(0, 1))
    quality.legend()
    for axis in (counts, quality):
        axis.tick_params(axis="x", rotation=30)
    figure.tight_layout()
    figure.savefig(file, dpi=110)


def main() -> None:
    """Run, or read a run, and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--questions", type=int, default=50)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--llm", default="embedded")
    parser.add_argument("--judge", default="embedded")
    parser.add_argument("--chunker", default="words:100")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    corpus = str(given.data / "2wikimultihopqa" / "2wikimultihopqa_corpus.json")
    context = DenseContext(corpus=corpus, llm=given.llm, judge=given.judge, chunker=given.chunker, concurrency=48)
    asyncio.run(run(sampled(given.data, given.questions), context, given.run, given.at_once))
    text = report(read(given.run))
    print(text)
    if given.plot:
        plot(read(given.run), given.plot)
    if given.write:
        given.write.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
