"""Many runs at once: does anything of one run reach another, and does anything grow with the number of runs?

Every run asks about a town of its own, with a corpus, a model, a key and settings of its own. The stub server answers
each request from its prompt alone, and notes what came to which town. So a passage, an answer, a setting or a key of
one run in another is seen: in a prompt, in the output, in the trace, or in the counted calls.

    python benchmarks/load.py [--at-once 64] [--graph NAME ...]     64 runs of each graph at once, in this process
    python benchmarks/load.py --server                              the same through `langgraph dev`
    python benchmarks/load.py --runs 2000                           memory, threads and descriptors while they are run
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import multiprocessing
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import dubito
from dubito.graphs.registry import context_type
from dubito.traces.events import MODES, EventReader
from dubito.traces.recording import assembled
from dubito.traces.writer import first_line, last_line, line_of
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from langgraph_sdk import get_client

if TYPE_CHECKING:
    from dubito.graphs.registry import Graph
LANGGRAPH_JSON = Path(dubito.__file__).parent / "langgraph.json"
TOWN = re.compile(r"Town(\d+)x")
LIMITS = 2000
"""The setting `max_answer_tokens` of town 0; each town has the next number."""

PORTS = 4
"""Of the stub server. Each has a key of its own."""

WAYS = ("ainvoke", "invoke in a thread", "astream with a trace")
BLOCK = 250


# --- the server: in a process of its own, so that its memory is not counted ---


@dataclass
class Town:
    """What came to the server for one town.

    others: other towns that a prompt named; keys, models, limits: the keys, model names and values of
    `max_answer_tokens` that came; most: the highest number of requests at a time; dropped: requests whose client has
    hung up.
    """

    calls: int = 0
    prompt_tokens: int = 0
    others: set[str] = field(default_factory=set)
    keys: set[str] = field(default_factory=set)
    models: set[str] = field(default_factory=set)
    limits: set[int] = field(default_factory=set)
    under_way: int = 0
    most: int = 0
    dropped: int = 0


class TownServer:
    """An OpenAI-compatible server at /Town7x/SECONDS/v1, each of whose replies takes that long.

    /told gives what came since it was asked last, and what is under way.
    """

    def __init__(self) -> None:
        """Nothing has come yet."""
        self._towns: dict[str, Town] = {}
        self._open: set[asyncio.StreamWriter] = set()

    async def client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        self._open.add(writer)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = re.search(r"content-length: (\d+)", head, re.IGNORECASE)
                body = json.loads(await reader.readexactly(int(length[1])) if length else b"{}")
                _, name, *rest = head.split()[1].split("/")
                town = self._towns.setdefault(name, Town()) if rest else Town()
                reply = self._reply(town, name, head, body) if rest else self._told()
                if rest and "messages" in body and not await self._takes(town, float(rest[0]), reader):
                    break
                payload = json.dumps(reply).encode()
                writer.write(b"HTTP/1.1 200 X\r\ncontent-type: application/json\r\n")
                writer.write(b"content-length: %d\r\n\r\n" % len(payload) + payload)
                await writer.drain()
        self._open.discard(writer)
        writer.close()

    def _told(self) -> dict[str, Any]:
        told = {name: {**vars(town)} for name, town in self._towns.items()}
        self._towns = {name: town for name, town in self._towns.items() if town.under_way}
        return {
            "connections": len(self._open) - 1,
            "towns": {n: {k: sorted(v) if isinstance(v, set) else v for k, v in t.items()} for n, t in told.items()},
        }

    @staticmethod
    async def _takes(town: Town, seconds: float, reader: asyncio.StreamReader) -> bool:
        """Wait before a reply; is the client still there?"""
        town.under_way += 1
        town.most = max(town.most, town.under_way)
        with suppress(TimeoutError):
            await asyncio.wait_for(reader.read(1), seconds or 0.001)
        town.under_way -= 1
        town.dropped += reader.at_eof()
        return not reader.at_eof()

    @staticmethod
    def _reply(town: Town, name: str, head: str, body: dict[str, Any]) -> dict[str, Any]:
        if "model" not in body:  # it is asked for its list of models
            return {"object": "list", "data": []}
        key = re.search(r"authorization: bearer (\S+)", head, re.IGNORECASE)
        texts = body["input"] if "input" in body else [one["content"] for one in body["messages"]]
        town.others |= {f"Town{number}x" for text in texts for number in TOWN.findall(text)} - {name}
        town.keys.add(key[1] if key else "")
        town.models.add(body["model"])
        if "input" in body:
            rows = [{"object": "embedding", "index": i, "embedding": _words(text)} for i, text in enumerate(texts)]
            return {"object": "list", "data": rows, "model": "words", "usage": {"prompt_tokens": 1, "total_tokens": 1}}
        prompt_tokens = sum(len(text.split()) for text in texts)
        if texts != ["Say yes."]:  # a model is tried once, which belongs to no run
            town.calls += 1
            town.prompt_tokens += prompt_tokens
        if (limit := int(body.get("max_tokens") or 0)) >= LIMITS:
            town.limits.add(limit)
        return _chat(name, texts[-1], body, prompt_tokens)


def _chat(town: str, user: str, body: Mapping[str, Any], prompt_tokens: int) -> dict[str, Any]:
    """A reply that every parser can read. It depends on the prompt, so that DENSE has something to doubt."""
    listed = re.search(r"nothing else: (.*)", user)
    river = f"the Lune of {town}" if zlib.crc32(user.encode()) % 2 else f"brown water runs by {town} into some lake"
    lines = f"1) score: 3 | answer: {river}\nFinal answer: {river}\nSo the final answer is: {river}."
    text = listed[1].split(" | ")[0] if listed else lines
    one: dict[str, Any] = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    if body.get("logprobs"):
        one["logprobs"] = {"content": [{"token": text, "logprob": -0.1, "top_logprobs": []}]}
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": 3, "total_tokens": prompt_tokens + 3}
    choices = [{"index": i, **one} for i in range(body.get("n") or 1)]
    return {"id": "x", "object": "chat.completion", "choices": choices, "usage": usage}


def _words(text: str) -> list[float]:
    row = [0.1] * 64
    for word in text.lower().split():
        row[zlib.crc32(word.encode()) % 64] += 1.0
    return row


async def _serve(told: Connection) -> None:
    server = TownServer()
    listening = [await asyncio.start_server(server.client, "127.0.0.1", 0, backlog=1024) for _ in range(PORTS)]
    told.send([each.sockets[0].getsockname()[1] for each in listening])
    await asyncio.Event().wait()


def _in_process(told: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asyncio.run(_serve(told))


@contextmanager
def town_server() -> Iterator[list[int]]:
    """Start the server in a process of its own; its ports."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    server = spawn.Process(target=_in_process, args=(there,), daemon=True)
    server.start()
    try:
        yield here.recv()
    finally:
        server.terminate()
        server.join()


def keys_of(ports: Sequence[int]) -> str:
    """The value of DUBITO_KEYS that gives each port its key."""
    return " ".join(f"http://127.0.0.1:{port}=key-{port}" for port in ports)


def told(ports: Sequence[int]) -> dict[str, Any]:
    """What came to the server since it was asked last."""
    with urlopen(f"http://127.0.0.1:{ports[0]}/told", timeout=30) as reply:
        found: dict[str, Any] = json.load(reply)
    return found


# --- the runs ---


def graphs() -> list[str]:
    """Every graph of langgraph.json."""
    return list(json.loads(LANGGRAPH_JSON.read_text())["graphs"])


def _graph(name: str) -> Graph:
    module, _, attribute = json.loads(LANGGRAPH_JSON.read_text())["graphs"][name]["path"].partition(":")
    graph: Graph = getattr(import_module(module), attribute)
    return graph


@dataclass(frozen=True)
class Asked:
    """A run: a graph and the number of its town. seconds: how long the server takes for each of its chats."""

    graph: str
    number: int
    port: int
    corpus: Path
    seconds: float = 0.0

    @property
    def town(self) -> str:
        """The word that only this run's texts hold."""
        return f"Town{self.number}x"

    @property
    def given(self) -> dict[str, Any]:
        """The graph's input."""
        question = f"Which river flows through {self.town}?"
        if self.graph.endswith("_chat"):
            return {"messages": [{"role": "user", "content": question}]}
        return {"question": question, **({"answers": [f"the Lune of {self.town}"]} if self.graph == "seper" else {})}

    @property
    def context(self) -> dict[str, Any]:
        """The graph's settings, each another one than the neighbours have."""
        url = f"http://127.0.0.1:{self.port}/{self.town}/{self.seconds}/v1"
        settings = {
            "llm": f"openai:{url}#chat-{self.number}",
            "encoder": f"openai:{url}#words-{self.number}",
            "graph_encoder": f"openai:{url}#words-{self.number}",
            "corpus": str(self.corpus),
            "chunker": "words:100",
            "max_answer_tokens": LIMITS + self.number,
            "concurrency": 1 + self.number % 5,
            "k": 2 + self.number % 3,
            "adaptive": False,
            "evaluator": "report",
            "estimator": "perplexity",
            "retrieval_threshold": 0.5,
            "max_iterations": 2,
        }
        schema = context_type(_graph(self.graph))
        own = {name: value for name, value in settings.items() if name in schema.model_fields}
        given = schema.unchecked(own)
        return {name: value for name, value in own.items() if given.is_used(name)}


@dataclass(frozen=True)
class Ended:
    """A run that ended: its output, everything that was said of it on the way, its calls there, and its seconds."""

    asked: Asked
    output: dict[str, Any]
    said: str
    calls: int | None
    seconds: float


def runs_of(graph: str, numbers: Sequence[int], ports: Sequence[int], folder: Path) -> list[Asked]:
    """A run for each number, with its corpus of six documents."""
    asked = []
    for number in numbers:
        corpus = folder / f"{number}.jsonl"
        if not corpus.exists():
            texts = [f"Paper {i} of Town{number}x tells of its river. It was printed in {1900 + i}." for i in range(6)]
            corpus.write_text("\n".join(json.dumps({"id": f"{i}", "text": text}) for i, text in enumerate(texts)))
        asked.append(Asked(graph, number, ports[number % len(ports)], corpus))
    return asked


async def ask(asked: Asked, way: str, pool: ThreadPoolExecutor | None = None) -> Ended:
    """Run a graph in this process, in one of `WAYS`. A person accepts what is reviewed."""
    graph: Any = _graph(asked.graph)
    config, given = {"configurable": {"thread_id": "1"}}, asked.given  # type: dict[str, Any], Any
    if asked.graph.endswith("_reviewed"):
        graph = graph.copy(update={"checkpointer": InMemorySaver()})
    said, calls, begun = "", None, time.perf_counter()
    while True:
        if way == "ainvoke":
            output = await graph.ainvoke(given, config, context=asked.context)
        elif way == "invoke in a thread":
            work = partial(graph.invoke, given, config, context=asked.context)
            output = await asyncio.get_running_loop().run_in_executor(pool, work)
        else:
            output, trace, counted = await _traced(graph, asked, given, config)
            said, calls = said + trace, (calls or 0) + counted
        if "__interrupt__" not in output:
            break
        said, given = said + str(output), Command(resume="accept")
    return Ended(asked, output, said, calls, time.perf_counter() - begun)


async def _traced(graph: Any, asked: Asked, given: Any, config: Any) -> tuple[dict[str, Any], str, int]:  # noqa: ANN401
    """Stream a run; its output, its trace, and the model calls in the trace."""
    context = context_type(graph).model_validate(asked.context)
    reader, interrupts = EventReader(graph), []
    lines = [first_line(graph, "", context)]
    async for part in graph.astream(
        given, config, context=context, stream_mode=[*MODES, "updates"], subgraphs=True, version="v2"
    ):
        if part["type"] == "updates":
            interrupts += part["data"].get("__interrupt__", ())
        elif (line := line_of(reader.event(part, time.monotonic()))) is not None:
            lines.append(line)
    lines.append(last_line(0.0, reader.output, None))
    recording = assembled(Path("run"), lines)
    output = {**reader.output, **({"__interrupt__": interrupts} if interrupts else {})}
    return output, b"".join(lines).decode(), len(recording.calls)


async def ask_server(asked: Asked, client: Any, *, stream: bool) -> Ended:  # noqa: ANN401 - its overloads
    """Run a graph on a server of graphs, waiting for it or reading its stream."""
    said, calls, begun, way = "", None, time.perf_counter(), {"input": asked.given}
    thread = (await client.threads.create())["thread_id"]
    while True:
        if stream:
            counted = 0
            modes = ["values", "custom", "tasks", "updates"]
            async for part in client.runs.stream(
                thread, asked.graph, **way, context=asked.context, stream_mode=modes, stream_subgraphs=True
            ):
                if part.event == "error":
                    raise RuntimeError(part.data)
                said += json.dumps(part.data)
                counted += part.event.startswith("custom") and part.data["type"] == "llm_call"
            calls = (calls or 0) + counted
            output = (await client.threads.get_state(thread))["values"]
            waiting = (await client.threads.get(thread))["status"] == "interrupted"
        else:
            output = await client.runs.wait(thread, asked.graph, **way, context=asked.context)
            waiting = "__interrupt__" in output
        if not waiting:
            break
        way = {"command": {"resume": "accept"}}
    await client.threads.delete(thread)
    return Ended(asked, output, said, calls, time.perf_counter() - begun)


def bled(ended: Ended, town: Mapping[str, Any]) -> list[str]:
    """What of this run is not its own. town: what came to the server for its town."""
    asked, output = ended.asked, ended.output
    whole = json.dumps(output, default=str) + ended.said
    named = {f"Town{number}x" for number in TOWN.findall(whole)} - {asked.town}
    found = [f"its output or trace names {other}" for other in sorted(named)]
    found += [f"a prompt names {other}" for other in town["others"]]
    if asked.town not in json.dumps(output["answer"]):
        found.append(f"its answer is {output['answer']!r}")
    expected = {
        "keys": [f"key-{asked.port}"],
        "models": {f"chat-{asked.number}", f"words-{asked.number}"},
        "limits": {LIMITS + asked.number},
    }
    found += [f"{what}: {town[what]}" for what, own in expected.items() if not set(town[what]) <= set(own)]
    if town["most"] > asked.context["concurrency"]:
        found.append(f"{town['most']} calls at a time")
    counts = {"calls": output["usage"]["calls"], "prompt_tokens": output["usage"]["prompt_tokens"]}
    found += [f"{what}: {count}, and {town[what]} came" for what, count in counts.items() if count != town[what]]
    if ended.calls is not None and ended.calls != town["calls"]:
        found.append(f"{ended.calls} calls in its trace, and {town['calls']} came")
    return [f"{asked.graph}, {asked.town}: {each}" for each in found]


def all_bled(ended: Sequence[Ended], came: Mapping[str, Any]) -> list[str]:
    """What of these runs is not their own; each has a town of its own. came: what the server told."""
    return [what for one in ended for what in bled(one, came["towns"][one.asked.town])]


async def at_once(asked: Sequence[Asked]) -> list[Ended]:
    """Run them all at once, in all of `WAYS` in turn."""
    with ThreadPoolExecutor(len(asked)) as pool:
        return await asyncio.gather(*(ask(one, WAYS[i % len(WAYS)], pool) for i, one in enumerate(asked)))


async def at_once_on_server(asked: Sequence[Asked], url: str) -> list[Ended]:
    """Run them all at once on a server of graphs, half of them streamed."""
    async with get_client(url=url) as client:
        return await asyncio.gather(*(ask_server(one, client, stream=i % 2 == 0) for i, one in enumerate(asked)))


# --- the server of graphs ---


@contextmanager
def dev_server(ports: Sequence[int], folder: Path) -> Iterator[str]:
    """`langgraph dev --n-jobs-per-worker 8`; its URL."""
    shutil.copy(LANGGRAPH_JSON, folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [shutil.which("langgraph", path=str(Path(sys.executable).parent)) or "langgraph", "dev", "--no-browser"]
    words += ["--no-reload", "--n-jobs-per-worker", "8", "--host", "127.0.0.1", "--port", str(port)]
    environment = {**os.environ, "LANGGRAPH_CLI_NO_ANALYTICS": "1", "LANGSMITH_TRACING": "false"}
    environment |= {"DUBITO_KEYS": keys_of(ports)}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(words, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        for _ in range(400):
            with suppress(OSError), urlopen(f"http://127.0.0.1:{port}/ok", timeout=2):
                break
            if process.poll() is not None:
                raise RuntimeError((folder / "log").read_text()[-2000:])
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)


# --- what is measured ---


async def measure_bleed(names: Sequence[str], ports: Sequence[int], folder: Path, most: int, url: str | None) -> None:
    """Print a row for each graph: `most` runs at once."""
    print("| graph | runs at once | not its own | seconds | a run, median | 95 % |")
    print("|---|---:|---:|---:|---:|---:|")
    for name in names:
        asked = runs_of(name, range(most), ports, folder)
        begun = time.perf_counter()
        ended = await (at_once(asked) if url is None else at_once_on_server(asked, url))
        seconds = time.perf_counter() - begun
        found = all_bled(ended, told(ports))
        print("".join(f"{what}\n" for what in found[:5]), end="", file=sys.stderr)
        times = sorted(one.seconds for one in ended)
        median, late = statistics.median(times), times[int(0.95 * (len(times) - 1))]
        print(f"| {name} | {most} | {len(found)} | {seconds:.1f} | {median:.1f} s | {late:.1f} s |", flush=True)


@dataclass(frozen=True)
class Held:
    """What this process holds: resident memory in MB, threads, descriptors; and connections to the stub server."""

    memory: float
    threads: int
    descriptors: int
    connections: int


def held(ports: Sequence[int]) -> Held:
    """What this process holds now."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    memory = pages * os.sysconf("SC_PAGE_SIZE") / 1e6
    return Held(
        memory, threading.active_count(), sum(1 for _ in Path("/proc/self/fd").iterdir()), told(ports)["connections"]
    )


def one_after_another(asked: Sequence[Asked]) -> None:
    """Run them eight at a time, each eight in an event loop that is closed after them."""
    for start in range(0, len(asked), 8):
        asyncio.run(at_once(asked[start : start + 8]))


def measure_growth(names: Sequence[str], ports: Sequence[int], folder: Path, runs: int) -> None:
    """Print what this process holds, after each `BLOCK` of runs of all graphs."""
    numbers = range(16)
    every = [runs_of(name, numbers, ports, folder) for name in names]
    print("| runs | memory, MB | threads | descriptors | connections |")
    print("|---:|---:|---:|---:|---:|")
    done, rows = 0, []
    while done < runs + BLOCK:
        batch = [every[i % len(every)][i % len(numbers)] for i in range(done, done + BLOCK)]
        one_after_another(batch)
        done += BLOCK
        row = held(ports)
        rows.append(row)
        print(
            f"| {done} | {row.memory:.1f} | {row.threads} | {row.descriptors} | {row.connections} |",
            flush=True,
        )
    grown = (rows[-1].memory - rows[0].memory) / (done - BLOCK) * 1000
    print(f"\nAfter the first {BLOCK} runs, memory grew by {grown:.1f} MB per 1,000 runs.")


def main() -> None:
    """Read the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at-once", type=int, default=64)
    parser.add_argument("--graph", action="append", choices=graphs())
    parser.add_argument("--server", action="store_true")
    parser.add_argument("--runs", type=int)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place, town_server() as ports:
        folder, names = Path(place), given.graph or graphs()
        os.environ.update(DUBITO_CACHE_DIR=str(folder / "cache"), DUBITO_KEYS=keys_of(ports))

        if given.runs:
            measure_growth(names, ports, folder, given.runs)
        elif given.server:
            with dev_server(ports, folder) as url:
                asyncio.run(measure_bleed(names, ports, folder, given.at_once, url))
        else:
            asyncio.run(measure_bleed(names, ports, folder, given.at_once, None))


if __name__ == "__main__":
    main()
