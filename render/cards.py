"""A step's card on the page: what its runs read and changed, and their model calls."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any

from ..presenters.words import counted, duration, title_of
from ..traces.recording import Recording
from ..traces.steps import Call, NodeRun, Step
from .facts import beside, cost_of, cost_of_call, times, words_of
from .sanitize import shortened

LONGEST_INLINE = 160
"""Characters of a value that is shown without folding."""

MOST_CHUNKS, MOST_ITEMS = 200, 50
"""Shown of a list or dict: its first chunks, or its first items of another kind."""

LARGE = 4_000
"""Characters of a value that is not shown again where it is read; its JSON has one line an item."""

_json = json.JSONEncoder(ensure_ascii=False).encode

LONGEST_HINT = 60
"""Characters of the value that tells parallel runs apart."""

NAMED = {"texts", "finish", "probabilities", "mean_logprobs"}
"""The parts of a reply that are shown under names of their own."""


@dataclass(frozen=True)
class Entry:
    """A key of the state.

    text: the value, or a summary of a long one, whose chunks or JSON (`body`) are folded below; shown_in: for a value
    that another step's card shows, words that say so and the number of the step.
    """

    key: str
    text: str
    shown_in: tuple[str, int] | None = None
    chunks: Sequence[Mapping[str, Any]] = ()
    body: str = ""


Turn = tuple[str, str]
"""One turn of a prompt or a reply: its role and its text."""


@dataclass(frozen=True)
class CallCard:
    """A model call."""

    title: str
    settings: str
    turns: Sequence[Turn]
    figures: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class RunCard:
    """One of a step's parallel runs."""

    title: str
    error: str
    read: Sequence[Entry]
    changed: Sequence[Entry]
    calls: Sequence[CallCard]
    steps: Sequence[Card]


@dataclass(frozen=True)
class Card:
    """A step. words: its presenter's; remark: parallel runs and steps beside it; fault: why it has no end."""

    number: int
    name: str
    words: str
    facts: str
    remark: str
    fault: str
    runs: Sequence[RunCard]


def cards(recording: Recording) -> list[Card]:
    """The graph's steps, with the steps of subgraphs inside them."""
    return _cards(recording.steps, {})


def _cards(steps: Sequence[Step], seen: dict[str, int]) -> list[Card]:
    """The steps of one graph run. seen: the step that shows a value, by its JSON."""
    made = []
    changes: dict[str, int] = {}
    for _, side_by_side in groupby(steps, key=lambda step: step.round):
        together = list(side_by_side)
        made += [_card(step, steps, seen, changes) for step in together]
        changes |= {key: step.number for step in together for run in step.runs for key in run.update}
    return made


def _card(step: Step, siblings: Sequence[Step], seen: dict[str, int], changes: Mapping[str, int]) -> Card:
    cost = cost_of(step.all_calls)
    facts = [times(step), duration(step.seconds)]
    if cost.calls:
        facts.append(f"{counted(cost.calls, 'model call')}, {cost.tokens}")
    remarks = [f"{len(step.runs)} in parallel"] if len(step.runs) > 1 else []
    remarks += [f"beside {', '.join(others)}"] if (others := beside(step, siblings)) else []
    fault = "failed" if step.errors else "not finished" if step.running else ""
    runs = [_run(step, number, seen, changes) for number in range(len(step.runs))]
    return Card(
        step.number, step.node, words_of(step), " · ".join(filter(None, facts)), ", ".join(remarks), fault, runs
    )


def _run(step: Step, position: int, seen: dict[str, int], changes: Mapping[str, int]) -> RunCard:
    run = step.runs[position]
    error = "" if run.error is None else f"{run.error.get('type', '')}: {run.error.get('message', '')}"
    ended = "not finished" if run.end is None else duration(run.end - run.start)
    hint = _hint(run, step.runs)
    title = f"run {position + 1}{f', {hint}' if hint else ''} · {ended}"
    read = _entries(run.input, step.number, seen, changes)
    inside = _cards(run.steps, seen)
    changed = _entries(run.update, step.number, seen, {})
    return RunCard(title, error, read, changed, [_call(call) for call in run.calls], inside)


def _hint(run: NodeRun, siblings: Sequence[NodeRun]) -> str:
    """The short values that a parallel run reads and the other runs do not."""
    values = []
    for key, value in run.input.items():
        if all(other.input.get(key) == value for other in siblings):
            continue
        if isinstance(value, str | int | float):
            values.append(f"{key} {shortened(str(value), LONGEST_HINT)}")
        elif isinstance(value, dict) and "title" in value:
            values.append(f"{key} {shortened(title_of(value), LONGEST_HINT)}")
    return ", ".join(values)


def _entries(state: Mapping[str, Any], number: int, seen: dict[str, int], changes: Mapping[str, int]) -> list[Entry]:
    """All keys but the usage: the card's heading shows the cost. changes: the step that last changed a key."""
    return [_entry(key, state[key], number, seen, changes.get(key)) for key in state if key != "usage"]


def _entry(key: str, value: Any, number: int, seen: dict[str, int], changed_in: int | None) -> Entry:  # noqa: ANN401 - any JSON
    summary, shown, left_out = _summary(value), value, ""
    elsewhere = None if changed_in is None else Entry(key, summary, ("last changed in", changed_in))
    if isinstance(value, list | dict) and len(value) > MOST_ITEMS:
        if elsewhere:
            return elsewhere
        most = MOST_CHUNKS if _chunks(value) else MOST_ITEMS
        if len(value) > most:
            shown = dict(islice(value.items(), most)) if isinstance(value, dict) else value[:most]
            left_out = f", the first {most} here"
    text = shown if isinstance(shown, str) else _json(shown)
    if len(text) <= LONGEST_INLINE and not left_out:
        return Entry(key, text)
    if not left_out and (first := seen.setdefault(text, number)) != number:
        return Entry(key, summary, ("as in", first))
    if len(text) > LARGE and elsewhere:
        return elsewhere
    if chunks := _chunks(shown):
        return Entry(key, counted(len(value), "chunk") + left_out, chunks=chunks)
    return Entry(key, summary + left_out, body=_body(shown, text))


def _body(value: object, text: str) -> str:
    if isinstance(value, str):
        return value
    if len(text) > LARGE and isinstance(value, dict):
        return "\n".join(f"{name}: {_json(item)}" for name, item in value.items())
    if len(text) > LARGE and isinstance(value, list):
        return "\n".join(_json(item) for item in value)
    return json.dumps(value, ensure_ascii=False, indent=2)


def _summary(value: object) -> str:
    if isinstance(value, str):
        return shortened(value, LONGEST_INLINE)
    if isinstance(value, list):
        return counted(len(value), "item")
    return counted(len(value), "entry") if isinstance(value, dict) else str(value)


def _chunks(value: object) -> list[Mapping[str, Any]]:
    """The chunks of a list of chunks, or of chunks by id; empty for any other value."""
    items = list(value.values()) if isinstance(value, dict) else value
    if isinstance(items, list) and all(isinstance(item, dict) and {"text", "title"} <= item.keys() for item in items):
        return items
    return []


def _call(call: Call) -> CallCard:
    title = f"{call.verb} · {cost_of_call(call)}"
    prompt = [(message["role"], message["content"]) for message in call.request["messages"]]
    rest = {key: value for key, value in call.request.items() if key not in {"messages", "options", "continuations"}}
    settings = ", ".join(f"{key} {_plain(value)}" for key, value in rest.items() if value not in (None, [], "", False))
    turns = prompt + _replies(call)
    return CallCard(title, f"{call.model}{f'; {settings}' if settings else ''}", turns, _figures(call))


def _replies(call: Call) -> list[Turn]:
    texts = call.reply.get("texts", [])
    name = "reply" if len(texts) == 1 else "reply {}"
    return [
        (name.format(i) + (", cut off" if finish == "length" else ""), text or "(empty)")
        for i, (text, finish) in enumerate(zip(texts, call.reply.get("finish", []), strict=True), 1)
    ]


def _figures(call: Call) -> list[tuple[str, str]]:
    """The numbers of a reply: probabilities of options, mean log-probabilities of given texts, and others."""
    given = zip(call.request.get("continuations", []), call.reply.get("mean_logprobs", []), strict=True)
    figures = [(f"probability of '{option}'", value) for option, value in call.reply.get("probabilities", {}).items()]
    figures += [(f"mean log-probability of '{text}'", mean) for text, mean in given]
    figures += [(key, value) for key, value in call.reply.items() if key not in NAMED]
    return [(name, _plain(value)) for name, value in figures]


def _plain(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
