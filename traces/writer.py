"""A run written down as it happens, one JSON object a line, so that a killed run leaves whole lines.

run          first line: what was asked, of which graph, with which settings; the graph's wiring
node_start   a node began: its input
llm_call     a node's model call ended: request, reply, tokens, seconds
node_end     a node ended: its update of the state or its error, seconds
end          last line: the output, or the error that ended the run

A step's `namespace` names the subgraph runs it is in as 'node:task', outermost first; the `node_start` line of that
task holds what the subgraph was begun with. So of a step of `dense` within `dense_rag`, whose namespace is
["dense:TASK"], the round is `input.round` of the node_start line whose task is TASK, and `input.chunking` says what
cut its chunks. Of a look-up of `sunar`, whose namespace is ["neighbourhood:TASK"], `input.query` is the sub-question.

`wiring` holds the edges of the graph, under "", and of each subgraph, under the name of its node ('outer|inner' where
they are nested): source, target, and whether a decision is taken there. `dubito trace` reads all this.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from .. import __version__
from ..errors import UserFault
from .run import Event, ModelCall, NodeEnd, NodeStart, Run

if TYPE_CHECKING:
    from ..graphs.registry import Graph
    from ..state.context import BaseContext

VERSION = 1
"""Of the lines' form; it grows when a reader of old traces would be misled."""

_BEGINNING = b'{"type": "run"'


def first_line(graph: Graph, question: str, context: BaseContext) -> bytes:
    """What was asked, of which graph, with which settings."""
    about = {"version": VERSION, "dubito": __version__, "graph": graph.name, "context": context.model_dump(mode="json")}
    return _line("run", {**about, "question": question, "wiring": _wiring(graph)})


def line_of(event: Event | None) -> bytes | None:
    """What happened; None for what a trace does not hold."""
    if isinstance(event, NodeStart):
        return _line("node_start", {**_place(event), "input": event.input})
    if isinstance(event, ModelCall):
        return _line("llm_call", {**_place(event), **event.call})
    if isinstance(event, NodeEnd):
        error = None if event.error is None else _error(event.error)
        return _line("node_end", {**_place(event), "seconds": event.seconds, "update": event.update, "error": error})
    return None


def last_line(seconds: float, output: Mapping[str, Any], fault: BaseException | None) -> bytes:
    """What came out, or the error that ended the run."""
    return _line("end", {"seconds": seconds, **({"output": output} if fault is None else {"error": _error(fault)})})


class Trace:
    """The trace file of one run; a context manager whose end writes the last line."""

    def __init__(self, path: Path, run: Run) -> None:
        """Raises `UserFault` for a path that cannot be written, or that holds something other than a trace."""
        self._run, self._path = run, path
        try:
            if path.is_file() and path.stat().st_size:
                with path.open("rb") as there:
                    if not there.read(len(_BEGINNING)).startswith(_BEGINNING):
                        raise UserFault(f"'{path}' exists and is not a trace: give --trace another name.")
            # unbuffered: each line is one write
            self._file = path.open("wb", buffering=0)
        except OSError as fault:
            raise _unwritable(path, fault) from fault

    def __enter__(self) -> Self:
        """Write the first line."""
        self._write(first_line(self._run.graph, self._run.question, self._run.context))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write the last line."""
        try:
            self._write(last_line(self._run.seconds, self._run.output, fault))
        except UserFault:
            if fault is None:
                raise
        finally:
            self._file.close()

    def on(self, event: Event | None) -> None:
        """Write down what happened."""
        if (line := line_of(event)) is not None:
            self._write(line)

    def _write(self, line: bytes) -> None:
        try:
            self._file.write(line)
        except OSError as fault:
            raise _unwritable(self._path, fault) from fault


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
    except (TypeError, ValueError):  # a number or a key that JSON does not have, which few lines hold
        text = json.dumps(jsonable(line), ensure_ascii=False, default=str) + "\n"
    # half a surrogate pair has no UTF-8, but as a backslash sequence it is JSON
    return text.encode("utf-8", errors="backslashreplace")


def _unwritable(path: Path, fault: OSError) -> UserFault:
    return UserFault(f"The trace cannot be written to '{path}' ({fault.strerror}): give --trace another path.")


@lru_cache(maxsize=64)
def _wiring(graph: Graph) -> dict[str, list[tuple[str, str, bool]]]:
    drawn = {"": graph.get_graph(), **{name: sub.get_graph() for name, sub in graph.get_subgraphs(recurse=True)}}
    return {name: [(one.source, one.target, one.conditional) for one in each.edges] for name, each in drawn.items()}


def _place(event: NodeStart | NodeEnd | ModelCall) -> dict[str, Any]:
    return {"node": event.node, "task": event.task, "namespace": list(event.namespace)}


def _error(fault: BaseException | str) -> dict[str, str]:
    if isinstance(fault, KeyboardInterrupt):
        return {"type": "Interrupted", "message": "Interrupted."}
    if isinstance(fault, BaseException):
        return {"type": type(fault).__name__, "message": str(fault)}
    return {"type": "error", "message": fault}
