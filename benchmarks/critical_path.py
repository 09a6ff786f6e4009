"""Does a graph wait for anything but its model?

Every request to the stub server takes `--latency` seconds. The chain is the largest number of model calls and
embeddings of one question of which none ran beside another; a graph that waits for nothing else takes that many
latencies. Requests that only count tokens are not in the chain, so they show where a graph waits for them.

    python benchmarks/critical_path.py [--latency 0.5] [--questions 3] [--graph NAME ...]
"""

import argparse
import asyncio
import statistics
import time
import zlib
from dataclasses import dataclass, field
from typing import Any

from dubito.benchmarks.chaos import TEXT, FaultyServer, settings_of
from dubito.graphs.registry import graph_named, graph_names, takes_answers
from dubito.resources.resources import Resources

COUNTS = "/tokenize"
RIVERS = ("Lune", "Wyre", "Ribble")


@dataclass
class SlowServer(FaultyServer):
    """Like a vLLM server, with a fixed time for each request. seen: of each request the path, the begin and the end."""

    latency: float = 0.5
    doubtful: bool = False
    seen: list[tuple[str, float, float]] = field(default_factory=list)

    async def _answer(self, writer: asyncio.StreamWriter, path: str, body: dict[str, Any]) -> bool:
        begin = time.monotonic()
        await asyncio.sleep(self.latency)
        self.seen.append((path, begin, time.monotonic()))
        return await super()._answer(writer, path, body)

    def _reply(self, path: str, body: dict[str, Any], *, spoiled: bool) -> dict[str, Any]:
        if path.endswith("/models"):
            return {"data": [{"id": "stub", "owned_by": "vllm", "max_model_len": 32_000}]}
        if path.endswith(COUNTS):
            return {"count": 40, "max_model_len": 32_000, "tokens": [1] * 40}
        reply = super()._reply(path, body, spoiled=spoiled)
        if options := body.get("structured_outputs", {}).get("choice"):  # the last: a self-evaluation's "no"
            told = {"token": options[-1], "logprob": 0.0}
            reply["choices"][0]["logprobs"] = {"content": [{**told, "top_logprobs": [told]}]}
        return reply

    def text(self, prompt: str) -> str:
        """Other passages get an answer of another meaning, where nothing but an answer is asked for."""
        text = super().text(prompt)
        return RIVERS[zlib.crc32(prompt.encode()) % len(RIVERS)] if self.doubtful and text == TEXT else text


def chain(seen: list[tuple[str, float, float]]) -> int:
    """The largest number of calls of which none ran beside another; token counts are left out."""
    number, free = 0, 0.0
    for path, begin, end in sorted(seen, key=lambda request: request[2]):
        if begin >= free and not path.endswith(COUNTS):
            number, free = number + 1, end
    return number


async def measured(graph: str, latency: float, questions: int) -> tuple[int, float, float]:
    """The chain of a question, its seconds, and their ratio to the chain's latencies; medians."""
    runnable, found = graph_named(graph, Resources()), []
    async with SlowServer(latency=latency, doubtful=graph.startswith("dense")) as server:
        context = settings_of(graph, server.url)
        context["llm"] = context["llm"].replace("openai:", "vllm:")
        for _ in range(questions + 1):  # the first one embeds the corpus and tries the model
            question: dict[str, Any] = {"question": f"Which river flows through town {time.time_ns()}?"}
            if takes_answers(runnable):
                question["answers"] = ["the Lune"]
            server.seen.clear()
            begun = time.monotonic()
            await runnable.ainvoke(question, context=context)
            seconds = time.monotonic() - begun
            found.append((chain(server.seen), seconds, seconds / (chain(server.seen) * latency)))
    chains, seconds_of, ratios = zip(*found[1:], strict=True)
    return int(statistics.median(chains)), statistics.median(seconds_of), statistics.median(ratios)


async def main(graphs: list[str], latency: float, questions: int) -> None:
    """Measure every graph, and print a row for each."""
    print("| graph | longest chain | seconds | seconds / (chain x latency) |\n|---|---|---|---|")
    for graph in graphs:
        length, seconds, ratio = await measured(graph, latency, questions)
        print(f"| `{graph}` | {length} | {seconds:.2f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--latency", type=float, default=0.5)
    parser.add_argument("--questions", type=int, default=3)
    parser.add_argument("--graph", action="append", choices=graph_names())
    given = parser.parse_args()
    asyncio.run(main(given.graph or list(graph_names()), given.latency, given.questions))
