"""A run of a graph for one question, as a series of events."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .events import ANSWER_MODES, MODES, Event, EventReader

if TYPE_CHECKING:
    from ..graphs.registry import Graph
    from ..state.context import BaseContext

TICK = 0.1
"""Seconds without an event after which the iterator gives None."""


@dataclass
class Run:
    """A run of a graph for one question. more: the graph's further inputs; streams: give the answer as it is written.

    Iterate over it for its events; None means that none came for a while. Then `output` and `seconds` are set.
    """

    graph: Graph
    question: str
    context: BaseContext
    more: Mapping[str, Any] = field(default_factory=dict)
    streams: bool = True
    output: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def __iter__(self) -> Iterator[Event | None]:
        """Run the graph in a thread: Ctrl-C then reaches the caller at once."""
        begun = time.monotonic()
        reader = EventReader(self.graph)
        parts: queue.SimpleQueue[tuple[float, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._stream, args=(parts,), name="dubito-run", daemon=True).start()
        while True:
            try:
                at, part = parts.get(timeout=TICK)
            except queue.Empty:
                yield None
                continue
            self.seconds = at - begun
            if part is None:
                return
            if isinstance(part, BaseException):
                raise part
            event = reader.event(part, at)
            self.output = reader.output
            if event is not None:
                yield event

    def _stream(self, parts: queue.SimpleQueue[tuple[float, Any]]) -> None:
        try:
            given = {"question": self.question, **self.more}
            modes = ANSWER_MODES if self.streams else MODES
            for part in self.graph.stream(given, context=self.context, stream_mode=modes, subgraphs=True, version="v2"):
                parts.put((time.monotonic(), part))
            parts.put((time.monotonic(), None))
        except BaseException as fault:  # raised again in the thread of the caller
            parts.put((time.monotonic(), fault))
