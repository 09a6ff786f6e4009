"""How many model calls does a DENSE measurement take on the sample questions, where 41 would be naive?

Naive at k = 5: 5 rephrasings, 6 answers, and a judgement for each of the 30 ordered pairs of answers.

    python benchmarks/dense_calls.py [--llm embedded] [--questions 30] [--write FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from dubito.graphs import dense
from dubito.state.answer_text import normalised
from dubito.state.dense import DenseContext

NAIVE = 5 + 6 + 30


async def measured(llm: str, count: int, at_once: int) -> list[dict[str, Any]]:
    """The output of every measurement, with the chat model as judge."""
    lines = (resources.files("dubito") / "examples" / "sample" / "questions.jsonl").read_text("utf-8").splitlines()
    context = DenseContext(llm=llm, judge="llm", check_determinism=False)
    gate = asyncio.Semaphore(at_once)

    async def one(question: str) -> dict[str, Any]:
        async with gate:
            result = await dense.graph.ainvoke({"question": question}, context=context)
            print(f"{result['dse']:.3f}  {result['usage']['calls']:3d} calls  {question}", flush=True)
            return result

    return await asyncio.gather(*(one(json.loads(line)["question"]) for line in lines[:count]))


def report(results: Sequence[dict[str, Any]]) -> str:
    """A row for each number of distinct answers."""
    distinct = [len({normalised(text) for text in result["responses"]}) for result in results]
    rows = []
    for number, questions in sorted(Counter(distinct).items()):
        some = [result for result, one in zip(results, distinct, strict=True) if one == number]
        costs = [(calls(r, "rephrase"), calls(r, "respond"), calls(r, "entail"), r["usage"]["calls"]) for r in some]
        mean = " | ".join(f"{sum(column) / len(some):.1f}" for column in zip(*costs, strict=True))
        rows.append(f"| {number} | {questions} | {mean} |")
    total = sum(result["usage"]["calls"] for result in results) / len(results)
    return (
        "| distinct answers | questions | rephrasings | answers | judgements | calls in all |\n"
        "|---|---|---|---|---|---|\n"
        + "\n".join(rows)
        + f"\n\n{total:.1f} calls a question on average; done naively it is {NAIVE}.\n"
    )


def calls(result: dict[str, Any], node: str) -> int:
    """The model calls of one step."""
    return int(result["usage"]["nodes"].get(node, {"calls": 0})["calls"])


def main() -> None:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llm", default="embedded")
    parser.add_argument("--questions", type=int, default=30)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    text = report(asyncio.run(measured(given.llm, given.questions, given.at_once)))
    print(text)
    if given.write:
        given.write.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
