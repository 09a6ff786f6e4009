"""What is said of a trace in words, on the terminal and on the page alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...traces.recording import Call, Recording, Step
from ..screen import counted, duration


@dataclass(frozen=True)
class Cost:
    """Of model calls: how many, the tokens they read and wrote."""

    calls: int
    read: int
    written: int


def cost_of(calls: Sequence[Call]) -> Cost:
    """The sum of the calls."""
    return Cost(len(calls), sum(one.prompt_tokens for one in calls), sum(one.completion_tokens for one in calls))


def cost_words(recording: Recording) -> str:
    """'12 steps, 8 model calls, 3,120 tokens read, 98 written, 12.5 s'."""
    cost, steps = cost_of(recording.calls), sum(1 for _ in recording.walk())
    tokens = f"{cost.read:,} tokens read, {cost.written:,} written"
    said = [counted(steps, "step"), counted(cost.calls, "model call"), tokens, duration(recording.seconds)]
    return ", ".join(said)


def state_of(recording: Recording) -> str:
    """What is to be known of a run that did not come to its end; empty for one that did."""
    if recording.error is not None:
        return f"The run ended with a fault: {recording.error.get('message', '')}"
    if recording.ended:
        return ""
    cut = "in the middle of a line" if recording.cut else "before the run did"
    return f"This trace is incomplete: it ends {cut}, as when a run is killed. What is there is shown."


def answer_of(recording: Recording) -> str:
    """The answer; empty where there is none."""
    return str((recording.output or {}).get("answer") or "").strip()


def warnings_of(recording: Recording) -> list[str]:
    """What went wrong and was worked around, of an unfinished run too."""
    if recording.output is not None:
        found = recording.output.get("warnings")
    else:
        found = [
            one for _, step in recording.walk() for task in step.tasks for one in task.update.get("warnings") or []
        ]
    return list(dict.fromkeys(str(one) for one in found or []))


def evidence_of(recording: Recording) -> list[Mapping[str, Any]]:
    """The chunks that the answer is made from."""
    return [one for one in (recording.output or {}).get("evidence") or [] if isinstance(one, dict)]


def title_of(chunk: Mapping[str, Any]) -> str:
    """A chunk's title, or its id where it has none."""
    return str(chunk.get("title") or chunk.get("id") or "(no title)")


def names_of(chunks: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Chunks by id as they are to be called: by title, and by id too where several share it."""
    titles = {str(chunk.get("id")): title_of(chunk) for chunk in chunks}
    times = Counter(titles.values())
    return {one: title if times[title] == 1 else _told_apart(title, one) for one, title in titles.items()}


def _told_apart(title: str, chunk_id: str) -> str:
    return chunk_id if chunk_id.startswith(title) else f"{title} ({chunk_id})"


def settings_of(recording: Recording) -> dict[str, str]:
    """The settings as text."""
    return {name: str(value) for name, value in recording.context.items()}


def times(step: Step) -> str:
    """'' for a node that ran once, '×3' for three parallel runs."""
    return f"×{len(step.tasks)}" if len(step.tasks) > 1 else ""


def beside(step: Step, siblings: Sequence[Step]) -> list[str]:
    """The other nodes that ran side by side with it."""
    return [other.node for other in siblings if other.round == step.round and other is not step]
