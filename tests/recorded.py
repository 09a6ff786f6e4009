"""Traces of real runs of every graph with scripted models, and what reads a page back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dubito.cli.watch import follow
from dubito.graphs import (
    cot,
    dense,
    dense_rag,
    df_rag,
    escalate,
    flare,
    ircot,
    iter_retgen,
    neighbourhood,
    seakr,
    seper,
    sunar,
    vanilla_rag,
)
from dubito.presenters.blocks import Block, Table
from dubito.presenters.presenter import retrieval_steps
from dubito.resources.resources import Resources
from dubito.state.baselines import FlareContext, IterRetgenContext
from dubito.state.dense import DenseContext
from dubito.state.dense_rag import DenseRagContext
from dubito.state.df_rag import DFRagContext
from dubito.state.escalate import EscalateContext
from dubito.state.neighbourhood import NeighbourhoodContext
from dubito.state.reasoning import ReasoningContext, SearchingContext
from dubito.state.records import Chunk
from dubito.state.seakr import SeaKRContext
from dubito.state.seper import SePerContext
from dubito.state.sunar import SunarContext
from dubito.state.vanilla_rag import VanillaRagContext
from dubito.tests.scripted import (
    PLAN,
    QUERY,
    QUESTION,
    VECTORS,
    Believer,
    Explorer,
    ListedRetriever,
    Reader,
    Reasoner,
    Rungs,
    ScriptedChat,
    ScriptedEncoder,
    ScriptedGraph,
    ScriptedJudge,
    ScriptedReranker,
    ScriptedRetriever,
    doubted,
    resources,
)
from dubito.traces.recording import Recording, assembled, read
from dubito.traces.run import Run

WHO, WHERE = "Who is the founder?", "Where was Ada born?"
FOUND = {WHO: ["f1", "f2", "f3"], WHERE: ["b1", "b2", "f1"], QUESTION: ["f1", "f2", "b1"]}
NEAR = {"f1": ["n1", "n2"], "f2": ["n3"], "b1": ["n2", "n4"]}
RELEVANCE = {"f1": 0.9, "f2": 0.8, "f3": 0.1, "n1": 0.85, "n2": 0.2, "n3": 0.3, "n4": 0.4, "b1": 0.7, "b2": 0.6}

LINKED = {("one", "two"), ("two", "one"), ("two", "three")}
"""Which answer entails which other."""


def vanilla_run(
    texts: Sequence[str] = ("first", "second"), answer: str = "the Lune", question: str = QUESTION, **more: Any
) -> Run:
    """Two chunks, one answer; `more` is the model's."""
    llm = ScriptedChat(reply=lambda system, user: answer, **more)
    opened = Resources(llm=llm, retriever=ScriptedRetriever([1.0, 0.0], [[1.0, 0.1], [1.0, 0.2]], texts))
    return Run(vanilla_rag.build(opened).compile(name="vanilla_rag"), question, VanillaRagContext(k=2))


def df_rag_run() -> Run:
    """A step's score is how many of the last two chunks are shown, and for step 1 one more."""

    def reply(system: str, user: str) -> str:
        if "plan how to answer" in system:
            return PLAN
        if "how well a set of passages" not in system:
            return "the Lune"
        count = sum(text in user for text in ("text 5", "text 6"))
        return f"1) score: {count + 1} | answer: Ada\n2) score: {count} | answer: none"

    opened = resources(ScriptedChat(reply=reply))
    return Run(df_rag.build(opened).compile(name="df_rag"), QUESTION, DFRagContext(evaluator="report", k=3))


def dense_run() -> Run:
    """Three chunks; with the rephrased chunks the answers are two, one and three, with the context as it is one."""
    by_text = {"other text 0": "two", "other text 1": "one", "other text 2": "three"}
    llm = Reader(answer=lambda texts: next((by_text[text] for text in texts if text in by_text), "one"))
    opened = Resources(llm=llm, judge=_judge(), retriever=ScriptedRetriever(QUERY, VECTORS[:3]))
    return Run(dense.build(opened).compile(name="dense"), QUESTION, DenseContext(k=3))


def dense_rag_run() -> Run:
    """Chunk 0 is needed and unsteady, chunk 1 unsteady and not needed; then chunk 1 goes and another comes."""

    def answer(texts: Sequence[str]) -> str:
        if "other text 1" in texts:
            return "three"
        return "one" if "text 0" in texts else "four"

    llm = Reader(answer=answer, sufficient=lambda texts: "text 1" not in texts)
    opened = Resources(llm=llm, judge=_judge(), retriever=ScriptedRetriever(QUERY, VECTORS[:6]))
    settings = DenseRagContext(k=2, adaptive=False, max_rounds=2)
    return Run(dense_rag.build(opened).compile(name="dense_rag"), QUESTION, settings)


def sunar_run() -> Run:
    """Two look-ups of four documents each; read again, the answer changes."""
    left = iter([f"Follow-up: {WHO}", f"Follow-up: {WHERE}", "Final answer: the Wyre"])
    llm = Explorer(
        step=lambda question, lines, must: next(left),
        samples=lambda query, names: ["same", "other"] if "f2" in names else ["same"],
        answer=lambda query, names: "Ada" if query == WHO else "Lancaster",
        reason=lambda question, line, names: "the Lune",
    )
    graph = sunar.build(_explored(llm)).compile(name="sunar")
    return Run(graph, QUESTION, SunarContext(k=2, budget=4, batch_size=2, first_stage_n=3, samples=2))


def neighbourhood_run() -> Run:
    """One look-up."""
    llm = Explorer(samples=lambda query, names: ["same", "other"] if "f2" in names else ["same"])
    settings = NeighbourhoodContext(k=2, budget=6, batch_size=2, first_stage_n=3, samples=2)
    return Run(neighbourhood.build(_explored(llm)).compile(name="neighbourhood"), QUESTION, settings)


def seper_run(**settings: Any) -> Run:
    """Two chunks; with them three of four responses are right, two of them in other words, without them none is."""
    llm = Believer(believes=lambda question, shown: ["one", "One.", "two", "three"] if shown else ["three"])
    opened = Resources(llm=llm, judge=_judge(), retriever=ScriptedRetriever(QUERY, VECTORS[:2]))
    context = SePerContext(**{"k": 2, "samples": 4, "rule": "hard", **settings})
    return Run(seper.build(opened).compile(name="seper"), QUESTION, context, {"answers": ["one", "1"]})


SENTENCES = (
    "The founder of the mill that gave the town its name is Ada, who came down the valley as a weaver's daughter.",
    "Ada was born in Kirkby, a village of slate roofs a day's walk above the town, as two of her letters say.",
    "So the final answer is: the Lune.",
)


def _reasoner() -> Reasoner:
    """Uncertain of its second sentence by itself, most certain of it with the first snippet; a word of it unlikely."""
    return Reasoner(
        step=lambda shown, said: doubted(SENTENCES[len(said)], Kirkby=0.5 if len(said) == 1 and not shown else 1.0),
        whole=lambda shown: f"{SENTENCES[0 if 'a' in shown else 1]} So the final answer is: the Lune.",
        uncertainty=lambda kind, shown, said: -6.5 if shown or len(said) != 1 else -4.0,
    )


def _reasoning_run(name: str, build: Any, context: Any) -> Run:
    found = ListedRetriever(lambda query: ["a", "b"] if query == QUESTION else ["b", "c"])
    opened = Resources(_reasoner(), ScriptedEncoder(), found, judge=ScriptedJudge())
    return Run(build(opened).compile(name=name), QUESTION, context)


def seakr_run() -> Run:
    """Three sentences, something is looked up for the second."""
    return _reasoning_run("seakr", seakr.build, SeaKRContext(retrieval_threshold="-6", samples=2, k=2))


def cot_run() -> Run:
    """Three sentences."""
    return _reasoning_run("cot", cot.build, ReasoningContext())


def ircot_run() -> Run:
    """Something is looked up for each sentence."""
    return _reasoning_run("ircot", ircot.build, SearchingContext())


def flare_run() -> Run:
    """Something is looked up for the second sentence."""
    return _reasoning_run("flare", flare.build, FlareContext())


def iter_retgen_run() -> Run:
    """Two rounds; the second finds one snippet that the first did not."""
    return _reasoning_run("iter_retgen", iter_retgen.build, IterRetgenContext(k=2))


def escalate_run() -> Run:
    """Two rungs; the samples of the first differ, and those of the second agree."""
    llm, judge = Rungs(), ScriptedJudge(lambda one, other: one == other)
    opened = Resources(llm=llm, judge=judge, retriever=ScriptedRetriever(QUERY, VECTORS))
    context = EscalateContext(rungs="cot,vanilla_rag", answer_samples=2, k=1)
    return Run(escalate.build(opened).compile(name="escalate"), QUESTION, context)


RUNS = {
    "vanilla_rag": vanilla_run,
    "df_rag": df_rag_run,
    "dense": dense_run,
    "dense_rag": dense_rag_run,
    "sunar": sunar_run,
    "neighbourhood": neighbourhood_run,
    "seper": seper_run,
    "seakr": seakr_run,
    "cot": cot_run,
    "ircot": ircot_run,
    "flare": flare_run,
    "iter_retgen": iter_retgen_run,
    "escalate": escalate_run,
}


@cache
def trace_of(name: str) -> bytes:
    """The trace of a run of `RUNS`."""
    with TemporaryDirectory() as folder:
        record(RUNS[name](), Path(folder) / "t.jsonl")
        return (Path(folder) / "t.jsonl").read_bytes()


def recording_of(name: str, until: int | None = None) -> Recording:
    """A run of `RUNS`, read back; until: as far as this many lines."""
    return assembled(Path(f"{name}.jsonl"), trace_of(name).splitlines(keepends=True)[:until])


def recorded(run: Run, folder: Path) -> Recording:
    """A run, read back from its trace in a folder."""
    record(run, folder / "t.jsonl")
    return read(folder / "t.jsonl")


def cells(block: Block) -> list[list[str]]:
    """The texts of a table."""
    assert isinstance(block, Table)
    return [[cell.text for cell in row.cells] for row in block.rows]


def ids(chunks: Iterable[Chunk]) -> str:
    """The ids of chunks, with spaces between."""
    return " ".join(chunk["id"] for chunk in chunks)


def retrieved(recording: Recording) -> list[tuple[str, str, str]]:
    """Of each retrieval step the label, and the ids of its new and its known chunks."""
    return [(step.label, ids(step.new), ids(step.known)) for step in retrieval_steps(recording)]


def record(run: Run, path: Path) -> list[dict[str, Any]]:
    """Run, write the trace and return its lines."""
    follow(run, path, None)
    return lines(path)


def lines(path: Path) -> list[dict[str, Any]]:
    """A trace's lines."""
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def _judge() -> ScriptedJudge:
    return ScriptedJudge(entails=lambda one, other: one == other or (one, other) in LINKED)


def _explored(llm: Explorer) -> Resources:
    return Resources(
        llm,
        ScriptedEncoder(),
        ListedRetriever(lambda query: FOUND[query]),
        judge=ScriptedJudge(),
        reranker=ScriptedReranker(lambda query, name: RELEVANCE[name]),
        graph=ScriptedGraph(NEAR),
    )


VOID = frozenset({"meta", "br", "img", "link", "input", "hr", "wbr"})


@dataclass
class Element:
    """An element of a page."""

    tag: str
    attributes: dict[str, str]
    children: list[Element | str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Its text, white space drawn together."""
        return " ".join("".join(self._texts()).split())

    def _texts(self) -> Iterator[str]:
        for child in self.children:
            if isinstance(child, str):
                yield child
            else:
                yield from child._texts()

    def every(self, tag: str = "", **attributes: str) -> list[Element]:
        """The elements within it with this tag and these attributes; of `class` one of its words will do."""
        found = []
        for child in self.children:
            if isinstance(child, Element):
                found += [child] if child.fits(tag, attributes) else []
                found += child.every(tag, **attributes)
        return found

    def fits(self, tag: str, attributes: dict[str, str]) -> bool:
        """Has it this tag and these attributes?"""
        own = self.attributes
        named = (name.rstrip("_") for name in attributes)
        wanted = zip(named, attributes.values(), strict=True)
        return tag in {"", self.tag} and all(
            value in own.get(name, "").split() if name == "class" else own.get(name) == value for name, value in wanted
        )

    def one(self, tag: str = "", **attributes: str) -> Element:
        """The only one such element."""
        found = self.every(tag, **attributes)
        assert len(found) == 1, f"{len(found)} of {tag} {attributes}"
        return found[0]

    def table(self, heading: str) -> list[list[str]]:
        """The texts of the rows of the table below a heading, that of its columns first."""
        parts = [child for child in self.every() if child.tag in {"h3", "table"}]
        at = next(i for i, child in enumerate(parts) if child.tag == "h3" and child.text == heading)
        assert parts[at + 1].tag == "table"
        return [[cell.text for cell in row.every() if cell.tag in {"td", "th"}] for row in parts[at + 1].every("tr")]


class _Builder(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("", {})
        self._open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self._open[-1].children.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open[-1].children.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open[-1].tag == tag, f"</{tag}> closes <{self._open[-1].tag}>"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        self._open[-1].children.append(data)


def parsed(page: bytes) -> Element:
    """A page as a tree; every element of it must be closed where it was opened."""
    builder = _Builder()
    builder.feed(page.decode())
    builder.close()
    assert builder._open == [builder.root]
    return builder.root
