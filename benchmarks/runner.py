"""What does the evaluation runner cost beside the model server, and batching SePer's judge?

A stub server in a process of its own answers each request after a fixed time, however many are under way. The same
questions are put to `vanilla_rag` with so many under way at once: by calling the graph alone, and by the runner that
keeps each outcome, its trace and every model call on disk. The overhead is what a question takes longer with the
runner, told as a share of the time the server takes for it.

    python benchmarks/runner.py [--latency 1.0] [--questions 128] [--at-once 32]
    python benchmarks/runner.py --judge DIR --answers DATA/evouna/NQ.json [--questions 64]

The second form times the entailment judgements of SePer, by the NLI cross-encoder in DIR: all responses to many
questions put together, one question after the other, and one pair at a time. The responses to a question are what five
systems said to it.
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
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from dubito.concurrency import worker_pool
from dubito.evals.run_folder import EvaluationTask
from dubito.evals.runner import Asker, resources_with_memory, run_all
from dubito.evals.store import Outcome, Store
from dubito.graphs.registry import graph_named
from dubito.models.cross_encoder import CrossEncoderJudge
from dubito.resources.call_cache import CallMemory
from dubito.resources.resources import Resources
from dubito.retrieval.pool import Pool
from dubito.state.vanilla_rag import VanillaRagContext

WORDS = "the river Lune rises in the fells and reaches the sea near Lancaster " * 8


Pairs = list[tuple[str, str]]


class Passages:
    """Five passages for every question, without an encoder."""

    async def pool(self, query: str, top_n: int | None) -> Pool:
        """Texts that repeat the question, so that no two questions share them."""
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


@dataclass(frozen=True)
class Cost:
    """Seconds by the clock, and of this process's CPU, which other processes of a busy machine do not change."""

    seconds: float
    cpu: float


async def timed(work: Callable[[], Awaitable[None]]) -> Cost:
    """What something costs."""
    begun, cpu = time.perf_counter(), time.process_time()
    await work()
    return Cost(time.perf_counter() - begun, time.process_time() - cpu)


async def overhead(url: str, questions: int, at_once: int, repeats: int) -> dict[str, list[Cost]]:
    """What a question costs with the graph alone and with the runner, measured in turn; the first turn warms up."""
    context = VanillaRagContext(llm=f"openai:{url}#stub", concurrency=1024)
    alone = graph_named("vanilla_rag", Resources(retriever=Passages()))
    found: dict[str, list[Cost]] = {"graph alone": [], "runner": [], "runner, only answers kept": []}

    async def ask(text: str) -> None:
        await alone.ainvoke({"question": text}, context=context)

    with tempfile.TemporaryDirectory() as folder, Store(Path(folder, "r.sqlite"), new=True) as store:
        askers = {
            "runner": Asker(
                resources_with_memory(CallMemory(Path(folder, "calls.sqlite")), 0, retriever=Passages()), traces=True
            ),
            "runner, only answers kept": Asker(Resources(retriever=Passages()), traces=False),
        }
        for turn in range(repeats + 1):
            for name, costs in found.items():
                texts = [f"Where does river {turn}-{number} end?" for number in range(questions)]

                async def work(name: str = name, texts: list[str] = texts) -> None:
                    if name not in askers:
                        await worker_pool(texts, ask, at_once)
                        return
                    tasks = [
                        EvaluationTask(name, text, "vanilla_rag", context.model_dump(mode="json"), text)
                        for text in texts
                    ]
                    await run_all(tasks, askers[name], store, at_once=at_once, retry_failed=False, on_end=unwatched)

                cost = await timed(work)
                if turn:
                    costs.append(Cost(cost.seconds / questions, cost.cpu / questions))
        assert all(store.ended().values())
    return found


def unwatched(outcome: Outcome) -> None:
    """Nobody watches."""


def show(found: dict[str, list[Cost]], latency: float, at_once: int) -> None:
    """The medians, and the overhead as a share of the server's time."""
    floor = latency / at_once
    base = [statistics.median(getattr(one, what) for one in found["graph alone"]) for what in ("seconds", "cpu")]
    print(f"server: {floor * 1e3:.2f} ms a question ({latency} s a request, {at_once} at once)")
    for name, costs in found.items():
        seconds, cpu = (statistics.median(getattr(one, what) for one in costs) for what in ("seconds", "cpu"))
        over = seconds - base[0]
        print(
            f"{name}: {seconds * 1e3:.2f} ms a question, {over * 1e3:+.2f} ms ({over / floor:+.1%} of the server's "
            f"time); {cpu * 1e3:.2f} ms of CPU, {(cpu - base[1]) * 1e3:+.2f} ms"
        )


def pairs_to_judge(answers: Path, questions: int) -> list[tuple[str, Pairs]]:
    """For each question the pairs SePer asks of: each of five responses and each gold answer, in both directions."""
    found = []
    for record in json.loads(answers.read_text(encoding="utf-8"))[:questions]:
        golds = list(dict.fromkeys(record["golden_answer"].split("/")))
        said = [str(value) for key, value in record.items() if key.startswith("answer_") and value]
        pairs = [pair for one in said for gold in golds for pair in ((one, gold), (gold, one))]
        found.append((record["question"], pairs))
    return found


async def judging(name: str, asked: list[tuple[str, Pairs]]) -> None:
    """Print the seconds a question takes, put together in three ways, to a judge that remembers nothing."""
    judge = CrossEncoderJudge("nli", name)
    await judge.judge("warm", [("up", "now")])

    async def together() -> None:
        await asyncio.gather(*(judge.judge(question, pairs) for question, pairs in asked))

    async def one_by_one() -> None:
        for question, pairs in asked:
            await judge.judge(question, pairs)

    async def pair_by_pair() -> None:
        for question, pairs in asked:
            for pair in pairs:
                await judge.judge(question, [pair])

    print(f"{len(asked)} questions, {sum(len(pairs) for _, pairs in asked)} pairs")
    ways = {"all questions together": together, "question by question": one_by_one, "pair by pair": pair_by_pair}
    costs = {way: await timed(work) for way, work in ways.items()}
    base = costs["all questions together"]
    for way, cost in costs.items():
        print(
            f"{way}: {cost.seconds / len(asked) * 1e3:.0f} ms a question ({cost.seconds / base.seconds:.2f} x), "
            f"{cost.cpu / len(asked) * 1e3:.0f} ms of CPU ({cost.cpu / base.cpu:.2f} x)"
        )


def main() -> None:
    """Read the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latency", type=float, default=1.0, help="seconds the server takes for a request")
    parser.add_argument("--questions", type=int, default=128)
    parser.add_argument("--at-once", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--judge", help="the folder of an NLI cross-encoder: measure its batching instead")
    parser.add_argument("--answers", type=Path, help="with --judge: EVOUNA's NQ.json or TQ.json")
    options: Any = parser.parse_args()
    if options.judge:
        asyncio.run(judging(options.judge, pairs_to_judge(options.answers, options.questions)))
        return
    here, there = multiprocessing.get_context("spawn").Pipe()
    server = multiprocessing.get_context("spawn").Process(target=_serve, args=(options.latency, there), daemon=True)
    server.start()
    url = f"http://127.0.0.1:{here.recv()}/v1"
    found = asyncio.run(overhead(url, options.questions, options.at_once, options.repeats))
    server.terminate()
    show(found, options.latency, options.at_once)


if __name__ == "__main__":
    main()
