"""What does the evaluation runner cost beside the model server, and batching SePer's judge?

A stub server in a process of its own answers each request after a fixed time, however many are under way. The same
questions are put to `vanilla_rag` with so many under way at once: by calling the graph alone, and by the runner that
keeps each outcome, its trace and every model call on disk. The overhead is what a question takes longer with the
runner, told as a share of the time the server takes for it.

    python benchmarks/runner.py [--latency 1.0] [--questions 128] [--at-once 32]
    python benchmarks/runner.py --judge nli:DIR [--questions 64]

The second form compares the entailment judgements of SePer for many questions put together with one pair at a time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from dubito.evals.bench import Task
from dubito.evals.in_turn import in_turn
from dubito.evals.runner import Asker, run_all
from dubito.evals.store import Store
from dubito.graphs.registry import graph_named
from dubito.models.remembered import CallMemory
from dubito.models.resources import Resources
from dubito.retrieval.pool import Pool
from dubito.state.vanilla_rag import VanillaRagContext

WORDS = "the river Lune rises in the fells and reaches the sea near Lancaster " * 8


class Passages:
    """Five passages for every question, without an encoder."""

    async def pool(self, query: str, top_n: int | None) -> Pool:
        vectors = np.ones((5, 2), dtype=np.float32)
        return Pool(
            np.ones(2, dtype=np.float32),
            vectors,
            lambda row: {"id": str(row), "doc_id": str(row), "title": f"T{row}", "text": f"{query} {WORDS}"},
        )


async def serve(latency: float, told: Connection) -> None:
    """Answer chat completions after `latency` seconds; tell the port."""
    message = {"role": "assistant", "content": "The Lune"}
    reply = {
        "id": "x",
        "object": "chat.completion",
        "created": 0,
        "model": "stub",
        "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
        "usage": {"prompt_tokens": 400, "completion_tokens": 3, "total_tokens": 403},
    }
    payload = json.dumps(reply).encode()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(payload)}\r\n\r\n".encode()

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
            except (asyncio.IncompleteReadError, ConnectionError):
                break
            length = next(int(line.partition(":")[2]) for line in lines if line.startswith("content-length"))
            await reader.readexactly(length)
            await asyncio.sleep(latency)
            writer.write(head + payload)
        writer.close()

    server = await asyncio.start_server(client, "127.0.0.1", 0, backlog=1024)
    told.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


def _serve(latency: float, told: Connection) -> None:
    asyncio.run(serve(latency, told))


async def timed(work: Callable[[], Awaitable[None]]) -> float:
    """The seconds that something takes."""
    begun = time.perf_counter()
    await work()
    return time.perf_counter() - begun


async def overhead(url: str, questions: int, at_once: int, repeats: int) -> dict[str, list[float]]:
    """Seconds a question for the graph alone and for the runner, measured in turn."""
    context = VanillaRagContext(llm=f"openai:{url}#stub", concurrency=1024)
    alone = graph_named("vanilla_rag", Resources(retriever=Passages()))
    found: dict[str, list[float]] = {"graph alone": [], "runner": [], "runner, nothing kept but answers": []}
    for repeat in range(repeats):
        texts = [f"Where does river {repeat}-{number} end?" for number in range(questions)]
        tasks = [Task("s", text, "vanilla_rag", context.model_dump(mode="json"), text) for text in texts]

        async def ask(text: str) -> None:
            await alone.ainvoke({"question": text}, context=context)

        async def plain(texts: list[str] = texts) -> None:
            await in_turn(texts, ask, at_once)

        found["graph alone"].append(await timed(plain) / questions)
        for name, kept in (("runner", True), ("runner, nothing kept but answers", False)):
            with tempfile.TemporaryDirectory() as folder, Store(Path(folder, "r.sqlite"), new=True) as store:
                memory = CallMemory(Path(folder, "calls.sqlite")) if kept else None
                asker = Asker(memory, 0, traces=kept, retriever=Passages())

                async def run(asker: Asker = asker, store: Store = store, tasks: list[Task] = tasks) -> None:
                    await run_all(tasks, asker, store, at_once=at_once, retry_failed=False, on_end=lambda outcome: None)

                found[name].append(await timed(run) / questions)
                assert all(store.ended().values())
    return found


def show(found: dict[str, list[float]], latency: float, at_once: int) -> None:
    """The medians, and the overhead as a share of the server's time."""
    floor = latency / at_once
    base = statistics.median(found["graph alone"])
    print(f"server: {floor * 1e3:.2f} ms a question ({latency} s a request, {at_once} at once)")
    for name, seconds in found.items():
        middle = statistics.median(seconds)
        print(
            f"{name}: {middle * 1e3:.2f} ms a question, {(middle - base) * 1e3:+.2f} ms to the graph alone "
            f"({(middle - base) / floor:+.1%} of the server's time)"
        )


def main() -> None:
    """Read the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latency", type=float, default=1.0, help="seconds the server takes for a request")
    parser.add_argument("--questions", type=int, default=128)
    parser.add_argument("--at-once", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--judge", help="measure this judge's batching instead")
    options: Any = parser.parse_args()
    here, there = multiprocessing.get_context("spawn").Pipe()
    server = multiprocessing.get_context("spawn").Process(target=_serve, args=(options.latency, there), daemon=True)
    server.start()
    url = f"http://127.0.0.1:{here.recv()}/v1"
    found = asyncio.run(overhead(url, options.questions, options.at_once, options.repeats))
    server.terminate()
    show(found, options.latency, options.at_once)


if __name__ == "__main__":
    main()
