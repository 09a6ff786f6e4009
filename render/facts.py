"""The facts of a trace in words, the same on the terminal and on the page."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

from ..errors import DubitoError, UserFault
from ..presenters.presenter import answer_block, summary_of
from ..presenters.words import counted, duration
from ..traces.recording import Recording
from ..traces.steps import Call, Step
from .sanitize import shortened

LONGEST_WORDS = 120
"""Characters of a step's words."""


Shown = TypeVar("Shown")


def refuses_unshowable(draw: Callable[..., Shown]) -> Callable[..., Shown]:
    """Make what draws traces raise `UserFault` for a trace whose lines hold what no run of dubito writes."""

    @wraps(draw)
    def drawn(*recordings: Recording) -> Shown:
        try:
            return draw(*recordings)
        except DubitoError:
            raise
        except Exception as fault:
            paths = " or ".join(f"'{recording.path}'" for recording in recordings)
            raise UserFault(f"{paths} cannot be shown: was the file edited? Record the run anew.") from fault

    return drawn


@dataclass(frozen=True)
class Cost:
    """The number of model calls, and the tokens that they read and wrote."""

    calls: int
    read: int
    written: int

    @property
    def tokens(self) -> str:
        """'3,120 tokens read, 98 written'."""
        return f"{self.read:,} tokens read, {self.written:,} written"


def cost_of(calls: Sequence[Call]) -> Cost:
    """The cost of all calls together. A reused call, which was not made, does not count."""
    read, written = sum(call.prompt_tokens for call in calls), sum(call.completion_tokens for call in calls)
    return Cost(sum(not call.reused for call in calls), read, written)


def cost_of_call(call: Call) -> str:
    """'3,120 tokens read, 98 written, 1.2 s', or why a reused call cost nothing."""
    if call.reused:
        return "not made again: an earlier rung had the reply"
    return f"{cost_of([call]).tokens}, {duration(call.seconds)}"


def cost_words(recording: Recording) -> str:
    """'12 steps, 8 model calls, 3,120 tokens read, 98 written, 12.5 s, first token of the answer after 10.2 s'."""
    cost, steps = cost_of(recording.calls), sum(1 for _ in recording.walk())
    calls = counted(cost.calls, "model call")
    begun = recording.first_token
    first = [] if begun is None else [f"first token of the answer after {duration(begun)}"]
    return ", ".join([counted(steps, "step"), calls, cost.tokens, duration(recording.seconds), *first])


def state_of(recording: Recording) -> str:
    """The reason why a run has no answer; empty for a run that ended."""
    if recording.error is not None:
        return f"The run ended with a fault: {recording.error.get('message', '')}"
    if recording.ended:
        return ""
    place = "in the middle of a line" if recording.cut else "before the run did"
    return f"This trace is incomplete: it ends {place}, as after a kill. The steps so far are shown."


def answer_of(recording: Recording) -> str:
    """The answer; empty if there is none."""
    return shown_answer(recording.output or {})


def shown_answer(output: Mapping[str, Any]) -> str:
    """The answer of an output with its marks, or that it is withheld; empty if there is none."""
    return answer_block(output).text


def warnings_of(recording: Recording) -> list[str]:
    """The warnings, each once; for an unfinished run the warnings of its steps."""
    if recording.output is not None:
        warnings = recording.output.get("warnings") or []
    else:
        runs = [run for _, step in recording.walk() for run in step.runs]
        warnings = [warning for run in runs for warning in run.update.get("warnings") or []]
    return list(dict.fromkeys(map(str, warnings)))


def evidence_of(recording: Recording) -> list[Mapping[str, Any]]:
    """The chunks that the answer was generated from."""
    evidence = (recording.output or {}).get("evidence") or []
    return [chunk for chunk in evidence if isinstance(chunk, dict)]


def settings_of(recording: Recording) -> dict[str, str]:
    """The settings as text."""
    return {name: str(value) for name, value in recording.context.items()}


def times(step: Step) -> str:
    """'' for a node that ran once, '×3' for three parallel runs."""
    return f"×{len(step.runs)}" if len(step.runs) > 1 else ""


def words_of(step: Step) -> str:
    """The words of a step on one line; empty for a step that is hidden."""
    summary = summary_of(step)
    return "" if summary.hidden else shortened(summary.words, LONGEST_WORDS)


def beside(step: Step, siblings: Sequence[Step]) -> list[str]:
    """The nodes that ran in parallel with the step."""
    return [other.node for other in siblings if other.round == step.round and other is not step]
