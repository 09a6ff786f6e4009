"""The parts of a report that come from traces and measurements, not from outcomes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ...errors import UserFault
from ...presenters.presenter import changes, summary_of
from ...render.facts import refuses_unshowable
from ...render.sanitize import sanitize, shortened
from ...traces.recording import Recording, assembled
from ...traces.steps import Step, last_update
from ..run_folder import EvaluationRun
from ..store import Store

MOST_STEPS = 60
"""Steps of a trace that are shown. The others are counted."""

LONGEST_TEXT = 320


class StepRow(NamedTuple):
    """A step, in the order in which the page's script reads it.

    depth: number of enclosing subgraphs; runs: parallel runs of the node; calls and tokens include nested steps; text:
    the step in words; fault: the messages of failed runs.
    """

    depth: int
    node: str
    runs: int
    seconds: float
    calls: int
    prompt_tokens: int
    completion_tokens: int
    text: str
    fault: str


@dataclass(frozen=True)
class ReportInputs:
    """By system and question.

    levels: the chunk ids selected for each λ; deltas: ΔSePer after each retrieval step; steps: the first steps of each
    trace, and how many more it has; remark: why traces are missing, empty if all were read.
    """

    levels: Mapping[tuple[str, str], Mapping[float, frozenset[str]]]
    deltas: Mapping[tuple[str, str], Sequence[float]]
    steps: Mapping[tuple[str, str], tuple[Sequence[StepRow], int]]
    remark: str = ""


def inputs_of(run: EvaluationRun, store: Store) -> ReportInputs:
    """Read the traces, one at a time, and the measurements."""
    levels, steps, remark = {}, {}, ""
    for system in run.systems:
        for question in run.questions:
            key = system.label, question.id
            try:
                if (trace := store.trace(*key)) is None:
                    continue
                recording = assembled(Path(" ".join(key)), trace.splitlines(keepends=True))
                steps[key] = first_steps(recording)
                if selected := _levels(recording):
                    levels[key] = selected
            except UserFault as fault:  # of another version of dubito, or damaged
                remark = f"Steps are missing: {fault}"
    deltas = {
        key: [float(step["delta"]) for step in value["steps"] if step["what"] == "known"]
        for key, value in store.measurements("seper_steps").items()
    }
    return ReportInputs(levels, deltas, steps, remark)


@refuses_unshowable
def first_steps(recording: Recording) -> tuple[list[StepRow], int]:
    """The first steps of a trace, and how many more there are."""
    steps = list(recording.walk())
    return [_row(len(path), step) for path, step in steps[:MOST_STEPS]], max(len(steps) - MOST_STEPS, 0)


def _row(depth: int, step: Step) -> StepRow:
    calls = step.all_calls
    return StepRow(
        depth,
        sanitize(step.node),
        len(step.runs),
        round(step.seconds, 2),
        sum(not call.reused for call in calls),
        sum(call.prompt_tokens for call in calls),
        sum(call.completion_tokens for call in calls),
        shortened(summary_of(step).words or changes(step).words, LONGEST_TEXT),
        " ".join(sanitize(error.get("message", "")) for error in step.errors),
    )


@refuses_unshowable
def _levels(recording: Recording) -> dict[float, frozenset[str]]:
    """The chunk ids that a run selected for each λ; empty for a run that does not select by λ."""
    candidates = last_update(recording.steps, "candidates").get("candidates") or []
    return {
        float(level): frozenset(candidate["chunk_ids"]) for candidate in candidates for level in candidate["lambdas"]
    }
