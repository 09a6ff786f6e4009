"""Does exploring the neighbourhood find more than re-ranking? Supporting titles of 2WikiMultihopQA, no chat model.

    python benchmarks/sunar_recall.py --data DIR [--write docs/measurements/sunar_recall.md]
        [--first-stage splade:FOLDER] [--reranker cross:FOLDER] [--reranker likelihood --llm NAME]

DIR holds 2wikimultihopqa/ with the corpus of 6,119 passages and the 177 open questions. The graph `neighbourhood` runs
as it is, with the embedded models, no penalty, and a chat model that always says the same. Re-ranking alone is the
same graph with no neighbours. Further first stages and re-rankers come in by their names, as the settings have them.
Index and document graph are built at first use and kept in the cache folder.
With --write the measured part of the page is replaced; what stands outside its two marks is kept.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from dubito.graphs import neighbourhood
from dubito.models.interfaces import ChatModel, Completion, Encoder, Message, Reply, Sampling, Tokens, Vectors
from dubito.nodes.update_frontier import ranked
from dubito.resources.opening import open_chat_model, open_encoder
from dubito.resources.resources import Resources
from dubito.retrieval.corpus_graph import CorpusGraph
from dubito.retrieval.index import Index
from dubito.state.neighbourhood import NeighbourhoodContext, ScoredDocument
from numpy.typing import NDArray

CUTS = (5, 10, 100)
DRAWS = 200
"""Sets of random titles that are drawn for every question."""
BASE, RERANKED, DENSE = "BM25", "BM25, its 100 re-ranked", "dense: every chunk compared"
SETTINGS: dict[str, dict[str, Any]] = {
    RERANKED: {"graph_neighbours": 0, "budget": 100},
    "NAR, budget 50": {"budget": 50},
    "NAR, budget 100": {"budget": 100},
    "NAR, budget 200": {"budget": 200},
    "BM25, its 50 re-ranked": {"graph_neighbours": 0, "budget": 50},
    "BM25, its 200 re-ranked": {"graph_neighbours": 0, "budget": 200, "first_stage_n": 200},
    "NAR, budget 100, 5 neighbours": {"budget": 100, "graph_neighbours": 5},
    "NAR, budget 100, 20 neighbours": {"budget": 100, "graph_neighbours": 20},
    "hybrid, its 100 re-ranked": {"first_stage": "hybrid", "graph_neighbours": 0, "budget": 100},
    "hybrid, NAR, budget 100": {"first_stage": "hybrid", "budget": 100},
}
"""What runs through the graph; what is not named here is the setting's default."""
ALONE = {BASE: "bm25", "hybrid": "hybrid", DENSE: "dense"}
"""First stages by themselves."""
TIMED = "NAR, budget 100"
PAIRS = [
    ("NAR, budget 50", "BM25, its 50 re-ranked"),
    ("NAR, budget 200", "BM25, its 200 re-ranked"),
    ("NAR, budget 100", "hybrid"),
    ("NAR, budget 100", DENSE),
    ("hybrid", DENSE),
    ("hybrid, NAR, budget 100", "hybrid, its 100 re-ranked"),
]
"""Further differences, beside those to BM25 and its re-ranking: of one budget, or of the same two rankings."""
BEGIN, END = "<!-- measured -->", "<!-- end of what was measured -->"

Floats = NDArray[np.float64]


@dataclass
class Run:
    """One question through the graph: its documents' titles, best first, and what was scored; times in seconds."""

    titles: list[str]
    scored: list[ScoredDocument]
    wall: float
    processor: float
    encoder: float
    nodes: dict[str, float]


class Mute:
    """A chat model that always says the same."""

    name = "mute"
    capabilities: frozenset[Any] = frozenset()

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        """See `ChatModel.complete`."""
        return Reply((Completion("nothing", "stop"),), Tokens())


class Timed:
    """An encoder that sums up the time in which at least one of its calls was under way, in `seconds`."""

    def __init__(self, encoder: Encoder) -> None:
        """encoder: does the work."""
        self._encoder = encoder
        self._under_way, self._since, self.seconds = 0, 0.0, 0.0

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the encoder has
        """All but `embed` is the encoder's own."""
        return getattr(self._encoder, name)

    async def embed(self, texts: Sequence[str], *, query: bool = False) -> Vectors:
        """See `Encoder.embed`."""
        if not self._under_way:
            self._since = time.perf_counter()
        self._under_way += 1
        try:
            return await self._encoder.embed(texts, query=query)
        finally:
            self._under_way -= 1
            if not self._under_way:
                self.seconds += time.perf_counter() - self._since


class Bench:
    """The corpus, the questions, and the graph with its resources."""

    def __init__(self, data: Path, llm: ChatModel) -> None:
        """data: see the top of this file."""
        folder = data / "2wikimultihopqa"
        records = json.loads((folder / "dev_open_corpus.json").read_text(encoding="utf-8"))
        self.questions: list[str] = [record["question"] for record in records]
        self.wanted = [{title for title, _ in record["supporting_facts"]} for record in records]
        self.kinds = [str(record["type"]) for record in records]
        self.corpus = str(folder / "2wikimultihopqa_corpus.json")
        self.encoder = Timed(open_encoder("embedded"))
        self.resources = Resources(llm=llm, encoder=self.encoder)
        self.graph = neighbourhood.build(self.resources).compile()
        self.index: Index
        self.title: dict[str, str]

    async def open(self) -> None:
        """Open the index, and embed the questions, so that no later time has that in it."""
        given = self.context()
        found = await self.resources.retriever(given)
        assert isinstance(found, Index)
        self.index, self.title = found, {chunk["id"]: chunk["title"] for chunk in found.chunks}
        await self.encoder.embed(self.questions, query=True)

    def context(self, **settings: Any) -> NeighbourhoodContext:  # noqa: ANN401 - any setting
        """No penalty, the embedded preset, and these settings."""
        return NeighbourhoodContext(corpus=self.corpus, penalty="none", **settings)

    async def corpus_graph(self) -> CorpusGraph:
        """The document graph of 10 neighbours."""
        return await self.resources.document_graph(self.context())

    async def alone(self, stage: str, count: int = 100) -> list[list[str]]:
        """The ids of a first stage's best documents, for every question."""
        opened = await self.resources.first_stage(self.context(first_stage=stage))
        return [[chunk["id"] for chunk in await opened.search(question, count)] for question in self.questions]

    async def explored(self, **settings: Any) -> list[Run]:  # noqa: ANN401 - any setting
        """Every question through the graph, one at a time."""
        context = self.context(**settings)
        first = await self.alone(context.first_stage, context.first_stage_n)
        await self.graph.ainvoke({"question": self.questions[0]}, context=context)  # opens what is not open
        return [await self._one(*pair, context) for pair in zip(self.questions, first, strict=True)]

    async def _one(self, question: str, first: Sequence[str], context: NeighbourhoodContext) -> Run:
        self.encoder.seconds = 0.0
        wall, processor = time.perf_counter(), time.process_time()
        result = await self.graph.ainvoke({"question": question}, context=context)
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
        ids = [one["chunk_id"] for one in ranked(result["scored"])]
        nodes = {name: cost["seconds"] for name, cost in result["usage"]["nodes"].items()}
        titles = [self.title[one] for one in dict.fromkeys([*ids, *first])]
        return Run(titles, result["scored"], wall, processor, self.encoder.seconds, nodes)


async def measure(data: Path, llm: ChatModel) -> str:
    """The measured part of the page, as Markdown."""
    bench = Bench(data, llm)
    await bench.open()
    first = {name: await bench.alone(stage) for name, stage in ALONE.items()}
    runs: dict[str, list[Run]] = {}
    for name, settings in SETTINGS.items():
        start = time.perf_counter()
        runs[name] = await bench.explored(**settings)
        print(f"{time.perf_counter() - start:4.0f} s  {name}", flush=True)
    titles = {name: [[bench.title[one] for one in ids] for ids in all_ids] for name, all_ids in first.items()}
    titles |= {name: [run.titles for run in some] for name, some in runs.items()}
    near, siblings = neighbours_of_titles(await bench.corpus_graph(), bench)
    setting = (
        f"{len(bench.questions)} questions with {sum(map(len, bench.wanted))} supporting titles; "
        f"{len(set(bench.title.values())):,} passages, {len(bench.index.chunks):,} chunks."
    )
    return "\n\n".join(
        [
            setting,
            recall_table(titles, bench.wanted),
            pairs_table(titles, bench.wanted),
            reached_table(runs, bench),
            by_kind(titles, bench),
            whereabouts(titles, runs[TIMED], near, bench),
            clustering(near, siblings, bench),
            times(runs[TIMED]),
        ]
    )


# --- recall ---


def recalls(titles: Sequence[Sequence[str]], wanted: Sequence[set[str]], cut: int) -> Floats:
    """[questions]: the share of the supporting titles that are among the first `cut` documents."""
    pairs = zip(titles, wanted, strict=True)
    return np.array([len(some & set(found[:cut])) / len(some) for found, some in pairs])


def interval(differences: Floats) -> str:
    """The mean and where 95 % of 10,000 resampled means lie."""
    draws = np.random.default_rng(0).integers(len(differences), size=(10_000, len(differences)))
    low, high = np.quantile(differences[draws].mean(axis=1), [0.025, 0.975])
    return f"{differences.mean():+.3f} [{low:+.3f}, {high:+.3f}]"


def recall_table(titles: Mapping[str, Sequence[Sequence[str]]], wanted: Sequence[set[str]]) -> str:
    """Mean recall, and the differences per question to BM25 and to re-ranking it."""
    found = {name: {cut: recalls(some, wanted, cut) for cut in CUTS} for name, some in titles.items()}
    lines = [
        "| supporting-title recall | "
        + " | ".join(f"@{cut} | " + " | ".join(f"@{cut}, less {name}" for name in compared(cut)) for cut in CUTS)
        + " |",
        "|---|" + "---|" * sum(1 + len(compared(cut)) for cut in CUTS),
    ]
    for name in [BASE, *SETTINGS, *(one for one in ALONE if one != BASE)]:
        cells = []
        for cut in CUTS:
            own = found[name][cut]
            cells.append(f"{own.mean():.3f}")
            cells += ["" if other == name else interval(own - found[other][cut]) for other in compared(cut).values()]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def compared(cut: int) -> dict[str, str]:
    """What recall is compared with in the table: of the first few with BM25 alone, to keep the table narrow."""
    return {"BM25": BASE} if cut == CUTS[0] else {"BM25": BASE, "BM25 re-ranked": RERANKED}


def pairs_table(titles: Mapping[str, Sequence[Sequence[str]]], wanted: Sequence[set[str]]) -> str:
    """The differences of `PAIRS`."""
    lines = ["| difference in recall | " + " | ".join(f"@{cut}" for cut in CUTS) + " |", "|---|" + "---|" * len(CUTS)]
    for one, other in PAIRS:
        both = [(recalls(titles[one], wanted, cut), recalls(titles[other], wanted, cut)) for cut in CUTS]
        lines.append(f"| {one}, less {other} | " + " | ".join(interval(a - b) for a, b in both) + " |")
    return "\n".join(lines)


def reached_table(runs: Mapping[str, Sequence[Run]], bench: Bench) -> str:
    """The share of the supporting titles that were scored at all."""
    lines = ["| way | supporting titles that were scored at all |", "|---|---|"]
    for name, some in runs.items():
        scored = [[bench.title[one["chunk_id"]] for one in run.scored] for run in some]
        lines.append(f"| {name} | {recalls(scored, bench.wanted, max(map(len, scored))).mean():.3f} |")
    return "\n".join(lines)


def by_kind(titles: Mapping[str, Sequence[Sequence[str]]], bench: Bench) -> str:
    """Recall by the kind of question."""
    lines = [
        "| kind of question | questions | "
        + " | ".join(f"@{cut}: BM25 | @{cut}: re-ranked | @{cut}: {TIMED}" for cut in CUTS[1:])
        + " |",
        "|---|---|" + "---|" * (3 * len(CUTS[1:])),
    ]
    found = [recalls(titles[name], bench.wanted, cut) for cut in CUTS[1:] for name in (BASE, RERANKED, TIMED)]
    for kind in sorted(set(bench.kinds)):
        these = np.array([other == kind for other in bench.kinds])
        lines.append(f"| {kind} | {these.sum()} | " + " | ".join(f"{own[these].mean():.3f}" for own in found) + " |")
    return "\n".join(lines)


def whereabouts(
    titles: Mapping[str, Sequence[Sequence[str]]], runs: Sequence[Run], near: Mapping[str, set[str]], bench: Bench
) -> str:
    """Which supporting titles the exploration reaches, and which it gives up, against BM25's first 100."""
    count: Counter[str] = Counter()
    for bm25, dense, run, wanted in zip(titles[BASE], titles[DENSE], runs, bench.wanted, strict=True):
        before, after = set(bm25), {bench.title[one["chunk_id"]] for one in run.scored}
        gained = wanted & after - before
        count["both"] += len(wanted & before & after)
        count["given up"] += len(wanted & before - after)
        count["gained"] += len(gained)
        count["neither"] += len(wanted - before - after)
        count["gained, dense"] += len(gained & set(dense))
        count["gained, first 10"] += len(gained & set(run.titles[:10]))
        within = {one for one in wanted - before if any(one in near[other] for other in wanted & before)}
        count["near"] += len(within)
        count["near, gained"] += len(within & after)
        count.update(one["pool"] for one in run.scored)
    return (
        f"Of the supporting titles, {count['both']} are in BM25's first 100 and among the 100 that NAR scores, "
        f"{count['given up']} only in BM25's, {count['gained']} only in NAR's, {count['neither']} in neither. "
        f"Of those that BM25 lacks, {count['near']} are neighbours of a supporting title that it has, and NAR scores "
        f"{count['near, gained']} of these. Of the {count['gained']} that only NAR has, {count['gained, dense']} are "
        f"among the 100 nearest to the question, and NAR ranks {count['gained, first 10']} among its first 10. NAR "
        f"takes {count['first_stage'] / len(runs):.1f} of its 100 from BM25 and {count['frontier'] / len(runs):.1f} "
        "from the frontier."
    )


# --- the clustering hypothesis ---


def neighbours_of_titles(graph: CorpusGraph, bench: Bench) -> tuple[dict[str, set[str]], float]:
    """For each title those of its chunks' neighbours; and how many places go to chunks of the same passage."""
    near: dict[str, set[str]] = {}
    places = own = 0
    for chunk_id, title in bench.title.items():
        others = [bench.title[other] for other, _ in graph.neighbours(chunk_id)]
        near.setdefault(title, set()).update(others)
        places, own = places + len(others), own + others.count(title)
    return near, own / places


def clustering(near: Mapping[str, set[str]], siblings: float, bench: Bench) -> str:
    """How often a supporting title is near another one of its question, and how often random titles are."""
    titles = sorted(near)
    generator = random.Random(0)
    supporting = [sorted(wanted) for wanted in bench.wanted]

    def anything(question: int) -> list[str]:
        return generator.sample(titles, len(supporting[question]))

    def strangers(question: int) -> list[str]:
        """A supporting title each of as many questions, drawn at random."""
        drawn = generator.sample(range(len(supporting)), len(supporting[question]))
        return [generator.choice(supporting[one]) for one in drawn]

    share = nearby(near, supporting)
    lines = ["| titles | near another of their set |", "|---|---|", f"| supporting, all questions | {share:.3f} |"]
    for kind in sorted(set(bench.kinds)):
        of_kind = [some for some, other in zip(supporting, bench.kinds, strict=True) if other == kind]
        lines.append(f"| supporting, {kind} | {nearby(near, of_kind):.3f} |")
    draws: dict[str, Callable[[int], list[str]]] = {
        "one supporting title each of other questions": strangers,
        "any titles of the corpus": anything,
    }
    for name, draw in draws.items():
        drawn = [draw(question) for _ in range(DRAWS) for question in range(len(supporting))]
        lines.append(f"| random: {name} | {nearby(near, drawn):.4f} |")
    note = (
        f"A neighbour of a title is a neighbour of any of its chunks; {siblings:.1%} of the places in the graph "
        "are taken by another chunk of the same passage."
    )
    return "\n".join([*lines, "", note])


def nearby(near: Mapping[str, set[str]], sets: Sequence[Sequence[str]]) -> float:
    """The share of all titles in these sets that another title of their set has as a neighbour."""
    hits = [any(one in near[other] for other in some if other != one) for some in sets for one in some]
    return sum(hits) / len(hits)


# --- time ---


def times(runs: Sequence[Run]) -> str:
    """Where the time of a question goes, vectors being in the cache."""

    def row(name: str, seconds: Sequence[float]) -> str:
        low, high = np.quantile(seconds, [0.5, 0.9]) * 1000
        return f"| {name} | {low:.1f} | {high:.1f} |"

    lines = [f"| {TIMED}, a question | median ms | 90 % below |", "|---|---|---|"]
    lines += [
        row("all, wall clock", [run.wall for run in runs]),
        row("all, processor time", [run.processor for run in runs]),
        row("encoder: vectors read from its cache", [run.encoder for run in runs]),
        row("all but the encoder", [run.wall - run.encoder for run in runs]),
        row("LangGraph, between the nodes", [run.wall - sum(run.nodes.values()) for run in runs]),
    ]
    for name in runs[0].nodes:
        spent = [run.nodes[name] - (run.encoder if name == "score_batch" else 0) for run in runs]
        lines.append(row(f"node {name}" + (", without the encoder" if name == "score_batch" else ""), spent))
    return "\n".join(
        [*lines, "", f"{os.cpu_count()} cores; the load average was {os.getloadavg()[0]:.1f} (1 is this work alone)."]
    )


def main() -> None:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--first-stage", action="append", default=[], metavar="NAME")
    parser.add_argument("--reranker", action="append", default=[], metavar="NAME")
    parser.add_argument("--llm", metavar="NAME", help="for the re-ranker likelihood")
    arguments = parser.parse_args()
    ALONE.update({name: name for name in arguments.first_stage})
    for name in arguments.reranker:
        SETTINGS[f"BM25, its 100 re-ranked by {name}"] = {"graph_neighbours": 0, "budget": 100, "reranker": name}
        SETTINGS[f"NAR, budget 100, {name}"] = {"budget": 100, "reranker": name}
    llm: Any = open_chat_model(arguments.llm) if arguments.llm else Mute()
    measured = asyncio.run(measure(arguments.data, llm))
    print(measured)
    if arguments.write:
        page = arguments.write.read_text(encoding="utf-8") if arguments.write.exists() else f"{BEGIN}\n{END}\n"
        before, after = page.partition(BEGIN)[0], page.partition(END)[2]
        arguments.write.write_text(f"{before}{BEGIN}\n\n{measured}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
