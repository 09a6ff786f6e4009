"""Reads a trace file: the steps of the run, with their parallel runs, model calls and the steps of subgraphs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserFault
from ..graphs.registry import context_type, graph_named, technique_of_chat
from ..json_files import open_file, parsed
from .events import AnswerPiece, Event, ModelCall, NodeEnd, NodeStart
from .steps import Call, Step, Steps, walk
from .writer import VERSION

if TYPE_CHECKING:
    from ..graphs.registry import Graph
    from ..state.context import BaseContext

Wiring = Mapping[str, Sequence[tuple[str, str, bool]]]
"""The edges of the graph, under "", and of its subgraphs: source, target, and whether the edge is conditional."""

MALFORMED = (LookupError, TypeError, ValueError, AttributeError, RecursionError, OverflowError)
"""The exceptions of reading a line that no trace has."""


@dataclass
class Recording:
    """A trace.

    settings: the run's context, None for an unknown graph or for settings of another version; context: the settings as
    they are in the file; steps: of the graph itself; output: None if the run did not end; ended: the file has the last
    line; cut: the file ends in the middle of a line.
    """

    path: Path
    graph: str
    question: str
    dubito: str
    context: Mapping[str, Any]
    settings: BaseContext | None
    wiring: Wiring
    start: float
    until: float
    steps: list[Step] = field(default_factory=list)
    output: Mapping[str, Any] | None = None
    error: Mapping[str, str] | None = None
    ended: bool = False
    cut: bool = False

    @property
    def seconds(self) -> float:
        """Seconds from the first line to the last."""
        return max(self.until - self.start, 0.0)

    @property
    def first_token(self) -> float | None:
        """Seconds from the first line to the first token of the answer; None if the answer was not streamed."""
        answered = [run.answered for _, step in self.walk() for run in step.runs if run.answered is not None]
        return max(min(answered) - self.start, 0.0) if answered else None

    def walk(self) -> Iterator[tuple[tuple[str, ...], Step]]:
        """Every step with the nodes of the subgraphs around it, outermost first; a subgraph's steps follow its own."""
        return walk(self.steps)

    @property
    def calls(self) -> list[Call]:
        """Every model call."""
        return [call for step in self.steps for call in step.all_calls]


def read(path: Path) -> Recording:
    """Read a trace file, also of a run that did not end.

    Raises `UserFault` for a missing file, a file that is not a trace, and a trace of another version.
    """
    try:
        with open_file(path) as file:
            return assembled(path, file)
    except FileNotFoundError as fault:
        raise UserFault(
            f"There is no trace '{path}': record one with dubito ask \"...\" --trace {path.name}."
        ) from fault
    except OSError as fault:
        raise UserFault(f"The trace '{path}' cannot be read ({fault.strerror}): give another path.") from fault


def assembled(path: Path, lines: Iterable[bytes]) -> Recording:
    """The run in the lines of a trace; path: the name of the file in messages."""
    numbered = enumerate(lines, 1)
    recording, steps = _header(path, next(numbered, (1, b""))[1])
    for number, line in numbered:
        try:
            _take(parsed(line), recording, steps)
        except MALFORMED as fault:
            if not line.endswith(b"\n"):
                recording.cut = True
                break
            raise UserFault(
                f"Line {number} of '{path}' is not a line of a trace: was the file edited? Record the run anew."
            ) from fault
    steps.finish(recording.until)
    return recording


def _header(path: Path, first: bytes) -> tuple[Recording, Steps]:
    no_trace = f"'{path}' is not a trace: give a file that dubito ask --trace wrote."
    if not first:
        raise UserFault(f"'{path}' is empty: give a file that dubito ask --trace wrote.")
    try:
        line = parsed(first)
        if line["type"] != "run":
            raise UserFault(no_trace)
        version = int(line["version"])
        if version != VERSION:
            remedy = "update dubito" if version > VERSION else "record the run anew"
            raise UserFault(f"'{path}' is a trace in form {version}, and this dubito reads form {VERSION}: {remedy}.")
        at, name, context = _time(line), str(line["graph"]), dict(line["context"])
        about = (name, str(line["question"]), str(line["dubito"]), context)
        wiring = {str(name): [_edge(edge) for edge in edges] for name, edges in line.get("wiring", {}).items()}
        graph, settings = _known(name, context)
        steps = Steps(name, graph, settings)
        return Recording(path, *about, settings, wiring, start=at, until=at, steps=steps.steps), steps
    except MALFORMED as fault:
        if isinstance(fault, UserFault):  # which is a ValueError too
            raise
        raise UserFault(no_trace) from fault


def _known(name: str, context: Mapping[str, Any]) -> tuple[Graph | None, BaseContext | None]:
    """The graph and the context; None for a graph that is not dubito's, and for settings of another version."""
    try:
        if technique := technique_of_chat(name):
            from ..graphs.chat import chat_form  # noqa: PLC0415 - imports every technique

            graph = chat_form(technique)
        else:
            graph = graph_named(name)
        settings = context_type(graph).model_validate(context)
    except ValueError:  # a UserFault is a ValueError too
        return None, None
    return graph, settings


def _take(line: Mapping[str, Any], recording: Recording, steps: Steps) -> None:
    at = _time(line)
    recording.until = max(recording.until, at)
    if line["type"] == "end":
        recording.ended = True
        recording.output = _object(line["output"]) if "output" in line else None
        recording.error = _object(line["error"]) if "error" in line else None
    else:
        steps.on(_event(line, at))


def _event(line: Mapping[str, Any], at: float) -> Event | None:
    """The event of a line; None for an unknown kind of line."""
    if line["type"] not in {"node_start", "llm_call", "answer_begin", "node_end"}:
        return None
    namespace = tuple(str(run) for run in line["namespace"])
    place: dict[str, Any] = {"namespace": namespace, "at": at, "node": str(line["node"]), "task": str(line["task"])}
    if line["type"] == "node_start":
        return NodeStart(**place, input=line["input"], left_out=tuple(line.get("left_out", ())))
    if line["type"] == "llm_call":
        figures = {name: _number(line[name]) for name in ("prompt_tokens", "completion_tokens", "seconds")}
        return ModelCall(
            **place, call={**line, **figures, "request": _object(line["request"]), "reply": _object(line["reply"])}
        )
    if line["type"] == "answer_begin":
        return AnswerPiece(**place, text="", begins=True)
    error = None if line["error"] is None else _object(line["error"])
    return NodeEnd(**place, seconds=_number(line["seconds"]), update=_object(line["update"]), error=error)


def _time(line: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(line["timestamp"]).timestamp()


def _number(value: object) -> float:
    if not isinstance(value, int | float):
        raise TypeError("not a number")
    return float(value)


def _object(value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TypeError("not a JSON object")
    return value


def _edge(edge: Sequence[Any]) -> tuple[str, str, bool]:
    source, target, conditional = edge
    return str(source), str(target), bool(conditional)
