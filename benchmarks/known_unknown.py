"""Does uncertainty tell what a model knows from what it does not? Every estimator of SeaKR, of the same samples.

    python benchmarks/known_unknown.py --data DIR --run FILE.jsonl [--questions 80] [--samples 20] [--llm embedded] \
        [--judge nli:DIR] [--layers FOLDER]
    python benchmarks/known_unknown.py --answers RUN --run FILE.jsonl [--samples 20] [...]
    python benchmarks/known_unknown.py --run FILE.jsonl --write FILE.md --plot FILE.png

DIR holds squad_xquad_en/ with the English part of XQuAD. Half of the questions are shown with their own paragraph, the
other half with one of another article, so that both prompts are about as long. U is measured where SeaKR measures it:
at the first step. RUN: a run of `dubito eval` that has its passages; the evidence of its first system is shown, U is of
the prompt for the answer, and known is what the greedy answer gets right. FOLDER: the weights of the vLLM server's
model; with them U is measured by the hidden states of every layer, too. Every finished question is a line of the run
file; started again, it goes on with the questions that are missing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
from dubito.evals import run_folder
from dubito.evals.answers import f1
from dubito.evals.calibration import best_threshold
from dubito.evals.reliability import (
    auroc_interval,
    chance_calibration_error,
    confidences_from,
    expected_calibration_error,
    risk_coverage,
)
from dubito.evals.scores import RIGHT
from dubito.evals.store import Store
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
    Vectors,
)
from dubito.models.openai_chat import OpenAIChat
from dubito.nodes.uncertainty_estimators import ONE_LINE, ONE_SENTENCE, Prompt, continue_with_uncertainty
from dubito.prompts import answer, reasoning
from dubito.resources.opening import open_chat_model
from dubito.resources.resources import Resources
from dubito.state.records import Chunk
from dubito.state.seakr import NEEDS, Estimator, SeaKRContext
from dubito.uncertainty import eigen_score
from numpy.typing import NDArray
from scipy.stats import spearmanr
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModel, Cache

FEWER = (2, 5, 10, 15)
"""Of the samples, for U with fewer."""

TOGETHER = 5
"""Samples of about the same length that are read side by side."""

NAMES = (("answer in the prompt", "answer missing"), ("right", "wrong"))
"""What is known and what is not: of paragraphs, and of answers."""

ESTIMATORS: Sequence[Estimator] = get_args(Estimator)


class Asked(NamedTuple):
    """A question with its prompt. known: has the prompt the answer? None: it is known if the model answers right."""

    id: str
    answers: Sequence[str]
    known: bool | None
    prompt: Prompt


class EveryLayer(OpenAIChat):
    """A model on a vLLM server whose samples transformers reads, which shows all layers in one pass.

    states: of the last samples, at the last token of each: [layers, n, d].
    """

    states: NDArray[np.float32]

    def __init__(self, name: str, folder: Path) -> None:
        """folder: the served weights, perhaps in a wider type."""
        url, _, model = name.removeprefix("vllm:").partition("#")
        super().__init__(name, url, model or None)
        # not every processor multiplies numbers of 16 bits
        self.reader = AutoModel.from_pretrained(folder, dtype=torch.float32)

    @property
    def capabilities(self) -> frozenset[Capability]:
        """The server's, and hidden states."""
        return super().capabilities | {"hidden_states"}

    async def introspect(
        self, messages: Sequence[Message], sampling: Sampling, place: StatePlace = MIDDLE_LAYER
    ) -> Introspection:
        """The states of the middle layer."""
        reply, prompt, drawn = await self._draw(messages, sampling)
        self.states = await asyncio.to_thread(self.read, list(prompt), [list(sample.ids) for sample in drawn])
        middle = len(self.states) // 2
        return Introspection(reply, self.states[middle - 1], middle)

    @torch.inference_mode()
    def read(self, prompt: list[int], samples: list[list[int]]) -> NDArray[np.float32]:
        """The states [layers, n, d] at the end of each sample; the prompt and equal samples are read once."""
        start = self.reader(torch.tensor([prompt])).past_key_values
        distinct = sorted({tuple(ids) for ids in samples}, key=len)
        parts = [distinct[begin : begin + TOGETHER] for begin in range(0, len(distinct), TOGETHER)]
        ends = torch.cat([self.ends(deepcopy(start), part) for part in parts], dim=1)
        return ends[:, [distinct.index(tuple(ids)) for ids in samples]].numpy()

    def ends(self, cache: Cache, samples: Sequence[tuple[int, ...]]) -> torch.Tensor:
        """The states [layers, n, d] at the end of each sample. cache: of what comes before them."""
        before = cache.get_seq_length()
        cache.batch_repeat_interleave(len(samples))
        lengths = torch.tensor([len(ids) for ids in samples])
        tokens = pad_sequence([torch.tensor(ids) for ids in samples], batch_first=True)
        seen = torch.arange(before + tokens.shape[1])[None] < before + lengths[:, None]
        told = self.reader(tokens, attention_mask=seen.long(), cache=cache, output_hidden_states=True)
        return torch.stack([layer[torch.arange(len(samples)), lengths - 1] for layer in told.hidden_states[1:]])


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


def paragraphs(data: Path, count: int) -> list[Asked]:
    """The same questions of XQuAD in every run, every other one with the paragraph of another article."""
    articles = json.loads((data / "squad_xquad_en" / "xquad.en.json").read_text("utf-8"))["data"]
    every = [
        (number, paragraph["context"], qa)
        for number, article in enumerate(articles)
        for paragraph in article["paragraphs"]
        for qa in paragraph["qas"]
    ]
    drawn = random.Random(0).sample(every, count)
    found = []
    for place, (number, text, qa) in enumerate(drawn):
        known = place % 2 == 0
        # the paragraph of the next question that is of another article
        others = (other for article, other, _ in [*drawn[place:], *drawn[:place]] if article != number)
        chunk: Chunk = {"id": "c", "doc_id": "d", "title": "", "text": text if known else next(others)}
        messages = reasoning.step_messages(qa["question"], [chunk], [])
        prompt = Prompt(qa["question"], [chunk], [], messages, ONE_SENTENCE, 60)
        found.append(Asked(qa["id"], [one["text"] for one in qa["answers"]], known, prompt))
    return found


def answered(folder: Path) -> Iterator[Asked]:
    """The questions of a run with the evidence of its first system, in random order: a part of them is a fair one."""
    run = run_folder.read(folder)
    with Store(run.results) as store:
        outcomes = {outcome.question: outcome for outcome in store.outcomes() if outcome.system == run.systems[0].label}
    for question in random.Random(0).sample(run.questions, len(run.questions)):
        outcome = outcomes.get(question.id)
        if outcome is not None and outcome.output is not None:
            chunks = outcome.output["evidence"]
            messages = answer.messages(question.question, chunks)
            prompt = Prompt(question.question, chunks, [], messages, ONE_LINE, 64)
            yield Asked(question.id, question.answers, None, prompt)


async def run(questions: Sequence[Asked], llm: ChatModel, judge: str, samples: int, file: Path) -> None:
    """Measure what is missing from the run file."""
    done = {line["id"] for line in read(file)}
    model = Remembering(llm)
    resources = Resources(llm=model)
    usable = [one for one in ESTIMATORS if NEEDS[one] <= model.capabilities]
    for one in questions:
        if one.id in done:
            continue
        begun = time.perf_counter()
        found: dict[str, float | None] = {}
        for estimator in usable:
            settings = {"estimator": estimator, "judge": judge, "samples": samples, "max_step_tokens": 60}
            context = SeaKRContext.unchecked(settings)
            completion, estimate = await continue_with_uncertainty(one.prompt, context, resources)
            found[estimator] = estimate.uncertainty
        score = f1(answer.parse_or_empty(completion.text), one.answers)
        line = {
            "id": one.id,
            **({"f1": score} if one.known is None else {"known": one.known}),
            "said": completion.text,
            "answer": one.answers[0],
            "seconds": time.perf_counter() - begun,
            "uncertainty": found,
            "gram_by_samples": by_samples(model, samples),
            **({"gram_by_layer": by_layer(model, llm, samples)} if isinstance(llm, EveryLayer) else {}),
        }
        with file.open("a", encoding="utf-8") as out:
            out.write(json.dumps(line, ensure_ascii=False) + "\n")
        model.kept.clear()
        print(
            f"{line['seconds']:5.1f} s  {'known  ' if is_known(line) else 'unknown'}  U {found.get('gram')}", flush=True
        )


def is_known(line: dict[str, Any]) -> bool:
    """Was the answer in the prompt, or is it right?"""
    return line["f1"] >= RIGHT if "f1" in line else bool(line["known"])


def by_samples(model: Remembering, samples: int) -> dict[int, float | None]:
    """U by gram of the first few of the samples that were drawn."""
    seen, rows = sampled(model, samples)
    few = {count: [row for row in rows if row < count] for count in FEWER if count <= samples}
    return {count: u_of(seen.states, some) for count, some in few.items()}


def by_layer(model: Remembering, engine: EveryLayer, samples: int) -> dict[int, float | None]:
    """U by gram at each layer."""
    _, rows = sampled(model, samples)
    return {layer: u_of(states, rows) for layer, states in enumerate(engine.states, 1)}


def sampled(model: Remembering, samples: int) -> tuple[Introspection, list[int]]:
    """What was sampled for the last question, and which samples are not empty."""
    (seen,) = (one for one in model.kept.values() if len(one.states) == samples)
    return seen, [row for row, one in enumerate(seen.reply.completions) if one.text.strip()]


def u_of(states: Vectors, rows: Sequence[int]) -> float | None:
    """U of some of the samples; None of fewer than two."""
    return eigen_score(np.asarray(states)[rows]) if len(rows) > 1 else None


def read(file: Path) -> list[dict[str, Any]]:
    """The finished questions."""
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []


def measured(lines: Sequence[dict[str, Any]], estimator: str) -> tuple[list[float], list[bool]]:
    """U of every question where it is known, and whether the answer was missing from the prompt."""
    pairs = [
        (line["uncertainty"][estimator], not is_known(line))
        for line in lines
        if line["uncertainty"].get(estimator) is not None
    ]
    return [u for u, _ in pairs], [missing for _, missing in pairs]


def auroc_with_interval(values: Sequence[float], missing: Sequence[bool]) -> str:
    """The AUROC with its 95 % interval."""
    area, unknown = best_threshold(values, missing).auroc, sum(missing)
    low, high = auroc_interval(area, len(missing) - unknown, unknown)
    return f"{area:.2f} ({low:.2f} to {high:.2f})"


def quality(lines: Sequence[dict[str, Any]]) -> Iterator[str]:
    """AURC and ECE of each estimator's U of answers, as reports of `dubito eval` have them."""
    yield "| estimator | AURC, without signal | ECE, by chance |\n|---|---|---|"
    for estimator in ESTIMATORS:
        some = [line for line in lines if line["uncertainty"].get(estimator) is not None]
        if some:
            values, wrong = measured(some, estimator)
            right, risks = [not one for one in wrong], [1 - line["f1"] for line in some]
            confidences = confidences_from(values, right, seed=0)
            low, high = chance_calibration_error(confidences, seed=0)
            error = expected_calibration_error(confidences, right)
            yield (
                f"| `{estimator}` | {risk_coverage(values, risks).aurc:.2f}, {np.mean(risks):.2f} | "
                f"{error:.2f} ({low:.2f} to {high:.2f}) |"
            )


def agreement_of_layers(lines: Sequence[dict[str, Any]]) -> str:
    """How alike U by gram ranks the questions at any two layers."""
    by_layer = [list(line["gram_by_layer"].values()) for line in lines if "gram_by_layer" in line]
    ranks = spearmanr([row for row in by_layer if None not in row]).statistic
    return f"Lowest rank correlation of U at two layers: {ranks.min():.3f}.\n"


def report(lines: Sequence[dict[str, Any]]) -> str:
    """The table as Markdown; of answers, a second one."""
    rows = []
    for estimator in ESTIMATORS:
        values, missing = measured(lines, estimator)
        if not values:
            continue
        low = sorted(u for u, m in zip(values, missing, strict=True) if not m)
        high = sorted(u for u, m in zip(values, missing, strict=True) if m)
        parted, area = best_threshold(values, missing), auroc_with_interval(values, missing)
        rows.append(
            f"| `{estimator}` | {len(low)} + {len(high)} | {low[len(low) // 2]:.3f} | "
            f"{high[len(high) // 2]:.3f} | {area} | {parted.threshold:.3f} | {parted.accuracy:.2f} |"
        )
    variants = [("gram_by_samples", count, f"first {count} samples") for count in FEWER]
    layers = sorted({int(layer) for line in lines for layer in line.get("gram_by_layer", {})})
    variants += [("gram_by_layer", layer, f"layer {layer}") for layer in layers]
    for key, value, name in variants:
        some = [{**line, "uncertainty": {"gram": line[key].get(str(value))}} for line in lines if key in line]
        values, missing = measured(some, "gram")
        if values:
            parted, area = best_threshold(values, missing), auroc_with_interval(values, missing)
            rows.append(
                f"| `gram`, {name} | {len(values)} | | | {area} | {parted.threshold:.3f} | {parted.accuracy:.2f} |"
            )
    seconds = sorted(line["seconds"] for line in lines)
    known, unknown = NAMES["f1" in lines[0]]
    head = (
        f"| estimator | questions | median U, {known} | median U, {unknown} | AUROC | best δ | its accuracy |\n"
        "|---|---|---|---|---|---|---|\n"
    )
    more = "\n".join(["", *quality(lines), ""]) if "f1" in lines[0] else ""
    more += f"\n{agreement_of_layers(lines)}" if layers else ""
    cost = f"Median {seconds[len(seconds) // 2]:.0f} s for all estimators of a question."
    return f"{head}{chr(10).join(rows)}\n{more}\n{cost}\n"


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
        axis.hist(parts, bins=14, label=NAMES["f1" in lines[0]], color=["#4c72b0", "#dd8452"])
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
    parser.add_argument("--answers", type=Path)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--questions", type=int, default=80)
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--llm", default="embedded")
    parser.add_argument("--judge", default="embedded")
    parser.add_argument("--layers", type=Path, metavar="FOLDER")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    if given.layers and not given.llm.startswith("vllm:"):
        parser.error("--layers reads what a server sampled: name it in --llm, as in vllm:URL#model.")
    if given.data is not None or given.answers is not None:
        questions = paragraphs(given.data, given.questions) if given.data else list(answered(given.answers))
        llm = EveryLayer(given.llm, given.layers) if given.layers else open_chat_model(given.llm)
        asyncio.run(run(questions, llm, given.judge, given.samples, given.run))
    lines = read(given.run)
    text = report(lines)
    print(text)
    if given.write is not None:
        given.write.write_text(text, encoding="utf-8")
    if given.plot is not None:
        plot(lines, given.plot)


if __name__ == "__main__":
    main()
