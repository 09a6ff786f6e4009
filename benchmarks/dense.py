"""How close does a DENSE measurement come to its three rounds of latency?

A stub server answers every request after a fixed time, however many are under way. A measurement of k chunks with the
chat model as judge needs three rounds: the rephrasings, the answers, the judgements. It is compared with that floor,
and with the same work done call by call (`concurrency` 1).

    python benchmarks/dense.py [--latency 0.5] [--questions 5] [--write FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from dubito.graphs import dense
from dubito.state.dense import DenseContext

CHUNKS = [f"Passage {letter} tells of the river Lune and of the town of Lancaster." * 8 for letter in "ABCDEFGHIJ"]
ANSWERS = ("The Lune", "The Wyre", "The Ribble")


async def serve(latency: float, told: Connection) -> None:
    """Answer chat completions after `latency` seconds; tell the port."""

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await _head(reader):
            length = next((int(v) for k, v in head if k == "content-length"), 0)
            body = json.loads(await reader.readexactly(length))
            await asyncio.sleep(latency)
            payload = json.dumps(completion(body["messages"])).encode()
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
                + f"content-length: {len(payload)}\r\n\r\n".encode()
                + payload
            )
        writer.close()

    server = await asyncio.start_server(client, "127.0.0.1", 0)
    told.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


async def _head(reader: asyncio.StreamReader) -> list[tuple[str, str]]:
    try:
        text = (await reader.readuntil(b"\r\n\r\n")).decode()
    except (asyncio.IncompleteReadError, ConnectionError):
        return []
    lines = (line.partition(":") for line in text.split("\r\n")[1:] if line)
    return [(name.lower(), value.strip()) for name, _, value in lines]


def completion(messages: list[dict[str, str]]) -> dict[str, object]:
    """A rephrasing, an answer that differs between contexts, or a judgement."""
    system, user = messages[0]["content"], messages[-1]["content"]
    digest = hashlib.sha256(user.partition("Answer this question")[0].encode()).digest()
    if "You rewrite texts" in system:
        text = f"In other words, {digest.hex()}."
    elif "entail" in system:
        text = "neutral"
    else:
        text = ANSWERS[digest[0] % len(ANSWERS)]
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return {"id": "1", "object": "chat.completion", "created": 0, "model": "stub", "choices": [choice], "usage": usage}


def start(latency: float) -> tuple[multiprocessing.Process, int]:
    """The stub server in a process of its own, and its port."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=lambda: asyncio.run(serve(latency, theirs)), daemon=True)
    process.start()
    return process, ours.recv()


async def measured(port: int, k: int, questions: int, concurrency: int) -> tuple[list[float], int, int]:
    """Seconds of each measurement, and the calls and distinct answers of the last."""
    machine = dense.build().compile()
    context = DenseContext(llm=f"openai:http://127.0.0.1:{port}/v1#stub", judge="llm", concurrency=concurrency)
    seconds: list[float] = []
    result: dict[str, Any] = {}
    for number in range(questions + 1):  # the first one opens connections, and is not counted
        question = f"Which river? ({k}, {concurrency}, {number})"  # else its judgements would be remembered
        begun = time.perf_counter()
        result = await machine.ainvoke({"question": question, "chunks": list(CHUNKS[:k])}, context=context)
        seconds.append(time.perf_counter() - begun)
    return seconds[1:], result["usage"]["calls"], len(set(result["responses"]))


def table(latency: float, questions: int) -> str:
    """The measurements as Markdown."""
    process, port = start(latency)
    rows = []
    try:
        for k in (1, 5, 10):
            seconds, calls, distinct = asyncio.run(measured(port, k, questions, 64))
            alone, alone_calls, _ = asyncio.run(measured(port, k, 1, 1))
            floor, median = 3 * latency, statistics.median(seconds)
            rows.append(
                f"| {k} | {calls} | {distinct} | {median:.2f} | {median / floor:.2f} | {max(seconds) / floor:.2f} "
                f"| {alone_calls} | {alone[0]:.2f} | {alone[0] / median:.1f} |"
            )
    finally:
        process.terminate()
    head = (
        f"Latency {latency} s a request, {questions} measurements each, chat model as judge.\n\n"
        "| k | calls | distinct answers | median s | x three rounds | slowest x three rounds "
        "| calls one by one | s one by one | times slower |\n|---|---|---|---|---|---|---|---|---|\n"
    )
    return head + "\n".join(rows) + "\n"


def main() -> None:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latency", type=float, default=0.5)
    parser.add_argument("--questions", type=int, default=5)
    parser.add_argument("--write", type=Path)
    arguments = parser.parse_args()
    report = table(arguments.latency, arguments.questions)
    print(report)
    if arguments.write:
        arguments.write.write_text(report, encoding="utf-8")


if __name__ == "__main__":
    multiprocessing.set_start_method("fork")
    main()
