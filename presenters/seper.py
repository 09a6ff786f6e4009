"""What people are shown of SePer."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..state.answer_text import normalised
from ..state.context import BaseContext
from ..state.seper import WITH, WITHOUT, Belief, SampledResponse, ScoredResponse, Side
from ..traces.recording import Recording
from ..traces.steps import Step, last_update
from . import vanilla_rag
from .blocks import Bar, Bars, Block, Cell, Row, Table, Words, answer_cell, num
from .presenter import Presenter, RetrievalStep, StepSummary, by_node, hidden
from .words import counted, shortened

SIDES: Mapping[Side, str] = {WITH: "with the chunks", WITHOUT: "without"}

BELIEFS = {"with_context": "With the chunks", "without_context": "Without the chunks"}

LONGEST_SOURCE = 40
"""Characters of the response that contributes most to a belief."""


def sample_responses(step: Step) -> StepSummary:
    """How many responses were sampled on each side; once done, the weight of each distinct answer."""
    responses: dict[Side, Sequence[SampledResponse]] = {}
    for run in step.ended:
        responses |= run.update["responses_by_side"]
    sides = [side for side in SIDES if side in responses]
    words = ", ".join(f"{counted(len(responses[side]), 'response')} {SIDES[side]}" for side in sides)
    if step.running:
        return StepSummary(words)
    weights: dict[str, dict[Side, float]] = {}
    first: dict[str, str] = {}
    for side in sides:
        for response in responses[side]:
            form = normalised(response["text"])
            first.setdefault(form, response["text"])
            by_side = weights.setdefault(form, {})
            by_side[side] = by_side.get(side, 0.0) + response["weight"]
    rows = [
        Row([*(_weight(weights[form].get(side)) for side in sides), answer_cell(first[form])])
        for form in sorted(weights, key=lambda form: -max(weights[form].values()))
    ]
    return StepSummary(words, [Table([*(SIDES[side] for side in sides), "response"], rows)])


def measure_seper(step: Step) -> StepSummary:
    """ΔSePer, and SePer of both sides with the response that contributes most."""
    return StepSummary(verdict(step.update), [_bars(step.update)])


def verdict(output: Mapping[str, Any]) -> str:
    """'ΔSePer +0.40: the belief in the right answer goes from 0.30 to 0.70'."""
    before, after = output["seper_without"], output["seper"]
    return f"ΔSePer {output['delta']:+.2f}: the belief in the right answer goes from {before:.2f} to {after:.2f}"


def outcome(output: Mapping[str, Any], settings: BaseContext) -> list[Block]:
    """ΔSePer in words."""
    return [Words(f"{verdict(output)}.", "good" if output["delta"] > 0 else "warn")]


def figures(recording: Recording) -> list[Block]:
    """The two beliefs; every response with its weight and entailments; the clusters."""
    result = last_update(recording.steps, "measure_seper")
    if "delta" not in result:
        return [Words("The run ended before anything was measured.")]
    answers: Sequence[str] = last_update(recording.steps, "prepare")["gold_answers"]
    note = f"ΔSePer {result['delta']:+.3f}: how much the chunks raise the belief in the right answer, from −1 to 1."
    blocks: list[Block] = [_bars(result, "SePer", note)]
    for key, title in BELIEFS.items():
        blocks.append(_responses(title, result[key], answers))
        if result[key]["clusters"]:
            blocks.append(_clusters(title, result[key], answers))
    return blocks


def _bars(result: Mapping[str, Any], title: str = "", note: str = "") -> Bars:
    bars = [Bar(name, result[key]["seper"], _belief_words(result[key])) for key, name in BELIEFS.items()]
    return Bars(title, bars, 1.0, "full belief", note)


def _belief_words(belief: Belief) -> str:
    """'0.700, most of it from: Ada'."""
    contributions = [response["weight"] * correctness(response, belief) for response in belief["responses"]]
    most = max(contributions)
    source = shortened(belief["responses"][contributions.index(most)]["text"], LONGEST_SOURCE)
    return f"{belief['seper']:.3f}" + (f", most of it from: {source}" if most else "")


def correctness(response: ScoredResponse, belief: Belief) -> float:
    """How far a response counts as right, 0 to 1: its highest entailment, or whether its cluster matches."""
    if response["cluster"] is not None:
        return float(any(belief["clusters"][response["cluster"]]["matches"]))
    return max([probability or 0.0 for probability in (*response["entails"], *response["entailed"])], default=0.0)


def _responses(title: str, belief: Belief, answers: Sequence[str]) -> Table:
    has_clusters, has_backward = bool(belief["clusters"]), any(r["entailed"] for r in belief["responses"])
    columns = ["weight", "response", *(["cluster"] if has_clusters else [])]
    for answer in answers:
        columns += [f"entails {answer}", *([f"entailed by {answer}"] if has_backward else [])]
    rows = []
    for response in sorted(belief["responses"], key=lambda response: -response["weight"]):
        weight = response["weight"]
        cells = [num(weight, f"{weight:.3f}", weight), answer_cell(response["text"])]
        cells += [Cell(str(response["cluster"]))] if has_clusters else []
        for position in range(len(answers)):
            cells.append(_probability(response["entails"][position]))
            cells += [_probability(response["entailed"][position])] if has_backward else []
        rows.append(Row(cells, marked=correctness(response, belief) >= 0.5))
    note = f"SePer {belief['seper']:.3f}. Marked: responses that count as right by a half or more."
    return Table(columns, rows, f"{title}: responses", note)


def _clusters(title: str, belief: Belief, answers: Sequence[str]) -> Table:
    rows = [
        Row(
            [
                Cell(str(number)),
                num(cluster["weight"], f"{cluster['weight']:.3f}", cluster["weight"]),
                answer_cell(cluster["first"]),
                *(Cell("matches" if match else "") for match in cluster["matches"]),
            ],
            marked=any(cluster["matches"]),
        )
        for number, cluster in enumerate(belief["clusters"])
    ]
    note = "The first response of a cluster represents it."
    return Table(["cluster", "weight", "first response", *answers], rows, f"{title}: semantic clusters", note)


def _probability(value: float | None) -> Cell:
    return Cell("?", tip="the judge could not label the pair") if value is None else num(value, f"{value:.2f}", value)


def _weight(weight: float | None) -> Cell:
    return Cell("", number=True) if weight is None else num(weight, f"{weight:.2f}")


def retrieved(recording: Recording) -> Iterator[RetrievalStep]:
    """The retrieved chunks, or those that the caller gave."""
    if evidence := last_update(recording.steps, "prepare").get("evidence"):
        yield RetrievalStep.whole("the given chunks", evidence)
    yield from vanilla_rag.retrieved(recording)


presenter = Presenter(
    name="SePer",
    purpose="Measure what passages are worth",
    when="You have right answers and want to know whether retrieval helps the model.",
    about="SePer measures how useful the chunks are: the model answers several times with them and several times "
    "without. SePer is its belief in the right answer, from 0 to 1: the weight of the responses that a judge finds to "
    "say the same. ΔSePer is the belief with the chunks minus the belief without.",
    steps=by_node(measure_seper) | {"retrieve": vanilla_rag.retrieve, "judge_responses": hidden},
    live_steps=by_node(sample_responses),
    figures=figures,
    outcome=outcome,
    retrieval_steps=retrieved,
)
