"""How well do the entailment judges tell entailment, on sentences and on short answers to one question?

Sentences: SNLI, MultiNLI and SICK, entailment against the rest. Half of them choose the threshold and the slope of the
similarity judge; all figures are of the other half. Short answers: EVOUNA, what a question-answering system said
against the golden answers, with a human judgement of whether it was right. Answers that are equal to a golden one but
for case, articles and punctuation are left out: no graph asks a judge about those.

    DUBITO_TEST_DATA=DIR python benchmarks/judges.py [--nli FOLDER] [--pairs 600] [--llm NAME] [--write FILE]

DIR holds data/nli and data/evouna; FOLDER, by default DIR/models/nli-minilm, is the cross-encoder.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from dubito.benchmarks.evouna import SETS, judged_answers
from dubito.models import cross_encoder
from dubito.models.cross_encoder import CrossEncoderJudge
from dubito.models.encoders import SentenceTransformersEncoder
from dubito.models.interfaces import Encoder, Judge, Judgements
from dubito.models.judgement_cache import RememberingJudge
from dubito.models.judges import CalibratedJudge, LLMJudge, SimilarityJudge
from dubito.models.weights import minilm_folder
from dubito.resources.opening import open_chat_model
from dubito.state.answer_text import normalised
from numpy.typing import NDArray

SEED = 0
MOST_GOLDEN = 6
AT_ONCE = 8
CHAT_PAIRS = 100
"""Pairs of each set that chat models judge."""
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Example:
    """Does `said` entail one of `wanted`, as answers to `question`? In NLI there is one, and no question."""

    question: str
    said: str
    wanted: tuple[str, ...]
    entailed: bool


# --- data ---


def nli(folder: Path, name: str) -> list[Example]:
    """SNLI, MultiNLI or SICK."""
    if name == "SICK":
        rows = [line.split("\t") for line in (folder / "SICK_test_annotated.txt").read_text().splitlines()[1:]]
        return [Example("", row[1], (row[2],), row[4] == "ENTAILMENT") for row in rows]
    records = [json.loads(line) for line in (folder / f"{name.lower()}_dev.jsonl").read_text().splitlines()]
    return [Example("", r["premise"], (r["hypothesis"],), r["label"] == "entailment") for r in records]


def evouna(folder: Path, systems: Sequence[str]) -> list[Example]:
    """What these systems answered to Natural Questions and TriviaQA."""
    return [
        Example(one.question, one.said, one.golds[:MOST_GOLDEN], one.right)
        for name in SETS
        for one in judged_answers(folder, name)
        if one.system in systems and normalised(one.said) not in map(normalised, one.golds)
    ]


def read(data: Path, size: int) -> tuple[list[Example], dict[str, list[Example]]]:
    """The pairs that choose the similarity judge's threshold, and those that are judged, by their name."""
    calibration: list[Example] = []
    held: dict[str, list[Example]] = {}
    for name in ("SNLI", "MNLI", "SICK"):
        examples = sample(nli(data / "nli", name), size)
        calibration += examples[: size // 2]
        held[name] = examples[size // 2 :]
    held["short answers"] = sample(evouna(data / "evouna", ["fid"]), size // 2)
    held["sentences as answers"] = sample(evouna(data / "evouna", ["gpt35", "chatgpt", "gpt4", "newbing"]), size // 2)
    return calibration, held


def sample(examples: list[Example], size: int) -> list[Example]:
    """A random part of at most that size, the same in every run."""
    return random.Random(SEED).sample(examples, min(size, len(examples)))


# --- scores: the higher, the more likely it is that `said` entails one of `wanted` ---


async def cosines(encoder: Encoder, examples: Sequence[Example], *, question: bool) -> Numbers:
    """The highest cosine of what was said with what was wanted, alone or with the question before both."""

    def text(example: Example, answer: str) -> str:
        return f"{example.question} {answer}" if question else answer

    texts = list(dict.fromkeys(text(e, answer) for e in examples for answer in (e.said, *e.wanted)))
    vectors = dict(zip(texts, await encoder.embed(texts), strict=True))
    return np.array([max(float(vectors[text(e, e.said)] @ vectors[text(e, w)]) for w in e.wanted) for e in examples])


async def entailment(judge: Judge, examples: Sequence[Example]) -> Numbers:
    """The highest P(entailment), or 0 where the judge could not say; 0.5 is where a decision falls."""
    at_once = asyncio.Semaphore(AT_ONCE)

    async def judged(example: Example) -> Judgements:
        async with at_once:
            pairs = [(example.said, wanted) for wanted in example.wanted]
            return np.nan_to_num(await judge.judge(example.question, pairs))

    rows = await asyncio.gather(*map(judged, examples))
    # what decides is the likeliest label: entailment is that, or it loses against the larger of the others
    return np.array([max(p / (p + max(n, c)) if p else 0.0 for p, n, c in row) for row in rows])


# --- figures ---


def auroc(scores: Numbers, labels: NDArray[np.bool_]) -> float:
    """The chance that an entailed example scores higher than another one, ties counting half."""
    difference = scores[labels][:, None] - scores[~labels][None, :]
    return float(((difference > 0) + 0.5 * (difference == 0)).mean())


def balanced_accuracy(decided: NDArray[np.bool_], labels: NDArray[np.bool_]) -> float:
    """The mean of the shares of entailed and of other examples that were decided rightly."""
    return float((decided[labels].mean() + (~decided[~labels]).mean()) / 2)


def f1(decided: NDArray[np.bool_], labels: NDArray[np.bool_]) -> float:
    """F1 of entailment."""
    right = (decided & labels).sum()
    return float(2 * right / (decided.sum() + labels.sum()))


def best_threshold(scores: Numbers, labels: NDArray[np.bool_]) -> float:
    """The threshold, a multiple of 0.01, of the highest balanced accuracy; the middle one of equals."""
    grid = np.arange(1, 100) / 100
    accuracies = np.array([balanced_accuracy(scores >= threshold, labels) for threshold in grid])
    best = grid[accuracies >= accuracies.max() - 1e-12]
    return float(best[len(best) // 2])


def best_slope(scores: Numbers, labels: NDArray[np.bool_], threshold: float) -> float:
    """The slope of the highest likelihood around that threshold, both labels weighing the same."""
    weights = np.where(labels, 0.5 / labels.sum(), 0.5 / (~labels).sum())
    signed = np.where(labels, 1, -1) * (scores - threshold)
    grid = np.arange(1, 101) / 2
    return float(min(grid, key=lambda slope: (weights * np.logaddexp(0, -slope * signed)).sum()))


def row(name: str, judge: str, scores: Numbers, labels: NDArray[np.bool_], threshold: float) -> str:
    """One line of the table."""
    decided = scores >= threshold
    best = balanced_accuracy(scores >= best_threshold(scores, labels), labels)
    figures = [
        auroc(scores, labels),
        (decided == labels).mean(),
        balanced_accuracy(decided, labels),
        f1(decided, labels),
    ]
    shown = " | ".join(f"{figure:.2f}" for figure in [*figures, best])
    return f"| {name} | {len(labels)} ({labels.mean():.0%}) | {judge} | {shown} |"


async def batch_speeds(judge: CrossEncoderJudge, examples: Sequence[Example]) -> list[str]:
    """Pairs a second by batch size: the best of three interleaved runs."""
    pairs = [(e.said, e.wanted[0]) for e in examples]
    seconds: dict[int, list[float]] = {size: [] for size in (8, 16, 32, 64, 128)}
    usual = cross_encoder.BATCH
    try:
        for _ in range(3):
            for size, times in seconds.items():
                cross_encoder.BATCH = size
                start = time.perf_counter()
                await judge.judge("", pairs)
                times.append(time.perf_counter() - start)
    finally:
        cross_encoder.BATCH = usual
    return [f"| {size} | {len(pairs) / min(times):.0f} |" for size, times in seconds.items()]


async def chat_rows(held: Mapping[str, Sequence[Example]], others: Sequence[Judge], llms: Sequence[str]) -> list[str]:
    """The lines of chat models as judges and of the other judges, on the same first pairs of each set."""
    judges = [*others]
    for name in llms:
        plain = RememberingJudge(LLMJudge(f"llm {name}", open_chat_model(name)), group=1)
        judges += [plain, CalibratedJudge(f"llm:calibrated {name}", plain)]
    rows = []
    for name, examples in held.items():
        few = [Example(e.question, e.said, e.wanted[:1], e.entailed) for e in examples[:CHAT_PAIRS]]
        for judge in judges:
            rows.append(row(name, judge.name, await entailment(judge, few), truth(few), 0.5))
            print(rows[-1], flush=True)
    return rows


async def page(data: Path, source: Path, size: int, llms: Sequence[str]) -> str:
    """Everything measured, as Markdown."""
    encoder = SentenceTransformersEncoder("embedded", str(minilm_folder()))
    judge = CrossEncoderJudge(f"nli:{source.name}", str(source))
    calibration, held = read(data / "data", size)
    scores, labels = await cosines(encoder, calibration, question=False), truth(calibration)
    threshold = best_threshold(scores, labels)
    slope = best_slope(scores, labels, threshold)
    rows = []
    for name, examples in held.items():
        labels = truth(examples)
        rows.append(row(name, "similarity", await cosines(encoder, examples, question=False), labels, threshold))
        if examples[0].question:
            with_question = await cosines(encoder, examples, question=True)
            rows.append(row(name, "similarity, question and answer", with_question, labels, threshold))
        rows.append(row(name, judge.name, await entailment(judge, examples), labels, 0.5))
        if examples[0].question:
            bare = [Example("", e.said, e.wanted, e.entailed) for e in examples]
            rows.append(row(name, f"{judge.name}, answers alone", await entailment(judge, bare), labels, 0.5))
    speeds = await batch_speeds(judge, held["SNLI"])
    return PAGE.format(
        command="DUBITO_TEST_DATA=DIR python benchmarks/judges.py" + "".join(f" --llm {llm}" for llm in llms),
        threshold=threshold,
        slope=slope,
        rows="\n".join(rows),
        chat_rows="\n".join(await chat_rows(held, [SimilarityJudge("similarity", encoder), judge], llms)),
        speeds="\n".join(speeds),
        calibration=len(calibration),
    )


def truth(examples: Sequence[Example]) -> NDArray[np.bool_]:
    """Which examples are entailed."""
    return np.array([example.entailed for example in examples])


def main() -> None:
    """Measure, print, and write where asked."""
    data = Path(os.environ.get("DUBITO_TEST_DATA", "."))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nli", type=Path, default=data / "models" / "nli-minilm")
    parser.add_argument("--pairs", type=int, default=1000, help="of each data set, half of them for the threshold")
    parser.add_argument("--llm", action="append", default=[], help="a chat model to judge a part of each set")
    parser.add_argument("--write", type=Path)
    arguments = parser.parse_args()
    if not (data / "data" / "nli").is_dir():
        parser.error("set DUBITO_TEST_DATA to the folder that holds data/nli and data/evouna")
    measured = asyncio.run(page(data, arguments.nli, arguments.pairs, arguments.llm))
    print(measured)
    if arguments.write:
        arguments.write.write_text(measured, encoding="utf-8")


PAGE = """# How well do the entailment judges judge?

    {command}

*Similarity* is the judge `embedded` with all-MiniLM-L6-v2: entailment iff the cosine of the two answers is at least
T = {threshold:.2f}, P(entailment) = 1 / (1 + exp(-{slope} (cosine - T))). T has the highest balanced accuracy and the
slope around it the highest likelihood on {calibration:,} pairs of SNLI, MultiNLI and SICK, a third each; no figure
below is of those pairs. *nli-minilm* is a test model of 22 M parameters, trained on the development sets of SNLI and
MultiNLI: its figures on those two say nothing. SICK and the answers are new to it.

- *SNLI, MNLI, SICK*: premise and hypothesis; entailment against the rest. There is no question.
- *Short answers*: EVOUNA (Natural Questions and TriviaQA), what the reader FiD answered against the golden answers
  (the first six, the best counts), where the answer equals none of them but for case, articles and punctuation. True
  where a human called the answer right.
- *Sentences as answers*: the same for four chat systems, which answer in sentences.
- Accuracy, balanced accuracy and F1 are of the decision that a graph would see: the likeliest label. *Best threshold*
  is the balanced accuracy of the best one for this very set, for comparison only.

| data | pairs (entailed) | judge | AUROC | accuracy | balanced accuracy | F1 | balanced, best threshold |
|---|---|---|---|---|---|---|---|
{rows}

What follows from it:

- The answers are embedded without the question. With it all pairs are similar, and telling them apart is harder.
- Between short answers the T that was chosen on sentences is close to the best one. Between a short answer and a
  sentence it is not: cosines are low there even where both say the same.
- Similarity is symmetric and does not see negation. On sentences that nli-minilm did not learn from (SICK), even that
  small cross-encoder decides better; on short answers it does not. The question before both answers, as semantic
  entropy and SePer have it, changes little with answers that are sentences and costs it much with short ones. Whether
  that holds for a cross-encoder of full size was not measured.

## Chat models as judges

The first 100 of the same pairs, of short answers and sentences each with the first golden answer only.
*llm:calibrated* divides the chat model's probabilities by those for a pair that says nothing.

| data | pairs (entailed) | judge | AUROC | accuracy | balanced accuracy | F1 | balanced, best threshold |
|---|---|---|---|---|---|---|---|
{chat_rows}

## Batch size of the cross-encoder

Pairs a second on two cores, SNLI sentences sorted by length; the best of three interleaved runs.

| batch | pairs per second |
|---|---|
{speeds}
"""

if __name__ == "__main__":
    main()
