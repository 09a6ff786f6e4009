"""What people are shown of a cascade."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..state.context import BaseContext
from ..state.escalate import RUNGS, Rung
from ..traces.recording import Recording
from ..traces.steps import Step, updates
from .blocks import Block, Cell, Row, Table, Words, num
from .presenter import Presenter, RetrievalStep, StepSummary, by_node, warnings
from .words import NO_ANSWER, figure


def rung(step: Step) -> StepSummary:
    """The rung's answer; its steps say how it came about."""
    if step.update.get("failure"):
        return StepSummary("failed")
    return StepSummary(step.update.get("answer") or NO_ANSWER)


def assess(step: Step) -> StepSummary:
    """Whether the rung answers."""
    (tried,) = step.update["tried"]
    return StepSummary(verdict(tried), warnings(step))


def conclude(step: Step) -> StepSummary:
    """Whether the cascade answers."""
    update = step.update
    if update["abstained"]:
        return StepSummary("the answer is withheld: no rung is certain enough")
    return StepSummary(f"the answer of the last rung: {update['answer']}")


def verdict(tried: Rung) -> str:
    """'vanilla_rag: 0.20, at most 0.50: certain'."""
    if tried["failure"]:
        return f"{tried['graph']} failed: {tried['failure']}"
    if tried["uncertainty"] is None:
        return f"{tried['graph']}: its uncertainty is unknown"
    uncertainty, threshold = figure(tried["uncertainty"]), figure(tried["threshold"])
    if tried["certain"]:
        return f"{tried['graph']}: {uncertainty} is at most {threshold}: certain enough"
    return f"{tried['graph']}: {uncertainty} is above {threshold}: not certain enough"


def outcome(output: Mapping[str, Any], settings: BaseContext) -> Sequence[Block]:
    """The rungs, what they cost, and the answer that is withheld."""
    table = _table(output["tried"])
    if output["certificate"] or not output["abstained"]:
        return [table]
    withheld = output["withheld_answer"] or NO_ANSWER
    return [table, Words(f"No rung is certain enough. The answer that is withheld: {withheld}", "warn")]


def _table(tried: Sequence[Rung]) -> Table:
    rows = [
        Row(
            [
                Cell(one["graph"]),
                Cell(one["answer"] or NO_ANSWER),
                Cell("unknown", tone="dim") if one["uncertainty"] is None else num(one["uncertainty"]),
                num(one["threshold"]),
                num(one["tokens"], f"{one['tokens']:,}"),
            ],
            marked=one["certain"],
        )
        for one in tried
    ]
    return Table(["rung", "answer", "uncertainty", "certain up to", "tokens"], rows)


def figures(recording: Recording) -> Sequence[Block]:
    """The rungs."""
    tried = [rung for update in updates(recording.steps, "assess") for rung in update["tried"]]
    return [_table(tried)] if tried else [Words("The run ended before a rung was assessed.")]


def retrieved(recording: Recording) -> Iterator[RetrievalStep]:
    """What each rung found."""
    for step in recording.steps:
        if step.node in RUNGS and step.update.get("evidence"):
            yield RetrievalStep.whole(step.node, step.update["evidence"])


def why(output: Mapping[str, Any]) -> str:
    """The verdict on every rung."""
    return f"{'; '.join(map(verdict, output['tried']))}."


presenter = Presenter(
    name="Escalate",
    purpose="Try the cheapest technique first",
    when="Most questions are easy, and some need more.",
    about="Escalate asks the cheapest graph first, and a dearer one only while the answer is not certain enough. If no "
    "answer is, it is withheld.",
    steps=by_node(assess, conclude) | dict.fromkeys(RUNGS, rung),
    figures=figures,
    outcome=outcome,
    retrieval_steps=retrieved,
    why=why,
)
