"""Does ΔSePer of a passage go along with what the passage is worth? Pearson's correlation, as in SePer's Table 2.

A passage that supports the answer is worth 1 / (the number of those that do), every other one nothing. Other metrics
are reckoned from the same responses (`dubito.evals.utility`).

    python benchmarks/passage_utility.py --run FILE.jsonl --dataset hotpotqa:dev.json [--dataset ...] [--limit 1000]
        [--others N] [--llm NAME] [--judge NAME] [--encoder NAME] [--samples 10] [--max-answer-tokens 512]
        [--bertscore MODEL:LAYER] [--at-once 8]
    python benchmarks/passage_utility.py --run FILE.jsonl [--known 0.5] [--against OTHER.jsonl]

The first line measures what FILE.jsonl does not have yet, and both print the table. N: passages that support nothing,
at most so many a question; without it all. The paper leaves out the questions of Natural Questions, MS MARCO and SQuAD
that the model answers by itself, and does not say how it tells them: with --known 0.5 those whose belief without a
passage is at least 0.5. OTHER.jsonl: the same passages by another judge; the table then has the questions of both
files, and rows how much higher the correlations of ΔSePer are than the other judge's. FILE.jsonl has no passages.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from dubito.errors import ContextOverflow, UserFault
from dubito.evals.datasets import load_dataset, sample
from dubito.evals.questions import GoldQuestion
from dubito.evals.runner import resources_with_memory
from dubito.evals.seper import Piece, SePerResult, measure_pieces
from dubito.evals.utility import utilities
from dubito.models.bert_score import BertScorer
from dubito.resources.call_cache import CallMemory
from dubito.state.records import Chunk
from dubito.state.seper import Belief, SePerContext

NAMES = {
    "seper_soft": "ΔSePer, soft",
    "seper_hard": "ΔSePer, hard",
    "seper_union": "ΔSePer, hard, union of the right answers",
    "exact_match": "exact match",
    "rouge_l": "ROUGE-L",
    "bleu": "BLEU",
    "similarity": "BERTScore",
    "perplexity": "perplexity",
    "entropy": "entropy",
    "semantic_entropy": "semantic entropy",
}
JUDGED = ("seper_soft", "seper_hard")
"""The metrics that are compared with those of another judge."""
RESAMPLES = 2000


class Passage(NamedTuple):
    """A passage that was measured. known: the belief in the right answer without it; utility: by metric."""

    dataset: str
    question: str
    worth: float
    known: float
    utility: dict[str, float]


def passages_of(question: GoldQuestion, others: int | None) -> list[tuple[Chunk, float]]:
    """The question's passages with what they are worth, at most `others` of those that support nothing."""
    gold = [one for one in question.documents if one.id in question.gold_documents]
    rest = [one for one in question.documents if one.id not in question.gold_documents][:others]
    return [
        ({"id": one.id, "doc_id": one.id, "title": one.title, "text": one.text}, 1 / len(gold) if one in gold else 0.0)
        for one in [*gold, *rest]
    ]


def union(belief: Belief) -> float:
    """The belief in any of the right answers."""
    return sum(cluster["weight"] for cluster in belief["clusters"] if any(cluster["matches"]))


async def similarities_of(
    results: Sequence[SePerResult | ContextOverflow], pieces: Sequence[Piece], scorer: BertScorer | None
) -> dict[tuple[str, str], float]:
    """BERTScore's F1 of each response with each right answer; empty without a scorer."""
    pairs = {
        (response["text"], answer): None
        for found, piece in zip(results, pieces, strict=True)
        if isinstance(found, SePerResult)
        for side in (found.with_context, found.without_context)
        for response in side["responses"]
        for answer in piece.answers
    }
    return dict(zip(pairs, await scorer.f1(list(pairs)), strict=True)) if scorer else {}


def best(answers: Sequence[str], similarities: Mapping[tuple[str, str], float], response: str) -> float:
    """A response's similarity to the right answer that it is most like."""
    return max(similarities[response, answer] for answer in answers)


async def measure(
    dataset: str, questions: Sequence[GoldQuestion], context: SePerContext, given: argparse.Namespace
) -> None:
    """Append the passages of these questions to the file, some questions at a time."""
    scorer = None
    if given.bertscore:
        model, _, layer = given.bertscore.rpartition(":")
        scorer = BertScorer(model, int(layer))
    resources = resources_with_memory(CallMemory(given.run.with_suffix(".calls.sqlite")), seed=0)
    for begin in range(0, len(questions), given.at_once):
        some = questions[begin : begin + given.at_once]
        pieces, worth, asked = [], [], []
        for question in some:
            for chunk, value in passages_of(question, given.others):
                pieces.append(Piece(question.question, question.answers, (chunk,)))
                worth.append(value)
                asked.append(question)
        lines = []
        results = await measure_pieces(pieces, context, resources)
        similarities = await similarities_of(results, pieces, scorer)
        for found, value, question in zip(results, worth, asked, strict=True):
            if isinstance(found, SePerResult):
                gain = union(found.with_context) - union(found.without_context)
                similarity = partial(best, question.answers, similarities) if similarities else None
                utility = {**utilities(found, question, similarity), "seper_union": gain}
                passage = Passage(dataset, question.id, value, found.seper_without, utility)
                lines.append(json.dumps(passage._asdict()))
        with given.run.open("a", encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in lines))
        print(f"{dataset}: {begin + len(some)} of {len(questions)} questions", flush=True)


def read(file: Path) -> list[Passage]:
    """The passages that were measured. A line that was cut off is removed."""
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.exists() else []
    if lines and not lines[-1].endswith("\n"):
        file.write_text("".join(lines[:-1]), encoding="utf-8")
    try:
        return [Passage(**json.loads(line)) for line in lines if line.endswith("\n")]
    except (TypeError, ValueError) as fault:
        raise UserFault(f"{file} has no passages that this benchmark measured: name another file.") from fault


def table(passages: Sequence[Passage]) -> Iterator[str]:
    """Pearson's correlation by metric and dataset, with 95 % intervals from questions drawn anew."""
    datasets = dict.fromkeys(one.dataset for one in passages)
    columns = {dataset: [one for one in passages if one.dataset == dataset] for dataset in datasets}
    if len(columns) > 1:
        columns["all"] = list(passages)
    by_question = {name: list(_grouped(column).values()) for name, column in columns.items()}
    yield f"| metric | {' | '.join(columns)} |"
    yield "|---" * (1 + len(columns)) + "|"
    counts = [f"{len(groups)}, {sum(map(len, groups))}" for groups in by_question.values()]
    yield f"| questions, passages | {' | '.join(counts)} |"
    known = [f"{fmean(group[0].known for group in groups):.2f}" for groups in by_question.values()]
    yield f"| belief without a passage | {' | '.join(known)} |"
    for metric, name in NAMES.items():
        if any(metric in one.utility for one in passages):
            yield f"| {name} | {' | '.join(_cell(metric, groups) for groups in by_question.values())} |"


def _grouped(passages: Sequence[Passage]) -> dict[tuple[str, str], list[Passage]]:
    groups: dict[tuple[str, str], list[Passage]] = {}
    for one in passages:
        groups.setdefault((one.dataset, one.question), []).append(one)
    return groups


def _cell(metric: str, groups: Sequence[Sequence[Passage]]) -> str:
    pairs = [
        np.array([(one.utility[metric], one.worth) for one in group if metric in one.utility]).reshape(-1, 2)
        for group in groups
    ]
    return with_interval(pairs, correlation)


def with_interval(groups: Sequence[Any], statistic: Callable[[Any], float]) -> str:
    """A statistic of all rows, and its 95 % interval from groups drawn anew."""
    rng = np.random.default_rng(0)
    drawn = [
        statistic(np.concatenate([groups[place] for place in rng.integers(len(groups), size=len(groups))]))
        for _ in range(RESAMPLES)
    ]
    low, high = np.nanquantile(drawn, [0.025, 0.975])
    return f"{statistic(np.concatenate(groups)):z.2f} ({low:z.2f} to {high:z.2f})"


def of_both(
    passages: Sequence[Passage], others: Sequence[Passage]
) -> dict[tuple[str, str], tuple[list[Passage], list[Passage]]]:
    """The passages of the questions that two judges have, by question."""
    ours, theirs = _grouped(passages), _grouped(others)
    both = {key: (ours[key], theirs[key]) for key in ours if key in theirs}
    return {key: pair for key, pair in both.items() if [one.worth for one in pair[0]] == [one.worth for one in pair[1]]}


def above(both: Mapping[tuple[str, str], tuple[Sequence[Passage], Sequence[Passage]]], metric: str) -> str:
    """How much higher a metric's correlation is than with the other judge, for each dataset and for all."""
    columns = {
        key: np.array([(a.utility[metric], b.utility[metric], a.worth) for a, b in zip(*pair, strict=True)])
        for key, pair in both.items()
    }
    names = dict.fromkeys(dataset for dataset, _ in columns)
    groups = [[rows for (dataset, _), rows in columns.items() if dataset == name] for name in names]
    if len(groups) > 1:
        groups.append(list(columns.values()))
    cells = (with_interval(each, difference) for each in groups)
    return f"| {NAMES[metric]}, above the other judge | {' | '.join(cells)} |"


def difference(rows: Any) -> float:  # noqa: ANN401 - [n, 3]
    """Pearson's correlation of the first and the last column, less that of the second and the last."""
    return correlation(rows[:, [0, 2]]) - correlation(rows[:, [1, 2]])


def correlation(rows: Any) -> float:  # noqa: ANN401 - [n, 2]
    """Pearson's correlation of two columns; NaN if one is constant."""
    if len(rows) < 2 or not rows.std(axis=0).all():
        return float("nan")
    return float(np.corrcoef(rows.T)[0, 1])


def main() -> None:
    """Measure what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--dataset", action="append", default=[])
    parser.add_argument("--limit", type=int, default=1000)
    parser.add_argument("--others", type=int)
    parser.add_argument("--llm")
    parser.add_argument("--judge")
    parser.add_argument("--encoder", help="of the judge `embedded`")
    parser.add_argument("--samples", type=int, default=10)
    parser.add_argument("--max-answer-tokens", type=int, default=512)
    parser.add_argument("--bertscore", metavar="MODEL:LAYER")
    parser.add_argument("--at-once", type=int, default=8, help="questions")
    parser.add_argument("--against", type=Path, metavar="OTHER.jsonl")
    parser.add_argument("--known", type=float, default=float("inf"))
    given = parser.parse_args()
    named = {name: value for name in ("llm", "judge", "encoder") if (value := getattr(given, name)) is not None}
    # with the hard rule both are known: the responses' entailments, and their clusters
    context = SePerContext(
        preset="paper",
        rule="hard",
        samples=given.samples,
        max_answer_tokens=given.max_answer_tokens,
        concurrency=64,
        **named,
    )
    try:
        for dataset in given.dataset:
            kind = dataset.partition(":")[0]
            done = {one.question for one in read(given.run) if one.dataset == kind}
            answerable = [one for one in load_dataset(dataset).questions if one.answerable and one.gold_documents]
            asked = [one for one in sample(answerable, given.limit) if one.id not in done]
            asyncio.run(measure(kind, asked, context, given))
        print("\n".join(shown(given.run, given.against, given.known)))
    except UserFault as fault:
        parser.error(str(fault))


def shown(run: Path, against: Path | None, known: float) -> Iterator[str]:
    """The table of a file, and its comparison with another judge's."""
    for file in filter(None, (run, against)):
        if not file.exists():
            raise UserFault(f"There is no file {file}: measure it first, with --dataset.")
    passages = [one for one in read(run) if one.known < known]
    if against is None:
        yield from table(passages)
        return
    both = of_both(passages, read(against))
    if not both:
        raise UserFault(f"{run} and {against} have no question in common.")
    yield from table([one for ours, _ in both.values() for one in ours])
    yield from (above(both, metric) for metric in JUDGED)


if __name__ == "__main__":
    main()
