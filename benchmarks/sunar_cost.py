"""What does SUNAR cost, and how does that grow? Calls, tokens and seconds per stage, one setting varied at a time.

A stub chat model answers every request after a fixed time, reads what it is given and says what a real one would in
length; retrieval, document graph, re-ranking and the clustering of the answers are real (the embedded preset).

    python benchmarks/sunar_cost.py --data DIR [--questions 10] [--latency 0.2] [--write FILE.md] [--plot FILE.png]

DIR holds 2wikimultihopqa/ with the corpus of 6,119 passages and its questions.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dubito.graphs import sunar
from dubito.models.interfaces import (
    MIDDLE_LAYER,
    Capability,
    Choice,
    Completion,
    Introspection,
    Message,
    Reply,
    Sampling,
    Scores,
    StatePlace,
    Tokens,
)
from dubito.resources.resources import Resources
from dubito.state.sunar import SunarContext

ANSWERS = ("Ada Brand", "Ada Brand, the founder", "Bo Carr", "in 1906")
STAGES = {
    "decomposition": ("decompose", "chain_of_query"),
    "first stage": ("search_first_stage",),
    "re-ranking": ("score_batch",),
    "sampling": ("sample_answers",),
    "clustering": ("count_semantic_sets",),
    "exploration": ("select_batch", "update_frontier"),
    "answers": ("intermediate_answer",),
    "meta evidence": ("rerank_all_evidence", "reason_over_all_evidence"),
}
DEFAULTS = {"budget": 100, "batch": 16, "samples": 10, "hops": 2, "passages": 6119}
VARIED = {
    "budget": (25, 50, 100, 200),
    "batch": (8, 16, 32, 64),
    "samples": (2, 5, 10, 20),
    "hops": (1, 2, 4, 6),
    "passages": (500, 2000, 6119),
}


@dataclass
class Stub:
    """A chat model that asks `hops` sub-questions and answers after `latency` seconds; a token is a word."""

    hops: int
    latency: float
    name: str = "stub"
    capabilities: frozenset[Capability] = field(default_factory=frozenset)

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        """A step of the path, or answers of which some differ."""
        await asyncio.sleep(self.latency)
        user = messages[-1]["content"]
        if "one at a time" in messages[0]["content"]:
            known = user.count("\n- ")
            texts = [
                "Final answer: Ada Brand" if known >= self.hops else f"Follow-up: Which fact {known} of {user[:80]}?"
            ]
        else:
            texts = [ANSWERS[random.Random(f"{user}{i}").choice((0, 0, 0, 1, 2, 3))] for i in range(sampling.n)]
        read = sum(len(message["content"].split()) for message in messages)
        written = sum(len(text.split()) for text in texts)
        return Reply(tuple(Completion(text, "stop") for text in texts), Tokens(read, written))

    async def choose(self, messages: Sequence[Message], options: Sequence[str]) -> Choice:
        """Never asked for."""
        raise NotImplementedError

    async def score(self, messages: Sequence[Message], continuations: Sequence[str]) -> Scores:
        """Never asked for."""
        raise NotImplementedError

    async def introspect(
        self, messages: Sequence[Message], sampling: Sampling, place: StatePlace = MIDDLE_LAYER
    ) -> Introspection:
        """Never asked for."""
        raise NotImplementedError

    async def window(self) -> int | None:
        """Unknown."""
        return None

    async def count(self, texts: Sequence[str]) -> list[int]:
        """Words."""
        return [len(text.split()) for text in texts]


@dataclass
class Cost:
    """Means over the questions: calls, tokens read and written, seconds in all, and seconds by stage."""

    calls: float
    read: float
    written: float
    seconds: float
    stages: dict[str, float]


async def measured(questions: Sequence[str], corpora: dict[int, str], given: dict[str, int], latency: float) -> Cost:
    """The cost of one setting; a question before the first one opens what is opened once."""
    graph = sunar.build(Resources(llm=Stub(given["hops"], latency))).compile()
    context = SunarContext(
        corpus=corpora[given["passages"]],
        budget=given["budget"],
        batch_size=given["batch"],
        samples=given["samples"],
        max_hops=given["hops"] + 1,
        first_stage_n=max(100, given["budget"]),
    )
    runs: list[tuple[float, dict[str, Any]]] = []
    for question in [questions[0], *questions]:
        begun = time.perf_counter()
        result = await graph.ainvoke({"question": question}, context=context)
        runs.append((time.perf_counter() - begun, result["usage"]))
    seconds, usages = [run[0] for run in runs[1:]], [run[1] for run in runs[1:]]

    def mean(values: Sequence[float]) -> float:
        return statistics.fmean(values)

    return Cost(
        mean([usage["calls"] for usage in usages]),
        mean([usage["prompt_tokens"] for usage in usages]),
        mean([usage["completion_tokens"] for usage in usages]),
        mean(seconds),
        {
            stage: mean([sum(u["nodes"][node]["seconds"] for node in nodes if node in u["nodes"]) for u in usages])
            for stage, nodes in STAGES.items()
        },
    )


def corpus_files(data: Path, folder: Path) -> dict[int, str]:
    """The corpus, and the first passages of it alone."""
    whole = data / "2wikimultihopqa" / "2wikimultihopqa_corpus.json"
    passages = json.loads(whole.read_text(encoding="utf-8"))
    files = {len(passages): str(whole)}
    for count in VARIED["passages"][:-1]:
        file = folder / f"first_{count}.json"
        file.write_text(json.dumps(passages[:count]), encoding="utf-8")
        files[count] = str(file)
    return files


async def all_measured(data: Path, count: int, latency: float) -> dict[str, dict[int, Cost]]:
    """The cost at every value of every setting, the others at their defaults."""
    records = json.loads((data / "2wikimultihopqa" / "dev_open_corpus.json").read_text(encoding="utf-8"))
    questions = [record["question"] for record in random.Random(0).sample(records, count)]
    found: dict[str, dict[int, Cost]] = {}
    with tempfile.TemporaryDirectory() as folder:
        corpora = corpus_files(data, Path(folder))
        for name, values in VARIED.items():
            found[name] = {}
            for value in values:
                found[name][value] = await measured(questions, corpora, {**DEFAULTS, name: value}, latency)
                print(name, value, found[name][value], flush=True)
    return found


def report(found: dict[str, dict[int, Cost]], count: int, latency: float) -> str:
    """The tables as Markdown."""
    parts = [
        f"{count} questions a row, {latency} s a request; defaults: "
        + ", ".join(f"{name} {value:,}" for name, value in DEFAULTS.items())
        + ".\n"
    ]
    for name, costs in found.items():
        head = f"| {name} | calls | tokens read | written | seconds | " + " | ".join(STAGES) + " |"
        rows = [
            f"| {value:,} | {c.calls:.1f} | {c.read:,.0f} | {c.written:,.0f} | {c.seconds:.2f} | "
            + " | ".join(f"{c.stages[stage]:.2f}" for stage in STAGES)
            + " |"
            for value, c in costs.items()
        ]
        parts.append("\n".join([head, "|" + "---|" * (5 + len(STAGES)), *rows]) + "\n")
    return "\n".join(parts)


def plot(found: dict[str, dict[int, Cost]], file: Path) -> None:
    """Seconds by stage against each setting."""
    import matplotlib  # noqa: PLC0415 - only where a plot is asked for

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(1, len(found), figsize=(4 * len(found), 3.6), sharey=True)
    for axis, (name, costs) in zip(axes, found.items(), strict=True):
        values = list(costs)
        axis.stackplot(values, [[costs[v].stages[stage] for v in values] for stage in STAGES], labels=list(STAGES))
        axis.plot(values, [costs[v].seconds for v in values], "k.-", label="in all")
        axis.set(xlabel=name, xticks=values)
    axes[0].set_ylabel("seconds a question")
    axes[-1].legend(fontsize=7, loc="upper left")
    figure.tight_layout()
    figure.savefig(file, dpi=100)


def main() -> None:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--questions", type=int, default=10)
    parser.add_argument("--latency", type=float, default=0.2)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--plot", type=Path)
    given = parser.parse_args()
    found = asyncio.run(all_measured(given.data, given.questions, given.latency))
    text = report(found, given.questions, given.latency)
    print(text)
    if given.write:
        given.write.write_text(text, encoding="utf-8")
    if given.plot:
        plot(found, given.plot)


if __name__ == "__main__":
    main()
