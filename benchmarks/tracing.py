"""What does it cost to record a run?

One question is put to `df_rag` over a chat model that takes 50 ms a call and passages that need no encoder: without any
recording, with `dubito ask`'s trace file, with spans sent to a collector in a process of its own, with both. The ways
take turns, so that whatever else the machine does falls on all of them alike.

    python benchmarks/tracing.py [--latency 0.05] [--repeats 30]

A run with nothing recorded is timed twice in each turn: the difference of the two is what this machine's noise makes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from dubito.graphs.registry import graph_named
from dubito.models.interfaces import (
    MIDDLE_LAYER,
    Capability,
    Choice,
    Completion,
    Introspection,
    Message,
    Reply,
    Sampling,
    Scores,
    StatePlace,
)
from dubito.models.interfaces import Tokens as Cost
from dubito.resources.resources import Resources
from dubito.resources.telemetry import export_spans, stop_exporting
from dubito.retrieval.pool import Pool
from dubito.state.df_rag import DFRagContext
from dubito.traces.run import Run
from dubito.traces.writer import Trace

QUESTION = "Which river flows past the birthplace of the founder?"
WORDS = "the river Lune rises in the fells and reaches the sea near Lancaster " * 15
PLAN = "1) Find the founder\n2) Find the birthplace\n3) Find the river"
REPORT = "1) score: 3 | answer: Ada\n2) score: 1 | answer: none\n3) score: 2 | answer: the Lune"

WAYS = {
    "nothing": (False, False),
    "nothing, again": (False, False),
    "trace file": (True, False),
    "spans": (False, True),
    "trace file and spans": (True, True),
}
"""Is there a trace file, are there spans?"""


class Model:
    """A chat model that takes its time."""

    name = "stub"
    capabilities: frozenset[Capability] = frozenset()

    def __init__(self, latency: float) -> None:
        """latency: seconds a call."""
        self._latency = latency

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        """What the prompt calls for."""
        await asyncio.sleep(self._latency)
        asked = messages[0]["content"]
        text = (
            PLAN if "plan how to answer" in asked else REPORT if "how well a set of passages" in asked else "the Lune"
        )
        return Reply((Completion(text, "stop"),), Cost(1000, 20))

    async def choose(self, messages: Sequence[Message], options: Sequence[str]) -> Choice:
        """Not asked."""
        raise NotImplementedError

    async def score(self, messages: Sequence[Message], continuations: Sequence[str]) -> Scores:
        """Not asked."""
        raise NotImplementedError

    async def introspect(
        self, messages: Sequence[Message], sampling: Sampling, place: StatePlace = MIDDLE_LAYER
    ) -> Introspection:
        """Not asked."""
        raise NotImplementedError

    async def window(self) -> int | None:
        """None."""
        return None

    async def count(self, texts: Sequence[str]) -> list[int]:
        """Words."""
        return [len(text.split()) for text in texts]


class Passages:
    """Two hundred passages of 195 words whose vectors make most levels of diversity choose a set of their own."""

    def __init__(self) -> None:
        """Vectors around that of the question."""
        drawn = np.random.default_rng(0).normal(size=(200, 384)) + 1.0
        self._vectors = (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)

    async def pool(self, query: str, top_n: int | None) -> Pool:
        """All of them."""
        about = np.ones(384, dtype=np.float32) / np.sqrt(np.float32(384))
        return Pool(
            about,
            self._vectors,
            lambda row: {"id": str(row), "doc_id": str(row), "title": f"T{row}", "text": f"{row} {WORDS}"},
        )


def serve(told: Connection) -> None:
    """A collector that takes everything; told: its port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    told.send(server.server_port)
    server.serve_forever()


@contextlib.contextmanager
def spans(url: str | None) -> Iterator[None]:
    """Export meanwhile, to that collector if there is one; what is left is sent before it ends."""
    if url is not None:
        export_spans(url)
    try:
        yield
    finally:
        stop_exporting()


def measured(run: Run, file: Path | None, url: str | None) -> tuple[float, float, int]:
    """Milliseconds the run takes, and of CPU of this process, sending included; and how many model calls it made."""
    cpu = time.process_time()
    with spans(url), contextlib.ExitStack() as stack:
        recorder = None if file is None else stack.enter_context(Trace(file, run))
        for event in run:
            if recorder is not None:
                recorder.on(event)
    return run.seconds * 1e3, (time.process_time() - cpu) * 1e3, run.output["usage"]["calls"]


def main() -> None:
    """Read the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latency", type=float, default=0.05, help="seconds the model takes for a call")
    parser.add_argument("--repeats", type=int, default=30)
    options = parser.parse_args()
    here, there = multiprocessing.get_context("spawn").Pipe()
    collector = multiprocessing.get_context("spawn").Process(target=serve, args=(there,), daemon=True)
    collector.start()
    url = f"http://127.0.0.1:{here.recv()}"
    graph = graph_named("df_rag", Resources(llm=Model(options.latency), retriever=Passages()))
    found: dict[str, list[tuple[float, float, int]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "run.jsonl")
        for turn in range(options.repeats + 1):
            order = list(WAYS)[turn % len(WAYS) :] + list(WAYS)[: turn % len(WAYS)]
            for way in order:
                traced, exported = WAYS[way]
                run = Run(graph, QUESTION, DFRagContext(evaluator="report"))
                cost = measured(run, file if traced else None, url if exported else None)
                if turn:  # the first one warms up
                    found[way].append(cost)
        size = file.stat().st_size
    collector.terminate()
    print(f"{found['nothing'][0][2]} model calls of {options.latency * 1e3:.0f} ms, {size / 1e3:.0f} kB of trace file")
    print("| recorded | ms | ratio | ms of CPU | more CPU, ms |\n|---|---|---|---|---|")
    base = found["nothing"]
    for way, costs in found.items():
        # each turn's ratio, so that a slow moment of the machine is on both sides
        ratio = statistics.median(one[0] / other[0] for one, other in zip(costs, base, strict=True))
        more = statistics.median(one[1] - other[1] for one, other in zip(costs, base, strict=True))
        seconds, cpu = (statistics.median(one[place] for one in costs) for place in (0, 1))
        print(f"| {way} | {seconds:.0f} | {ratio:.3f} | {cpu:.1f} | {more:+.1f} |")


if __name__ == "__main__":
    main()
