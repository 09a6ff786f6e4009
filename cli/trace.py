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
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from .. import __version__
from ..errors import UserFault
from .run import Event, ModelCall, NodeEnd, NodeStart, Run
from .screen import jsonable

if TYPE_CHECKING:
    from .context import Graph

VERSION = 1
"""Of the lines' form; it grows when a reader of old traces would be misled."""

_BEGINNING = b'{"type": "run"'


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
        context = self._run.context.model_dump(mode="json")
        about = {"version": VERSION, "dubito": __version__, "graph": self._run.graph.name, "context": context}
        self._write("run", {**about, "question": self._run.question, "wiring": _wiring(self._run.graph)})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write the last line."""
        ending = {"output": self._run.output} if fault is None else {"error": _error(fault)}
        try:
            self._write("end", {"seconds": self._run.seconds, **ending})
        except UserFault:
            if fault is None:
                raise
        finally:
            self._file.close()

    def on(self, event: Event | None) -> None:
        """Write down what happened."""
        if isinstance(event, NodeStart):
            self._write("node_start", {**_place(event), "input": event.input})
        elif isinstance(event, ModelCall):
            self._write("llm_call", {**_place(event), **event.call})
        elif isinstance(event, NodeEnd):
            error = None if event.error is None else _error(event.error)
            self._write("node_end", {**_place(event), "seconds": event.seconds, "update": event.update, "error": error})

    def _write(self, kind: str, fields: Mapping[str, Any]) -> None:
        line = {"type": kind, "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds"), **fields}
        text = json.dumps(jsonable(line), ensure_ascii=False, default=str) + "\n"
        # half a surrogate pair has no UTF-8, but as a backslash sequence it is JSON
        try:
            self._file.write(text.encode("utf-8", errors="backslashreplace"))
        except OSError as fault:
            raise _unwritable(self._path, fault) from fault


def _unwritable(path: Path, fault: OSError) -> UserFault:
    return UserFault(f"The trace cannot be written to '{path}' ({fault.strerror}): give --trace another path.")


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
