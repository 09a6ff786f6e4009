"""A question's trace in short: of each step the node, what it cost, and the beginning of what it put out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...traces.harmless import harmless
from ...traces.recording import Recording, Step, assembled
from .words import shortened

MOST_STEPS = 60
"""Steps of a trace that are told; the others are counted."""

LONGEST_VALUE, LONGEST_TEXT = 120, 320
"""Characters of one key that a step changed, and of all of them."""


@dataclass(frozen=True)
class Told:
    """A step. depth: in how many subgraphs; runs: how many ran in parallel, the first one's text being told; calls,
    tokens: those of the steps within it too."""

    depth: int
    node: str
    runs: int
    seconds: float
    calls: int
    prompt_tokens: int
    completion_tokens: int
    text: str
    fault: str


def recorded(name: str, trace: bytes) -> Recording:
    """A trace that is not in a file, under a name for messages; raises `UserFault` like `read`."""
    return assembled(Path(name), trace.splitlines(keepends=True))


def told_of(recording: Recording) -> tuple[list[Told], int]:
    """The first steps of a trace, and how many more there are."""
    walked = list(recording.walk())
    return [_told(len(path), step) for path, step in walked[:MOST_STEPS]], max(len(walked) - MOST_STEPS, 0)


def _told(depth: int, step: Step) -> Told:
    calls = step.all_calls
    return Told(
        depth,
        str(harmless(step.node)),
        len(step.tasks),
        step.seconds,
        len(calls),
        sum(one.prompt_tokens for one in calls),
        sum(one.completion_tokens for one in calls),
        "" if step.steps else put_out(step.tasks[0].update),
        " ".join(str(harmless(one.get("message", ""))) for one in step.errors),
    )


def put_out(update: Mapping[str, Any]) -> str:
    """What a node changed, in a line; without what it emptied, and the cost, which is told apart."""
    changed = {key: value for key, value in update.items() if key != "usage" and value not in (None, [], {}, "")}
    said = [f"{key}: {shortened(_short(value), LONGEST_VALUE)}" for key, value in changed.items()]
    return shortened(" · ".join(str(harmless(one)) for one in said), LONGEST_TEXT)


def _short(value: object) -> str:
    chunks = list(value.values()) if isinstance(value, dict) else value
    if isinstance(chunks, list) and chunks and all(isinstance(one, dict) and "text" in one for one in chunks):
        return f"{len(chunks)} ({_titles(chunks)})"
    text = value if isinstance(value, str) else json.dumps(_rounded(value), ensure_ascii=False)
    return " ".join(text.split())


def _rounded(value: object) -> object:
    """With four digits of each number."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list) else value


def _titles(chunks: Sequence[Mapping[str, Any]]) -> str:
    return "; ".join(str(one.get("title") or one.get("id") or one["text"]) for one in chunks)
