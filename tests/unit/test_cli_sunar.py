"""How `neighbourhood` and `sunar` look on the terminal and in a pipe."""

import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import pytest
from dubito.cli import app
from dubito.cli.steps import Step, Task
from dubito.cli.view import block
from dubito.cli.view_neighbourhood import ENDINGS, MOST_ENTERED, RENDERERS, entered, titles
from dubito.cli.view_sunar import RENDERERS as SUNAR_RENDERERS
from dubito.cli.watch import Watch, follow
from dubito.errors import ModelFault, UserFault
from dubito.graphs import neighbourhood, sunar
from dubito.models import resources
from dubito.models.interfaces import Completion, Message, Reply, Sampling, Tokens
from dubito.models.resources import Resources
from dubito.state.context import BaseContext
from dubito.state.dense_rag import DenseRagContext
from dubito.state.df_rag import DFRagContext
from dubito.state.neighbourhood import Ending, NeighbourhoodContext, Pool, Scored
from dubito.state.records import Chunk
from dubito.state.sunar import SunarContext
from dubito.tests.scripted import ScriptedChat, ScriptedRetriever
from dubito.traces.run import NodeEnd, NodeStart, Progress, Run, State
from rich.console import Console
from typer.testing import CliRunner

QUESTION = "Which river flows past the birthplace of the founder of Tarn Mill?"
FOUNDER = "Who founded Tarn Mill?"
RIVER = "Which river flows past Caton?"
HOSTILE = "[/bold] [red]x[/red] :smile: \x1b[31mred\x1b[0m \x1b]0;title\x07 \x9b2J \x07 \u202eback"
SEEN = "[/bold] [red]x[/red] :smile: red"

TITLES = ("Tarn Mill", "Windmills", "Ada Brand", "Tarn", "Caton", "Mills of Lancashire")
RELEVANCE = dict(zip(TITLES, (0.8, 0.2, 0.9, 0.3, 0.6, 0.1), strict=True))
NEAR = {"c0": ["c2", "c3"], "c1": ["c5"], "c2": ["c4"]}
SETTINGS = ("k=2", "budget=4", "batch=2", "first_stage_n=2", "samples=4")


class Near:
    """A document graph of a few links."""

    def __init__(self, links: Mapping[str, Sequence[str]], chunk: Callable[[int], Chunk]) -> None:
        self.links, self._chunk = links, chunk

    def neighbours(self, chunk_id: str) -> list[tuple[str, float]]:
        return [(other, 0.5) for other in self.links.get(chunk_id, ())]

    def chunk(self, chunk_id: str) -> Chunk:
        return self._chunk(int(chunk_id.removeprefix("c")))


class Titled(ScriptedRetriever):
    """Chunks with titles to read."""

    def chunk(self, row: int) -> Chunk:
        return {**super().chunk(row), "title": TITLES[row]}


class ByTitle:
    """A re-ranker that goes by the title alone."""

    name = "by title"

    async def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        return [RELEVANCE[text.partition("\n")[0]] for text in texts]


class WordJudge:
    """An answer entails every answer whose words it all has."""

    name = "words"

    def __init__(self, faults: Sequence[Exception] = ()) -> None:
        self.faults = list(faults)

    async def judge(self, question: str, pairs: Sequence[tuple[str, str]]) -> Any:
        if self.faults:
            raise self.faults.pop(0)
        rows = [[0.8, 0.1, 0.1] if set(b.split()) <= set(a.split()) else [0.1, 0.8, 0.1] for a, b in pairs]
        return np.array(rows, dtype=np.float64).reshape(len(pairs), 3)


SAMPLED = ("Ada Brand", "ada brand.", "Bo Carr", "Ada Brand")


@dataclass
class Sampler(ScriptedChat):
    """Samples `sampled` from a batch with the first stage's documents, and one answer all over from any other."""

    sampled: Sequence[str] = SAMPLED

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        if sampling.n == 1:
            return await super().complete(messages, sampling)
        await self._begin("complete", messages)
        texts = self.sampled if "Windmills" in messages[-1]["content"] else ["the Lune"] * sampling.n
        return Reply(tuple(Completion(text, "stop") for text in texts), Tokens(7, 3 * sampling.n))


def chat(final: str = "the Wyre", path: str = "the Lune", **more: Any) -> Sampler:
    """Two sub-questions, then `path`; `final` once all is read again."""

    def reply(system: str, user: str) -> str:
        if "may need several facts" in system:
            if RIVER in user:
                return f"Final answer: {path}"
            return f"Follow-up: {RIVER if FOUNDER in user else FOUNDER}"
        if "a line of reasoning" in system:
            return final
        return "Ada Brand" if FOUNDER in user else "the Lune"

    return Sampler(reply=more.pop("reply", reply), **more)


def opened(llm: ScriptedChat, **more: Any) -> Resources:
    retriever = Titled([1.0, 0.0], [[1.0, 0.1 * i] for i in range(len(TITLES))])
    live: dict[str, Any] = {"judge": WordJudge(), "reranker": ByTitle(), "graph": Near(NEAR, retriever.chunk), **more}
    return Resources(llm=llm, retriever=retriever, **live)


@pytest.fixture
def use(monkeypatch):
    for name in ("DUBITO_LLM", "DUBITO_ENCODER", "DUBITO_CORPUS", "DUBITO_DEBUG", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    return lambda given: monkeypatch.setattr(resources, "_shared", given)


def ask(graph: str, *more: str) -> Any:
    assignments = [part for setting in SETTINGS for part in ("--set", setting)]
    return CliRunner().invoke(app, ["ask", QUESTION, "--graph", graph, *assignments, *more])


def terminal(width: int = 80, color: Any = None) -> Console:
    return Console(
        file=io.StringIO(),
        width=width,
        height=50,
        force_terminal=True,
        force_interactive=False,
        color_system=color,
        markup=False,
        highlight=False,
        emoji=False,
    )


def screen_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def lines_of(console: Console) -> list[str]:
    return [line.rstrip() for line in screen_of(console).splitlines()]


def followed(given: Resources, console: Console, graph: Any = sunar, **settings: Any) -> Run:
    context = SunarContext if graph is sunar else NeighbourhoodContext
    name = "sunar" if graph is sunar else "neighbourhood"
    wanted = {"k": 2, "budget": 4, "batch": 2, "first_stage_n": 2, "samples": 4, **settings}
    run = Run(graph.build(given).compile(name=name), QUESTION, context(**wanted))
    follow(run, None, console)
    return run


def blocks(lines: list[str], name: str) -> list[tuple[str, list[str]]]:
    """The step's lines each time it was shown: what stands beside its name without seconds and calls, what is below."""
    found = []
    for i, line in enumerate(lines):
        if match := re.match(rf"{re.escape(name)} {{2,}}(.*)", line):
            words = re.sub(r"(^|  )(\d+\.\d s)?(, )?(\d+ model calls?)?$", "", match[1])
            end = next(j for j in range(i + 1, len(lines)) if not lines[j].startswith(" " * 12))
            found.append((words, [line[12:] for line in lines[i + 1 : end]]))
    return found


# neighbourhood


def test_a_pipe_gets_a_block_a_batch_and_the_answer_last(use):
    use(opened(chat(reply=lambda system, user: "the Lune")))
    done = ask("neighbourhood")
    assert (done.exit_code, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert " ".join(lines[:3]).startswith(
        "neighbourhood: corpus sample, chat model embedded, encoder embedded, first stage bm25, re-ranker embedded, "
        "judge embedded, k = 2"
    )
    assert blocks(lines, "retrieve") == [("2 documents from retriever", [])]
    # 0.8 and 0.2 halved, as the answers make two sets; then 0.9 and 0.3 as they are
    assert blocks(lines, "promote") == [
        (
            "batch 1: 2 from the first stage, 2 of 4 scored",
            [
                "2 semantic sets, scores × 0.50: Ada Brand (3), Bo Carr (1)",
                "2 new among the best 2; 3 documents in the frontier",
                "1  0.400  Tarn Mill",
                "2  0.100  Windmills",
            ],
        ),
        (
            "batch 2: 2 neighbours, 4 of 4 scored",
            [
                "1 semantic set: the Lune (4)",
                "1 new among the best 2; 2 documents in the frontier",
                "1  0.900  Ada Brand  via Tarn Mill",
            ],
        ),
    ]
    named = [line.split()[0] for line in lines[3:] if re.match(r"[a-z]+( |$)", line)]
    assert named == ["retrieve", "promote", "promote", "answer", "the"], "what `promote` sums up takes no line"
    said = lines.index("Documents: 4 scored, 2 from the frontier; it ended because the budget is spent.")
    grounds = lines.index("From, with the re-ranker's score:")
    assert said < grounds
    assert [lines[grounds + 1], lines[grounds + 3]] == [" 1  0.900  Ada Brand", " 2  0.400  Tarn Mill"]
    assert lines[-1] == "the Lune"
    assert "\x1b" not in done.stdout
    assert max(map(len, lines)) <= 80


def test_without_a_penalty_nothing_is_said_of_answers():
    console = terminal()
    followed(opened(chat(reply=lambda system, user: "the Lune")), console, neighbourhood, penalty="none")
    first, second = blocks(lines_of(console), "promote")
    assert first[1][0] == "2 new among the best 2; 3 documents in the frontier"
    assert second[1] == ["1 new among the best 2; 2 documents in the frontier", "1  0.900  Ada Brand  via Tarn Mill"]
    assert "judge" not in screen_of(console)


def test_a_judge_that_fails_is_told_where_it_failed(fast_retries):
    console = terminal(200)
    faulty = WordJudge([ModelFault("judge", "it is gone")] * 4)
    followed(opened(chat(reply=lambda system, user: "the Lune"), judge=faulty), console, neighbourhood)
    ((words, (said,)),) = blocks(lines_of(console), "cluster")
    assert words == "batch 1"
    assert "the judge failed, no penalty (judge did not answer after 4 attempts: it is gone" in said
    assert blocks(lines_of(console), "promote")[0][1][0] == "no penalty: Ada Brand (3), Bo Carr (1)"


def test_empty_samples_are_no_answers():
    console = terminal()
    followed(opened(chat(reply=lambda system, user: "the Lune", sampled=[" "] * 4)), console, neighbourhood)
    assert blocks(lines_of(console), "promote")[0][1][0] == "no penalty: 4 empty"
    console = terminal()
    followed(opened(chat(reply=lambda system, user: "x", sampled=["", "b", "", "c"])), console, neighbourhood)
    assert blocks(lines_of(console), "promote")[0][1][0] == "2 semantic sets, scores × 0.50: b (1), c (1), 2 empty"


def test_a_batch_that_brings_nothing():
    console = terminal()
    followed(opened(chat(reply=lambda system, user: "the Lune")), console, neighbourhood, k=1, budget=6)
    assert blocks(lines_of(console), "promote")[2] == (
        "batch 3: 2 neighbours, 6 of 6 scored",
        ["1 semantic set: the Lune (4)", "nothing new among the best 1; 0 documents in the frontier"],
    )


def test_a_first_stage_that_finds_nothing():
    console = terminal(120)
    nothing = ScriptedRetriever([1.0, 0.0], [])
    given = Resources(
        llm=chat(reply=lambda system, user: "the Lune"),
        retriever=nothing,
        judge=WordJudge(),
        reranker=ByTitle(),
        graph=Near({}, nothing.chunk),
    )
    followed(given, console, neighbourhood)
    shown = screen_of(console)
    assert blocks(lines_of(console), "retrieve") == [("no documents", [])]
    assert "Documents: 0 scored, 0 from the frontier; it ended because nothing is left to score." in shown
    assert "Warning: The first stage found no documents" in shown


# sunar


def test_a_pipe_gets_the_path_of_sunar(use):
    use(opened(chat()))
    done = ask("sunar")
    assert (done.exit_code, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert [words for words, _ in blocks(lines, "decompose")] == [
        f"sub-question 1: {FOUNDER}",
        f"sub-question 2: {RIVER}",
        "the path arrives at: the Lune",
    ]
    assert blocks(lines, "neighbourhood / retrieve")[0][0] == "2 documents from retriever"
    assert blocks(lines, "neighbourhood / promote")[1][0] == "batch 2: 2 neighbours, 4 of 4 scored"
    assert len(blocks(lines, "neighbourhood 2 / promote")) == 2
    assert blocks(lines, "neighbourhood / answer") == [("Ada Brand", ["from Ada Brand; Tarn Mill"])]
    summary: tuple[str, list[str]] = ("4 scored, 2 from the frontier: the budget is spent", [])
    assert blocks(lines, "neighbourhood") == [summary, summary]
    assert blocks(lines, "gather") == [
        ("2 documents of all sub-questions to read again", ["Ada Brand; Tarn Mill"]),
    ]
    assert blocks(lines, "reason") == [("the answer changes: the Wyre", ["≠ what the path arrives at: the Lune"])]
    named = {line.split("  ")[0] for line in lines if re.match(r"[a-z]", line)}
    assert {"prepare", "neighbourhood / prepare", "note", "neighbourhood / explore"} & named == {"prepare"}
    path = lines.index("The path, 2 sub-questions:")
    assert lines[path + 1 : path + 3] == [f" 1  {FOUNDER} → Ada Brand", f" 2  {RIVER} → the Lune"]
    assert "It arrived at: the Lune. Reading its evidence again changed the answer." in lines
    assert path < lines.index("From, with the re-ranker's score:")
    assert lines[-1] == "the Wyre"


def test_an_answer_that_stays_is_said_once():
    console = terminal()
    followed(opened(chat(final="The Lune.")), console)
    assert blocks(lines_of(console), "reason") == [("the answer stays: The Lune.", [])]
    panel = screen_of(console).rpartition("Answer")[2]
    assert "The path, 2 sub-questions:" in panel
    assert "arrived at" not in panel


def test_without_meta_evidence_the_paths_answer_stands():
    console = terminal()
    followed(opened(chat()), console, meta_evidence=False)
    assert blocks(lines_of(console), "conclude") == [("the path's answer stands, nothing is read again", [])]
    assert not blocks(lines_of(console), "reason")


def test_why_a_path_was_cut_short_is_said():
    console = terminal()
    followed(opened(chat()), console, max_hops=1)
    words, below = blocks(lines_of(console), "decompose")[1]
    assert words.startswith("the path arrives at: ")
    assert below == ["The sub-questions are used up (max_hops 1)."]


def test_json_is_the_whole_output(use):
    use(opened(chat()))
    found = json.loads(ask("sunar", "--json").stdout)
    assert set(found) == {
        *("answer", "evidence", "usage", "warnings", "hops", "sequential_answer", "changed"),
        *("graph", "question", "context", "seconds"),
    }
    assert [(hop["question"], hop["answer"]) for hop in found["hops"]] == [(FOUNDER, "Ada Brand"), (RIVER, "the Lune")]


def test_what_is_under_way_is_shown_as_it_happens():
    console = terminal()
    watch = Watch(Run(sunar.graph, QUESTION, SunarContext(samples=4)), console)
    inside = ("neighbourhood:t",)
    state = {"asked": FOUNDER, "iteration": 1, "pool": "frontier", "batch": ["c2", "c3"], "answers": [*SAMPLED, ""]}

    def shown() -> list[str]:
        before = len(lines_of(console))
        console.print(watch._under_way())
        return [line[2:] for line in lines_of(console)[before:]]

    def start(node: str, where: tuple[str, ...] = inside, given: Mapping[str, Any] = state) -> None:
        task = "t" if not where else f"of {node}"
        watch.on(NodeStart(namespace=where, at=0.0, node=node, task=task, input=given))

    def end(node: str, update: Mapping[str, Any]) -> None:
        watch.on(NodeEnd(namespace=inside, at=0.1, node=node, task=f"of {node}", seconds=0.1, update=update))

    start("neighbourhood", (), {"hops": [], "query": FOUNDER})
    watch.on(State(namespace=inside, at=0.0, values=state))
    start("rerank")
    both = " ".join(shown())
    assert FOUNDER in both
    assert "batch 2: 2 neighbours to score" in both
    end("rerank", {"raw": [0.9, 0.3], "sets": None})
    start("sample")
    assert "4 answers to batch 2" in " ".join(shown())
    end("sample", {"answers": list(SAMPLED)})
    start("cluster")
    assert "2 distinct answers to compare" in " ".join(shown())
    end("cluster", {"sets": 2, "warnings": []})


@pytest.mark.parametrize(
    "what", ["reading sample", "comparing the documents of sample", "embedding sample for its graph"]
)
@pytest.mark.parametrize("graph", [neighbourhood, sunar])
def test_preparations_show_how_far_they_are(graph, what):
    console = terminal()
    context = SunarContext() if graph is sunar else NeighbourhoodContext()
    watch = Watch(Run(graph.graph, QUESTION, context), console)
    watch.on(NodeStart(namespace=(), at=0.0, node="prepare", task="t", input={"question": QUESTION, "hops": []}))
    watch.on(Progress(namespace=(), at=0.1, node="prepare", what=what, done=30, total=1200))
    console.print(watch._under_way())
    assert what in screen_of(console)
    assert lines_of(console)[-1].endswith("30 of 1,200 chunks")
    watch.on(NodeEnd(namespace=(), at=0.2, node="prepare", task="t", seconds=0.2, update={}))
    assert f"{what}: 1,200 chunks" in lines_of(console)[-1]


def test_text_of_others_reaches_the_terminal_clean():
    def reply(system: str, user: str) -> str:
        if "may need several facts" in system:
            return f"Final answer: {HOSTILE} Lune" if "Looked up so far\n" in user else f"Follow-up: {HOSTILE}"
        return f"{HOSTILE} {len(system)}"

    class Hostile(ScriptedRetriever):
        def chunk(self, row: int) -> Chunk:
            return {**super().chunk(row), "title": HOSTILE if row else "", "id": f"c{row}" if row else HOSTILE}

    class Even:
        name = "even"

        async def scores(self, query: str, texts: Sequence[str]) -> list[float]:
            return [0.5 - 0.01 * i for i in range(len(texts))]

    retriever = Hostile([1.0, 0.0], [[1.0, 0.1 * i] for i in range(6)])
    graph = Near({HOSTILE: ["c2"], "c1": ["c3"]}, retriever.chunk)
    console = terminal(150)
    llm = chat(reply=reply, sampled=[HOSTILE] * 4)
    followed(Resources(llm=llm, retriever=retriever, judge=WordJudge(), reranker=Even(), graph=graph), console)
    shown = screen_of(console)
    assert set("\x1b\x07\x9b\u202e").isdisjoint(shown)
    for step in ("decompose", "neighbourhood / answer", "reason"):
        assert SEEN in blocks(lines_of(console), step)[0][0], step
    for step in ("neighbourhood / promote", "gather"):
        assert SEEN in " ".join(blocks(lines_of(console), step)[0][1]), step


@pytest.mark.parametrize("width", [40, 80, 120])
def test_nothing_is_wider_than_the_terminal(width):
    console = terminal(width)
    followed(opened(chat("the Wyre " * 30, sampled=["the Ribble " * 9, "b " * 90, "c", ""])), console)
    assert max(map(len, screen_of(console).splitlines())) <= width


def test_colours_tell_what_wavers():
    console = terminal(80, "standard")
    followed(opened(chat()), console)
    assert re.search(r"\x1b\[33m2 semantic sets", screen_of(console))
    assert not re.search(r"\x1b\[33m1 semantic set", screen_of(console))


def test_a_step_that_fails_is_named():
    def reply(system: str, user: str) -> str:
        if "may need several facts" in system:
            return f"Follow-up: {FOUNDER}"
        raise UserFault("The server is gone: start it.")

    console = terminal()
    with pytest.raises(UserFault):
        followed(opened(chat(reply=reply), judge=WordJudge()), console, penalty="none")
    found = lines_of(console)
    assert any(re.match(r"neighbourhood / answer .*failed", line) for line in found)
    assert found[-1].split()[:2] == ["neighbourhood", "failed"]


# single steps


def step_of(node: str, context: BaseContext, state: dict[str, Any], update: dict[str, Any]) -> Step:
    """A step of one run that has read `state` and is done."""
    step = Step(node, (), 0.0, state, context)
    start = NodeStart(namespace=(), at=0.0, node=node, task="t", input=state)
    step.tasks["t"] = Task(start, NodeEnd(namespace=(), at=0.0, node=node, task="t", seconds=0.0, update=update))
    return step


def text_of(step: Step, now: float | None = None) -> str:
    console = terminal(200)
    shown = block(step, now)
    if shown is not None:
        console.print(shown)
    return " ".join(screen_of(console).split())


def scored(chunk_id: str, score: float, pool: Pool = "first_stage", via: str | None = None) -> Scored:
    return {
        "chunk_id": chunk_id,
        "iteration": 0,
        "pool": pool,
        "via": via,
        "raw": score,
        "sets": 1,
        "score": score,
    }


def first_batch(chunks: dict[str, Any], scores: Sequence[float], *, penalty: Any = "none", **state: Any) -> Step:
    """`promote` after a first batch of these chunks."""
    state = {"sets": None, "asked": QUESTION, "iteration": 0, "batch": list(chunks), "pool": "first_stage", **state}
    state |= {"scored": [], "documents": chunks}
    fresh = [scored(one, score) for one, score in zip(chunks, scores, strict=True)]
    return step_of("promote", NeighbourhoodContext(penalty=penalty), state, {"scored": fresh, "frontier": []})


def test_of_equal_scores_the_one_that_was_there_stays():
    before = [scored("a", 0.5), scored("b", 0.4)]
    fresh = [scored("c", 0.4), scored("d", 0.5), scored("e", 0.1)]
    assert [(rank, one["chunk_id"]) for rank, one in entered(before, fresh, 3)] == [(2, "d")]
    assert [(rank, one["chunk_id"]) for rank, one in entered(before, fresh, 9)] == [(2, "d"), (4, "c"), (5, "e")]


def test_of_many_that_enter_the_best_are_shown():
    count = MOST_ENTERED + 3
    chunks = {f"c{i}": {"id": f"c{i}", "doc_id": "d", "title": f"T{i}", "text": "t"} for i in range(count)}
    shown = text_of(first_batch(chunks, [0.9 - 0.1 * i for i in range(count)]))
    assert f"{count} new among the best 10" in shown
    assert shown.endswith(f"{MOST_ENTERED} 0.500 T{MOST_ENTERED - 1} and 3 more")


def test_small_scores_keep_their_digits():
    chunks = {"c": {"id": "c", "doc_id": "d", "title": "T", "text": "t"}}
    assert text_of(first_batch(chunks, [0.000012345])).endswith("1 1.23e-05 T")


def test_of_many_distinct_answers_the_most_frequent_are_shown():
    chunks = {"c": {"id": "c", "doc_id": "d", "title": "T", "text": "t"}}
    sampled = [*"abcdefg", "g", "d", "D.", "", "x" * 99]
    shown = text_of(first_batch(chunks, [0.5], penalty="1/sqrt(s)", answers=sampled, sets=4))
    assert "4 semantic sets, scores × 0.50: d (3), g (2), a (1), b (1), c (1), 3 more, 1 empty 1 new" in shown
    shown = text_of(first_batch(chunks, [0.5], penalty="1/s", answers=["x" * 99], sets=1))
    assert f"1 semantic set: {'x' * 27}... (1) 1 new" in shown


def test_evidence_is_named_by_its_first_titles():
    found: list[Chunk] = [
        {"id": f"c{i}", "doc_id": "d", "title": title, "text": "t"} for i, title in enumerate(["A", "", "A", *"DEFG"])
    ]
    assert titles(found) == "A (2); c1; D; E; F; and 1 more"
    assert titles(found[:2]) == "A; c1"


def test_every_way_to_end_has_words():
    assert set(ENDINGS) == set(get_args(Ending))
    found = [scored("a", 0.5), scored("b", 0.4)]
    for stopped in get_args(Ending):
        output = {"scored": [*found, scored("c", 0.5, "frontier", "a")], "stopped": stopped}
        shown = text_of(step_of("neighbourhood", SunarContext(), {"hops": [], "query": "q"}, output))
        assert shown == f"neighbourhood 3 scored, 1 from the frontier: {ENDINGS[stopped]}"


def test_nodes_of_one_name_are_told_apart_by_what_they_read():
    answer = {"answer": "the Lune", "evidence": [], "warnings": []}
    assert text_of(step_of("answer", NeighbourhoodContext(), {"asked": QUESTION}, answer)) == "answer"
    pending = step_of("sample", DFRagContext(), {"question": QUESTION}, {"pending": [1, 2]})
    assert text_of(pending) == "sample 2 sets to evaluate"
    found = [{"id": "c", "doc_id": "d", "title": "T", "text": "t", "score": 0.5}]
    state = {"question": QUESTION}
    assert "1 chunk, similarity 0.50" in text_of(
        step_of("retrieve", NeighbourhoodContext(), state, {"evidence": found})
    )
    ended = step_of("conclude", DenseRagContext(), {}, {"stopped": "accepted", "dse": 0.1})
    assert text_of(ended) == "conclude the context was accepted: DSE 0.10"


@pytest.mark.parametrize("node", sorted({*RENDERERS, *SUNAR_RENDERERS}))
@pytest.mark.parametrize("state", [{"asked": "q"}, {"hops": []}, {"asked": "q", "hops": []}, {}])
@pytest.mark.parametrize("update", [{}, {"foreign": 1}, dict.fromkeys(("scored", "query", "answer", "evidence"))])
@pytest.mark.parametrize("context", [BaseContext(), SunarContext()])
def test_another_graphs_node_of_the_same_name_does_no_harm(node, state, update, context):
    step = step_of(node, context, state, update)
    shown = text_of(step)
    assert shown.startswith(node) or shown == ""
    step.tasks["t"].end = None
    assert node in text_of(step, now=1.0)
