"""How many replies can be read at the first try, free and kept to a pattern? Reports, plans and decompositions.

    python benchmarks/structured_replies.py --llm vllm:http://127.0.0.1:8000/v1#MODEL [--kind report ...]

The 30 questions of the sample corpus. A report is on a plan of two steps, the question and its last document, and on
the question's own documents and one more.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dubito.errors import ContractFault
from dubito.models.interfaces import ChatModel, Message, Sampling
from dubito.nodes.decompose import MAX_TOKENS
from dubito.nodes.evaluate import MAX_REPORT_TOKENS
from dubito.nodes.plan import MAX_PLAN_TOKENS
from dubito.prompts import decompose, plan, report
from dubito.resources.opening import open_chat_model
from dubito.state.records import Chunk

SAMPLE = Path(__file__).parents[1] / "examples" / "sample"


class Kind(NamedTuple):
    """A kind of reply: its requests, the pattern they are kept to, its parser and its longest reply in tokens."""

    requests: Sequence[list[Message]]
    pattern: str
    parse: Callable[[str], object]
    max_tokens: int


def kinds() -> Mapping[str, Kind]:
    """The requests of each kind, one for each question."""
    questions, records = (
        [json.loads(line) for line in (SAMPLE / name).read_text("utf-8").splitlines()]
        for name in ("questions.jsonl", "corpus.jsonl")
    )
    reports = []
    for number, asked in enumerate(questions):
        titles = [*asked["gold_documents"], records[number]["title"]]
        chunks: list[Chunk] = [
            {"id": one["title"], "doc_id": one["title"], "title": one["title"], "text": one["text"]}
            for one in records
            if one["title"] in titles
        ]
        steps = [asked["question"], f"Find {asked['gold_documents'][-1]}"]
        reports.append(report.messages(steps, chunks, examples=False))
    texts = [asked["question"] for asked in questions]
    return {
        "report": Kind(reports, report.pattern(2), lambda reply: report.parse(reply, 2), MAX_REPORT_TOKENS),
        "plan": Kind([plan.messages(text) for text in texts], plan.pattern(8), plan.parse, MAX_PLAN_TOKENS),
        "decomposition": Kind(
            [decompose.messages(text, []) for text in texts], decompose.pattern(), decompose.parse, MAX_TOKENS
        ),
    }


async def measured(llm: ChatModel, kind: Kind, pattern: str | None) -> tuple[int, int]:
    """How many replies are read, and how many tokens the model writes for all."""
    sampling = Sampling(max_tokens=kind.max_tokens, pattern=pattern)
    replies = await asyncio.gather(*(llm.complete(messages, sampling) for messages in kind.requests))
    return sum(is_read(kind, reply.text) for reply in replies), sum(reply.tokens.completion for reply in replies)


def is_read(kind: Kind, reply: str) -> bool:
    """Does the parser accept it?"""
    try:
        kind.parse(reply)
    except ContractFault:
        return False
    return True


async def table(name: str, wanted: Sequence[str]) -> None:
    """Print the table, each row as soon as it is measured."""
    llm: Any = open_chat_model(name)
    await llm.check(frozenset())
    if "pattern" not in llm.capabilities:
        raise SystemExit(f"{name} cannot keep its replies to a pattern: name a vLLM server.")
    print("| reply | free: read at once | tokens | kept: read at once | tokens |\n|---|---|---|---|---|")
    for title in wanted:
        kind = kinds()[title]
        free, kept = [await measured(llm, kind, pattern) for pattern in (None, kind.pattern)]
        counts = " | ".join(f"{read} of {len(kind.requests)} | {tokens:,}" for read, tokens in (free, kept))
        print(f"| {title} | {counts} |", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llm", required=True)
    parser.add_argument("--kind", action="append", choices=kinds())
    given = parser.parse_args()
    asyncio.run(table(given.llm, given.kind or [*kinds()]))


if __name__ == "__main__":
    main()
