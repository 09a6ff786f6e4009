"""A step's card on the page: what its runs read and changed, and their model calls."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...traces.recording import Call, Recording, Step, Task
from ..screen import counted, duration, shorten
from .facts import beside, cost_of, times, title_of
from .said import words

LONGEST_INLINE = 160
"""Characters of a value that is shown without folding."""

LONGEST_OPEN = 1500
"""Characters of a message that is shown without folding."""

LONGEST_HINT = 60
"""Characters of what tells parallel runs apart."""


@dataclass(frozen=True)
class Entry:
    """A key of the state. text: the whole value, or what it is; then below, folded, its chunks or its JSON.

    as_in: the number of the step that showed the same value before, None where it is shown here.
    """

    key: str
    text: str
    as_in: int | None = None
    chunks: Sequence[Mapping[str, Any]] = ()
    body: str = ""


@dataclass(frozen=True)
class Message:
    """One turn of a prompt or a reply."""

    role: str
    text: str

    @property
    def is_long(self) -> bool:
        """Is it to be folded?"""
        return len(self.text) > LONGEST_OPEN


@dataclass(frozen=True)
class CallCard:
    """A model call."""

    title: str
    settings: str
    prompt: Sequence[Message]
    replies: Sequence[Message]
    figures: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class TaskCard:
    """One of a step's parallel runs."""

    title: str
    error: str
    read: Sequence[Entry]
    changed: Sequence[Entry]
    calls: Sequence[CallCard]
    steps: Sequence[Card]


@dataclass(frozen=True)
class Card:
    """A step; words: what the screen said of it."""

    number: int
    name: str
    words: str
    facts: str
    remark: str
    fault: str
    tasks: Sequence[TaskCard]


def cards(recording: Recording) -> list[Card]:
    """The steps of the graph, those of subgraphs within them."""
    seen: dict[str, int] = {}
    said = words(recording)
    return [_card(step, recording.steps, seen, said) for step in recording.steps]


def _card(step: Step, siblings: Sequence[Step], seen: dict[str, int], said: Mapping[int, str]) -> Card:
    cost = cost_of(step.all_calls)
    facts = [times(step), duration(step.seconds)]
    if cost.calls:
        facts.append(f"{counted(cost.calls, 'model call')}, {cost.read:,} tokens read, {cost.written:,} written")
    remarks = [f"{len(step.tasks)} in parallel"] if len(step.tasks) > 1 else []
    remarks += [f"beside {', '.join(others)}"] if (others := beside(step, siblings)) else []
    fault = "failed" if step.errors else "not finished" if step.unfinished else ""
    tasks = [_task(step, number, seen, said) for number in range(len(step.tasks))]
    told = "" if step.errors else said.get(id(step), "")
    shown = " · ".join(one for one in facts if one)
    return Card(step.number, step.node, told, shown, ", ".join(remarks), fault, tasks)


def _task(step: Step, position: int, seen: dict[str, int], said: Mapping[int, str]) -> TaskCard:
    task = step.tasks[position]
    error = "" if task.error is None else f"{task.error.get('type', '')}: {task.error.get('message', '')}"
    ended = "not finished" if task.end is None else duration(task.end - task.start)
    hint = _hint(task, step.tasks)
    title = f"run {position + 1}{f', {hint}' if hint else ''} · {ended}"
    read = _entries(task.input, step.number, seen)
    inside = [_card(one, task.steps, seen, said) for one in task.steps]
    changed = _entries(task.update, step.number, seen)
    return TaskCard(title, error, read, changed, [_call(call) for call in task.calls], inside)


def _hint(task: Task, siblings: Sequence[Task]) -> str:
    """What a parallel run reads that others do not, if it is short."""
    said = []
    for key, value in task.input.items():
        if len(siblings) < 2 or all(other.input.get(key) == value for other in siblings):
            continue
        if isinstance(value, str | int | float):
            said.append(f"{key} {shorten(str(value), LONGEST_HINT)}")
        elif isinstance(value, dict) and "title" in value:
            said.append(f"{key} {shorten(title_of(value), LONGEST_HINT)}")
    return ", ".join(said)


def _entries(state: Mapping[str, Any], number: int, seen: dict[str, int]) -> list[Entry]:
    """All but the cost, which the card's heading has."""
    return [_entry(key, value, number, seen) for key, value in state.items() if key != "usage"]


def _entry(key: str, value: object, number: int, seen: dict[str, int]) -> Entry:
    whole = json.dumps(value, ensure_ascii=False, indent=2)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if len(text) <= LONGEST_INLINE:
        return Entry(key, text)
    what = _what(value)
    first = seen.setdefault(whole, number)
    if first != number:
        return Entry(key, what, as_in=first)
    if chunks := _chunks(value):
        return Entry(key, counted(len(chunks), "chunk"), chunks=chunks)
    return Entry(key, what, body=value if isinstance(value, str) else whole)


def _what(value: object) -> str:
    if isinstance(value, str):
        return shorten(value, LONGEST_INLINE)
    if isinstance(value, list):
        return counted(len(value), "item")
    return counted(len(value), "entry").replace("entrys", "entries") if isinstance(value, dict) else str(value)


def _chunks(value: object) -> list[Mapping[str, Any]]:
    """The chunks, if it is a list of chunks or has them by id."""
    found = list(value.values()) if isinstance(value, dict) else value
    if isinstance(found, list) and all(isinstance(one, dict) and "text" in one and "title" in one for one in found):
        return found
    return []


def _call(call: Call) -> CallCard:
    tokens = f"{call.prompt_tokens:,} tokens read, {call.completion_tokens:,} written"
    title = f"{call.verb} · {tokens} · {duration(call.seconds)}"
    messages = call.request.get("messages")
    prompt = [
        Message(str(one.get("role", "")), str(one.get("content", "")))
        for one in (messages if isinstance(messages, list) else [])
        if isinstance(one, dict)
    ]
    rest = {key: value for key, value in call.request.items() if key not in {"messages", "options", "continuations"}}
    settings = ", ".join(f"{key} {_plain(value)}" for key, value in rest.items() if value not in (None, [], "", False))
    return CallCard(title, f"{call.model}{f'; {settings}' if settings else ''}", prompt, _replies(call), _figures(call))


def _replies(call: Call) -> list[Message]:
    texts, finish = call.reply.get("texts"), call.reply.get("finish")
    if not isinstance(texts, list):
        return []
    ends = finish if isinstance(finish, list) and len(finish) == len(texts) else [""] * len(texts)
    name = "reply" if len(texts) == 1 else "reply {}"
    return [
        Message(name.format(i) + (", cut off" if end == "length" else ""), str(text) or "(empty)")
        for i, (text, end) in enumerate(zip(texts, ends, strict=True), 1)
    ]


def _figures(call: Call) -> list[tuple[str, str]]:
    """What came back in numbers: an option's probability, a given text's mean log-probability, anything else."""
    reply = {key: value for key, value in call.reply.items() if key not in {"texts", "finish"}}
    probabilities, means = reply.pop("probabilities", None), reply.pop("mean_logprobs", None)
    found = []
    if isinstance(probabilities, dict):
        found += [(f"probability of '{option}'", _plain(value)) for option, value in probabilities.items()]
    if isinstance(means, list):
        given = call.request.get("continuations")
        names = given if isinstance(given, list) and len(given) == len(means) else [""] * len(means)
        found += [(f"mean log-probability of '{one}'", _plain(value)) for one, value in zip(names, means, strict=True)]
    return found + [(key, _plain(value)) for key, value in reply.items()]


def _plain(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
