"""Writes a trace during the run, one JSON object per line, so that a killed run leaves complete lines.

run          first line: the graph, its settings, the question, the graph's wiring
node_start   a node began: its input; left_out: its long lists and dicts, which the lines before give
llm_call     a model call of a node ended: request, reply, tokens, seconds, reused (see `messages.Call`)
answer_begin the first token of the answer came; only in a run whose answer was streamed
node_end     a node ended: its update of the state or its error, seconds
end          last line: the output, or the error that ended the run

`namespace` lists the subgraph runs around a node as 'node:task', outermost first; the `node_start` line of that task
holds the input of the subgraph. For example, a line whose namespace is ["dense:TASK"] belongs to the run of the
subgraph `dense` whose node_start line has the task TASK.

`wiring` holds the edges of the graph, under "", and of each subgraph, under the name of its node ('outer|inner' where
they are nested): source, target, and whether the edge is conditional. `dubito trace` reads all this.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from .. import __version__
from ..errors import UserFault
from .events import AnswerPiece, Event, ModelCall, NodeEnd, NodeStart
from .files import writing
from .run import Run
from .steps import error_record

if TYPE_CHECKING:
    from ..graphs.registry import Graph
    from ..state.context import BaseContext

logger = logging.getLogger(__name__)

VERSION = 2
"""The form of the lines and the names of nodes and state keys; older traces are refused."""

MOST_ITEMS = 50
"""A longer list or dict is left out of the input of a node that reads the state."""

BEGINNING = b'{"type": "run"'


def first_line(graph: Graph, question: str, context: BaseContext) -> bytes:
    """The first line: the graph, its settings, the question, the wiring."""
    about = {"version": VERSION, "dubito": __version__, "graph": graph.name, "context": context.model_dump(mode="json")}
    return _line("run", {**about, "question": question, "wiring": _wiring(graph)})


def line_of(event: Event | None) -> bytes | None:
    """The line of an event; None for an event that a trace does not hold."""
    if isinstance(event, NodeStart):
        return _line("node_start", {**_place(event), **_input(event)})
    if isinstance(event, ModelCall):
        return _line("llm_call", {**_place(event), **event.call})
    if isinstance(event, AnswerPiece) and event.begins:
        return _line("answer_begin", _place(event))
    if isinstance(event, NodeEnd):
        error = None if event.error is None else error_record(event.error)
        return _line("node_end", {**_place(event), "seconds": event.seconds, "update": event.update, "error": error})
    return None


def last_line(seconds: float, output: Mapping[str, Any], fault: BaseException | None) -> bytes:
    """The last line: the output, or the error that ended the run."""
    return _line(
        "end", {"seconds": seconds, **({"output": output} if fault is None else {"error": error_record(fault)})}
    )


class Trace:
    """The trace file of one run; a context manager whose end writes the last line.

    A disk that becomes full ends the trace with a warning, and not the run.
    """

    def __init__(self, path: Path, run: Run) -> None:
        """Raises `UserFault` for a path that cannot be written, or that holds something other than a trace."""
        self._run, self._path, self._failed = run, path, False
        with writing(path, "trace", BEGINNING):
            self._file = path.open("wb", buffering=0)  # unbuffered: each line is one write

    def __enter__(self) -> Self:
        self._write(first_line(self._run.graph, self._run.question, self._run.context))
        return self

    def __exit__(self, kind: object, fault: BaseException | None, trace: object) -> None:
        self._write(last_line(self._run.seconds, self._run.output, fault))
        self._file.close()

    def on(self, event: Event | None) -> None:
        """Write the line of an event."""
        if (line := line_of(event)) is not None:
            self._write(line)

    def _write(self, line: bytes) -> None:
        if self._failed:
            return
        try:
            with writing(self._path, "trace"):
                while line := line[self._file.write(line) or 0 :]:
                    pass  # a disk with a little room takes a part of the line, and then fails
        except UserFault as fault:
            self._failed = True
            logger.warning("%s The run goes on without it.", fault)


def jsonable(value: Any) -> Any:  # noqa: ANN401
    """The value with null for every number that JSON does not have (infinities, NaN)."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    return value


def _line(kind: str, fields: Mapping[str, Any]) -> bytes:
    line = {"type": kind, "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds"), **fields}
    try:
        text = json.dumps(line, ensure_ascii=False, allow_nan=False, default=str) + "\n"
    except (TypeError, ValueError):  # a number or key that JSON does not have: rare
        text = json.dumps(jsonable(line), ensure_ascii=False, default=str) + "\n"
    # a lone surrogate has no UTF-8, but is JSON as a backslash sequence
    return text.encode("utf-8", errors="backslashreplace")


def _input(event: NodeStart) -> dict[str, Any]:
    """A node's input; of a state without the long values, or a run's trace would grow with its square."""
    if not event.derivable or not isinstance(event.input, dict):
        return {"input": event.input}
    left_out = [key for key, value in event.input.items() if isinstance(value, list | dict) and len(value) > MOST_ITEMS]
    rest = {key: value for key, value in event.input.items() if key not in left_out}
    return {"input": rest, **({"left_out": left_out} if left_out else {})}


@lru_cache(maxsize=64)
def _wiring(graph: Graph) -> dict[str, list[tuple[str, str, bool]]]:
    drawn = {"": graph.get_graph(), **{name: sub.get_graph() for name, sub in graph.get_subgraphs(recurse=True)}}
    return {
        name: [(edge.source, edge.target, edge.conditional) for edge in figure.edges] for name, figure in drawn.items()
    }


def _place(event: NodeStart | NodeEnd | ModelCall | AnswerPiece) -> dict[str, Any]:
    return {"node": event.node, "task": event.task, "namespace": list(event.namespace)}
