"""Does uncertainty tell what a model can read off its prompt from what it cannot? Every estimator of SeaKR on XQuAD.

    python benchmarks/known_unknown.py --data DIR --run FILE.jsonl [--questions 80] [--samples 20] [--llm embedded] \
        [--judge nli:DIR]
    python benchmarks/known_unknown.py --run FILE.jsonl --write FILE.md --plot FILE.png

DIR holds squad_xquad_en/ with the English part of XQuAD. Half of the questions are shown with their own paragraph, the
other half with one of another article, so that both prompts are about as long. U is measured where SeaKR measures it:
at the first step. All estimators see the same samples. Every finished question is a line of the run file; started
again, it goes on with the questions that are missing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from dubito.evals.calibration import best_threshold
from dubito.evals.reliability import auroc_interval
from dubito.models.interfaces import (
    MIDDLE_LAYER,
    Capability,
    ChatModel,
    Choice,
    Introspection,
    Message,
    Reply,
    Sampling,
    Scores,
    StatePlace,
)
from dubito.nodes.uncertainty_estimators import ONE_SENTENCE, Prompt, continue_with_uncertainty
from dubito.prompts import reasoning
from dubito.resources.opening import open_chat_model
from dubito.resources.resources import Resources
from dubito.state.records import Chunk
from dubito.state.seakr import NEEDS, Estimator, SeaKRContext
from dubito.uncertainty import eigen_score

FEWER = (2, 5, 10, 15)
"""Of the samples, for U with fewer."""

ESTIMATORS: Sequence[Estimator] = get_args(Estimator)


class Remembering:
    """A chat model that samples from each prompt once: what was introspected serves whoever wants samples."""

    def __init__(self, model: ChatModel) -> None:
        """model: whose samples they are."""
        self.model = model
        self.name = model.name
        self.kept: dict[str, Introspection] = {}
        self.said: dict[str, Reply] = {}

    @property
    def capabilities(self) -> frozenset[Capability]:
        """The model's."""
        return self.model.capabilities

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        """Samples that were drawn before; a greedy continuation that was."""
        if sampling.n > 1:
            return (await self.introspect(messages, sampling)).reply
        key = json.dumps([list(messages), sampling.max_tokens, sampling.stop])
        if key not in self.said:
            self.said[key] = await self.model.complete(messages, sampling)
        return self.said[key]

    async def introspect(
        self, messages: Sequence[Message], sampling: Sampling, place: StatePlace = MIDDLE_LAYER
    ) -> Introspection:
        """Drawn once for a prompt."""
        if "hidden_states" not in self.capabilities:
            raise NotImplementedError
        key = json.dumps([list(messages), sampling.n])
        if key not in self.kept:
            self.kept[key] = await self.model.introspect(messages, sampling, place)
        return self.kept[key]

    async def choose(self, messages: Sequence[Message], options: Sequence[str]) -> Choice:
        """The model's."""
        return await self.model.choose(messages, options)

    async def score(self, messages: Sequence[Message], continuations: Sequence[str]) -> Scores:
        """The model's."""
        return await self.model.score(messages, continuations)

    async def window(self) -> int | None:
        """The model's."""
        return await self.model.window()

    async def count(self, texts: Sequence[str]) -> list[int]:
        """The model's."""
        return await self.model.count(texts)


def sampled(data: Path, count: int) -> list[dict[str, Any]]:
    """The same questions in every run, every other one with the paragraph of another article."""
    articles = json.loads((data / "squad_xquad_en" / "xquad.en.json").read_text("utf-8"))["data"]
    asked = [
        {
            "id": qa["id"],
            "question": qa["question"],
            "answer": qa["answers"][0]["text"],
            "article": number,
            "text": text,
        }
        for number, article in enumerate(articles)
        for paragraph in article["paragraphs"]
        for text in [paragraph["context"]]
        for qa in paragraph["qas"]
    ]
    drawn = random.Random(0).sample(asked, count)
    # the paragraph of the next question that is of another article
    after = [[*drawn[place:], *drawn[:place]] for place in range(count)]
    others = [next(one["text"] for one in some if one["article"] != some[0]["article"]) for some in after]
    known = [place % 2 == 0 for place in range(count)]
    return [
        {**one, "known": knows, "text": one["text"] if knows else other}
        for one, other, knows in zip(drawn, others, known, strict=True)
    ]


async def run(questions: Sequence[dict[str, Any]], name: str, judge: str, samples: int, file: Path) -> None:
    """Measure what is missing from the run file."""
    done = {line["id"] for line in read(file)}
    model = Remembering(open_chat_model(name))
    resources = Resources(llm=model)
    usable = [one for one in ESTIMATORS if NEEDS[one] <= model.capabilities]
    for one in questions:
        if one["id"] in done:
            continue
        begun = time.perf_counter()
        chunk: Chunk = {"id": "c", "doc_id": "d", "title": "", "text": one["text"]}
        messages = reasoning.step_messages(one["question"], [chunk], [])
        prompt = Prompt(one["question"], [chunk], [], messages, ONE_SENTENCE, 60)
        found: dict[str, float | None] = {}
        for estimator in usable:
            settings = {"estimator": estimator, "judge": judge, "samples": samples, "max_step_tokens": 60}
            context = SeaKRContext.unchecked(settings)
            completion, estimate = await continue_with_uncertainty(prompt, context, resources)
            found[estimator] = estimate.uncertainty
        line = {
            "id": one["id"],
            "known": one["known"],
            "said": completion.text,
            "answer": one["answer"],
            "seconds": time.perf_counter() - begun,
            "uncertainty": found,
            "gram_by_samples": by_samples(model, samples),
        }
        with file.open("a", encoding="utf-8") as out:
            out.write(json.dumps(line, ensure_ascii=False) + "\n")
        model.kept.clear()
        print(
            f"{line['seconds']:5.1f} s  {'known  ' if one['known'] else 'unknown'}  U {found.get('gram')}", flush=True
        )


def by_samples(model: Remembering, samples: int) -> dict[int, float | None]:
    """U by gram of the first few of the samples that were drawn."""
    (seen,) = (one for one in model.kept.values() if len(one.states) == samples)
    kept = [row for row, one in enumerate(seen.reply.completions) if one.text.strip()]
    few = {count: [row for row in kept if row < count] for count in FEWER if count <= samples}
    return {count: eigen_score(seen.states[rows]) if len(rows) > 1 else None for count, rows in few.items()}


def read(file: Path) -> list[dict[str, Any]]:
    """The finished questions."""
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []


def measured(lines: Sequence[dict[str, Any]], estimator: str) -> tuple[list[float], list[bool]]:
    """U of every question where it is known, and whether the answer was missing from the prompt."""
    pairs = [
        (line["uncertainty"][estimator], not line["known"])
        for line in lines
        if line["uncertainty"].get(estimator) is not None
    ]
    return [u for u, _ in pairs], [missing for _, missing in pairs]


def auroc_with_interval(values: Sequence[float], missing: Sequence[bool]) -> str:
    """The AUROC with its 95 % interval."""
    area, unknown = best_threshold(values, missing).auroc, sum(missing)
    low, high = auroc_interval(area, len(missing) - unknown, unknown)
    return f"{area:.2f} ({low:.2f} to {high:.2f})"


def report(lines: Sequence[dict[str, Any]]) -> str:
    """The table as Markdown."""
    rows = []
    for estimator in ESTIMATORS:
        values, missing = measured(lines, estimator)
        if not values:
            continue
        known = sorted(u for u, m in zip(values, missing, strict=True) if not m)
        unknown = sorted(u for u, m in zip(values, missing, strict=True) if m)
        parted, area = best_threshold(values, missing), auroc_with_interval(values, missing)
        rows.append(
            f"| `{estimator}` | {len(known)} + {len(unknown)} | {known[len(known) // 2]:.3f} | "
            f"{unknown[len(unknown) // 2]:.3f} | {area} | {parted.threshold:.3f} | {parted.accuracy:.2f} |"
        )
    for count in FEWER:
        few = [{**line, "uncertainty": {"gram": line["gram_by_samples"].get(str(count))}} for line in lines]
        values, missing = measured(few, "gram")
        if values:
            parted, area = best_threshold(values, missing), auroc_with_interval(values, missing)
            rows.append(
                f"| `gram`, first {count} samples | {len(values)} | | | {area} | {parted.threshold:.3f} | "
                f"{parted.accuracy:.2f} |"
            )
    seconds = sorted(line["seconds"] for line in lines)
    head = (
        "| estimator | questions | median U, answer in the prompt | median U, answer missing | AUROC | best δ | its "
        "accuracy |\n|---|---|---|---|---|---|---|\n"
    )
    return (
        f"{head}{chr(10).join(rows)}\n\nMedian {seconds[len(seconds) // 2]:.0f} s for all estimators of a question.\n"
    )


def plot(lines: Sequence[dict[str, Any]], file: Path) -> None:
    """The distributions of U, an estimator a panel."""
    import matplotlib  # noqa: PLC0415 - only where a plot is asked for

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(2, 4, figsize=(14, 6))
    for axis, estimator in zip(axes.flat, ESTIMATORS, strict=True):
        values, missing = measured(lines, estimator)
        if not values:
            axis.set_visible(False)
            continue
        parts = [[u for u, m in zip(values, missing, strict=True) if m == wanted] for wanted in (False, True)]
        axis.hist(parts, bins=14, label=["answer in the prompt", "answer missing"], color=["#4c72b0", "#dd8452"])
        axis.set(
            title=f"{estimator}, AUROC {best_threshold(values, missing).auroc:.2f}", xlabel="U", ylabel="questions"
        )
    axes.flat[0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(file, dpi=110)


def main() -> None:
    """Run, or read a run, and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--questions", type=int, default=80)
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--llm", default="embedded")
    parser.add_argument("--judge", default="embedded")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    if given.data is not None:
        asyncio.run(run(sampled(given.data, given.questions), given.llm, given.judge, given.samples, given.run))
    lines = read(given.run)
    text = report(lines)
    print(text)
    if given.write is not None:
        given.write.write_text(text, encoding="utf-8")
    if given.plot is not None:
        plot(lines, given.plot)


if __name__ == "__main__":
    main()
