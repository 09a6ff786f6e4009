"""When does the first token of an answer come, and what does streaming cost?

    python benchmarks/streaming.py [--at-once 32] [--repeats 5]
    python benchmarks/streaming.py --llm vllm:http://127.0.0.1:8000/v1#model [--questions 5]

The first form: a stub server in a process of its own writes each answer token by token, and takes as long for a whole
reply. The same questions are put to `vanilla_rag` with so many under way at once, in turn with a listener to messages
and without one. The second form: a real server, one question at a time; the first token of the answer against the
last, from the start of the run and from the start of the answering call.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection
from typing import Any

from dubito.graphs import vanilla_rag
from dubito.resources.resources import Resources
from dubito.state.vanilla_rag import VanillaRagContext
from dubito.tests.scripted import ScriptedRetriever
from langgraph.graph.state import CompiledStateGraph

TOKENS = [" river"] * 64
USAGE = {"prompt_tokens": 10, "completion_tokens": len(TOKENS)}
FIRST_S, NEXT_S = 0.3, 0.03
"""Seconds that the stub takes for the first token, and for each further one."""

QUESTIONS = (
    "Who founded the newspaper that first printed The Salt Road?",
    "Which bridge is longer, the Maddern Bridge or the Maddern Street Bridge?",
    "In one paragraph: what is The Salt Road about?",
    "In one paragraph: who is Beatrix Hale?",
    "In one paragraph: what do the passages say about the Maddern Bridge?",
)


Graph = CompiledStateGraph[Any, Any, Any, Any]


async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the requests of one connection."""
    while head := await reader.readuntil(b"\r\n\r\n"):
        if head.startswith(b"GET"):  # the list of models
            writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 22\r\n\r\n{"data": [{"id":"m"}]}')
            continue
        length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        body = json.loads(await reader.readexactly(length))
        await asyncio.sleep(FIRST_S)
        if not body.get("stream"):
            await asyncio.sleep(NEXT_S * (len(TOKENS) - 1))
            message = {"role": "assistant", "content": "".join(TOKENS)}
            whole = json.dumps({"choices": [{"message": message, "finish_reason": "stop"}], "usage": USAGE}).encode()
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(whole)
            )
            writer.write(whole)
            continue
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        begun = time.monotonic()
        for number, token in enumerate(TOKENS):
            await asyncio.sleep(begun + number * NEXT_S - time.monotonic())
            writer.write(event({"choices": [{"index": 0, "delta": {"content": token}}]}))
        writer.write(event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}))
        writer.write(event({"choices": [], "usage": USAGE}) + event(None) + b"0\r\n\r\n")


def event(chunk: dict[str, Any] | None) -> bytes:
    """A server-sent event as a chunk of HTTP; None ends the stream."""
    data = f"data: {'[DONE]' if chunk is None else json.dumps(chunk)}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(data), data)


def serve(pipe: Connection) -> None:
    """The stub's process; tells its port."""

    async def run() -> None:
        server = await asyncio.start_server(reply, "127.0.0.1", 0)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


async def ask(graph: Graph, context: VanillaRagContext, question: str, modes: list[Any]) -> tuple[float, float, int]:
    """Seconds to the first piece of the answer and to the end of the run, and the number of pieces."""
    begun, first, count = time.perf_counter(), 0.0, 0
    async for mode, _ in graph.astream({"question": question}, context=context, stream_mode=modes):
        if mode == "messages":
            first, count = first or time.perf_counter() - begun, count + 1
    return first, time.perf_counter() - begun, count


async def overhead(port: int, at_once: int, repeats: int) -> None:
    """All questions at once, with a listener and without one in turn."""
    graph: Graph = vanilla_rag.build(Resources(retriever=ScriptedRetriever([1.0], [[1.0]] * 5))).compile()
    context = VanillaRagContext(llm=f"openai:http://127.0.0.1:{port}/v1#m", concurrency=at_once, max_answer_tokens=64)
    kinds: dict[str, list[Any]] = {"plain": ["values"], "plain again": ["values"], "streamed": ["values", "messages"]}
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    processor: dict[str, list[float]] = {kind: [] for kind in kinds}
    for turn in range(repeats + 1):  # the first opens connections and is not counted
        for kind, modes in kinds.items():
            begun = time.process_time()
            runs = await asyncio.gather(*(ask(graph, context, f"{i}?", modes) for i in range(at_once)))
            if turn:
                seconds[kind].append(statistics.mean(last for _, last, _ in runs))
                processor[kind].append((time.process_time() - begun) / at_once)
    print(f"{at_once} at once, {len(TOKENS)} tokens an answer, {repeats} turns")
    for kind, counted in seconds.items():
        ratio = statistics.median(one / plain for one, plain in zip(counted, seconds["plain"], strict=True))
        busy = 1000 * statistics.median(processor[kind])
        print(f"{kind:12} {statistics.median(counted):.3f} s a question, ratio {ratio:.3f}, {busy:.1f} ms of CPU")


async def first_tokens(llm: str, questions: int) -> None:
    """A real server, one question at a time."""
    context = VanillaRagContext(llm=llm, max_answer_tokens=64)
    print("first token (s)  last token (s)  first / last  pieces")
    await ask(vanilla_rag.graph, context, "Is this server warm?", ["values"])
    for question in QUESTIONS[:questions]:
        first, last, count = await ask(vanilla_rag.graph, context, question, ["values", "messages"])
        print(f"{first:15.2f}  {last:14.2f}  {first / last:12.2f}  {count:6}")


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--llm", help="a model on a real server")
    arguments.add_argument("--questions", type=int, default=len(QUESTIONS))
    arguments.add_argument("--at-once", type=int, default=32)
    arguments.add_argument("--repeats", type=int, default=5)
    given = arguments.parse_args()
    if given.llm:
        asyncio.run(first_tokens(given.llm, given.questions))
        return
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    try:
        asyncio.run(overhead(ours.recv(), given.at_once, given.repeats))
    finally:
        process.terminate()


if __name__ == "__main__":
    main()
