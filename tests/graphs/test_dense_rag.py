"""DENSE-RAG's machine through every branch, with scripted models: the path taken, the state, the calls."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dubito.errors import ContextOverflow, ContractFault, ModelFault, ModelUnavailable, UserFault
from dubito.graphs import dense_rag
from dubito.models.interfaces import Vectors
from dubito.nodes.best_answer import is_better
from dubito.nodes.refine import how_many_fit
from dubito.prompts import answer, passage
from dubito.resources.resources import Resources
from dubito.state.calibration import AnswerCalibration, identity, settings_of
from dubito.state.dense_rag import BestAnswer, DenseRagContext
from dubito.state.mixins import CorpusContext
from dubito.state.records import Chunk
from dubito.tests.graphs import dense_reference as reference
from dubito.tests.scripted import (
    CERTIFIED,
    QUESTION,
    THE_CORPUS,
    Reader,
    ScriptedEncoder,
    ScriptedJudge,
    ScriptedRetriever,
    unit,
    walk,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langgraph.checkpoint.memory import InMemorySaver

FIXED = {"fixed 0": 0, "fixed 1": 5, "fixed 2": 10, "fixed 3": 15}
SEMANTIC = {"s0": 0, "s1": 10, "s2": -20, "s3": 30, "s4": -45, "s5": 60}
"""Chunks and their angle to the question, in degrees. With k = 3, s3 is the nearest unvisited chunk to s1, s4 to s2."""

GIVEN: list[Any] = ["mine 0", {"id": "c1", "title": "T1", "text": "fixed 1"}, {"id": "own", "text": "mine 2"}]
"""Chunks of a caller: two of its own, and one of the corpus."""

MINE = {"mine 0": 0, "mine 2": 16}
"""The angles of the caller's own chunks. Of the corpus "fixed 3" is the nearest to "mine 2"."""

START_NODES = ["prepare", "retrieve_context", "dense"]
RECHUNKED = [*START_NODES, "rechunk", "dense+self_evaluate", "update_best"]
REFINED = ["classify", "refine", "dense+self_evaluate", "update_best"]


@dataclass
class Story:
    """How the model's responses depend on the chunks of a context.

    wavering: a rephrasing of such a chunk changes the response; needed: the response names those that it has seen, so
    it changes without them; settling: with such a chunk the response is always the same; enough: a context with such a
    chunk is sufficient.
    """

    wavering: set[str] = field(default_factory=set)
    needed: set[str] = field(default_factory=set)
    settling: set[str] = field(default_factory=set)
    enough: set[str] = field(default_factory=set)

    def answer(self, texts: Sequence[str]) -> str:
        seen = {text.removeprefix("other ") for text in texts}
        if seen & self.settling:
            return "settled"
        if any(text.startswith("other ") and text.removeprefix("other ") in self.wavering for text in texts):
            return "astray"
        return "seen " + " ".join(sorted(seen & self.needed))

    def sufficient(self, texts: Sequence[str]) -> bool:
        return bool(self.enough & set(texts))

    def reader(self, **more: Any) -> Reader:
        return Reader(answer=self.answer, sufficient=self.sufficient, **more)


class ByText(ScriptedEncoder):
    """An encoder that gives the chunks the vectors of their retriever."""

    def __init__(self, *retrievers: ScriptedRetriever) -> None:
        self.vectors = {
            f"T{row}\n{text}": vector
            for each in retrievers
            for row, (text, vector) in enumerate(zip(each.texts, unit(each.vectors) if each.texts else (), strict=True))
        }

    async def token_counter(self) -> Callable[[str], int]:  # type: ignore[override]
        return lambda text: len(text.split())

    async def embed(self, texts: Sequence[str], *, query: bool = False) -> Vectors:
        return np.array([self.vectors[text] for text in texts])


class TwoCuts(Resources):
    """One corpus in fixed-size and in semantic chunks."""

    def __init__(
        self, llm: Reader, judge: ScriptedJudge, fixed: ScriptedRetriever, semantic: ScriptedRetriever
    ) -> None:
        encoder = ByText(fixed, semantic)
        encoder.vectors |= {text: unit([at(angle)])[0] for text, angle in MINE.items()}
        super().__init__(llm=llm, encoder=encoder, judge=judge)
        self.fixed, self.semantic = fixed, semantic

    async def retriever(self, context: CorpusContext, *, chunker: str | None = None) -> ScriptedRetriever:
        return self.semantic if (chunker or context.chunker).startswith("semantic:") else self.fixed


def cut(angles: Mapping[str, float]) -> ScriptedRetriever:
    return ScriptedRetriever([1.0, 0.0], [at(angle) for angle in angles.values()], list(angles))


def at(angle: float) -> list[float]:
    return [math.cos(math.radians(angle)), math.sin(math.radians(angle))]


def machine(
    llm: Reader,
    judge: ScriptedJudge | None = None,
    fixed: Mapping[str, float] = FIXED,
    semantic: Mapping[str, float] = SEMANTIC,
    **compile_with: Any,
) -> Any:
    opened = TwoCuts(llm, judge or ScriptedJudge(), cut(fixed), cut(semantic))
    return dense_rag.build(opened).compile(name="dense_rag", **compile_with)


@dataclass
class Ran:
    """A finished run."""

    state: dict[str, Any]
    path: list[str]
    inner: list[list[str]]
    llm: Reader

    @property
    def texts(self) -> list[str]:
        return [chunk["text"] for chunk in self.state["evidence"]]

    @property
    def rounds(self) -> list[dict[str, Any]]:
        rounds: list[dict[str, Any]] = self.state["rounds"]
        return rounds


async def run(
    story: Story,
    judge: ScriptedJudge | None = None,
    fixed: Mapping[str, float] = FIXED,
    semantic: Mapping[str, float] = SEMANTIC,
    *,
    llm: Reader | None = None,
    given: list[Any] | None = None,
    **context: Any,
) -> Ran:
    llm = llm or story.reader()
    graph = machine(llm, judge, fixed, semantic)
    state, path, inner = await walk(graph, {"question": QUESTION, "chunks": given}, {"k": 3, **context})
    return Ran(state, path, inner, llm)


def unsure(**more: set[str]) -> Story:
    """A story in which the answer from the fixed chunks is uncertain."""
    return Story(**{**more, "wavering": {"fixed 0"} | more.get("wavering", set())})


def measured(rephrased: int, answered: int, *, repeat: bool = False) -> list[str]:
    """The path of one measurement."""
    rephrase = [] if not rephrased else ["rephrase" if rephrased == 1 else f"rephrase*{rephrased}"]
    return ["prepare", *rephrase, "contexts", f"{'repeat+' * repeat}respond*{answered}", "entail", "measure_dse"]


ONE_OF_FOUR = -(3 * math.log(3 / 4) + math.log(1 / 4)) / 4
"""The DSE of four responses, one of which is linked to no other."""


# --- from chunks that the caller gives ---


async def test_the_given_chunks_are_measured_and_refined_with_chunks_of_the_corpus() -> None:
    story = Story(wavering={"mine 0", "mine 2"}, needed={"mine 2"}, settling={"fixed 3"}, enough={"fixed 3"})
    ran = await run(story, given=GIVEN, adaptive=False)
    first, *_ = ran.rounds
    assert (first["chunking"], first["chunk_ids"]) == ("given", ["given#1", "c1", "own"])
    assert first["pruned"] == ["given#1"]
    assert [(refill["near"], refill["chunk_id"]) for refill in first["refilled"]] == [("own", "c3")]
    assert first["refilled"][0]["similarity"] == pytest.approx(math.cos(math.radians(1)), abs=1e-6)
    assert ran.texts == ["fixed 1", "mine 2", "fixed 3"]
    assert (ran.state["answer"], ran.state["stop_reason"]) == ("settled", "accepted")
    # 2 of its own and the 4 of the corpus
    assert (ran.state["total"], len(ran.state["visited"])) == (6, 4)


async def test_given_chunks_with_an_uncertain_answer_give_way_to_the_corpus_chunked_anew() -> None:
    ran = await run(Story(wavering={"mine 0"}, settling={"s0"}, enough={"s0"}), given=GIVEN)
    assert ran.path == [*RECHUNKED, "give_best_answer"]
    assert [record["chunking"] for record in ran.rounds] == ["given", DenseRagContext().rechunker]
    assert ran.texts == ["s0", "s1", "s2"]


@pytest.mark.parametrize("adaptive", [True, False])
async def test_nothing_is_certified_of_an_answer_that_began_with_given_chunks(tmp_path: Path, adaptive: bool) -> None:
    context = DenseRagContext(k=3, judge="embedded", adaptive=adaptive)
    made = {"technique": "dense_rag", "model": identity(context.llm), "settings": settings_of(context)}
    calibration = AnswerCalibration(**made, threshold=0.6, **CERTIFIED, corpus=THE_CORPUS)
    await asyncio.to_thread(calibration.save, tmp_path / "c.json")
    ran = await run(Story(), given=["mine 0"], adaptive=adaptive, calibration=str(tmp_path / "c.json"))
    assert not ran.state["certificate"]["holds"]
    assert ran.state["certificate"]["sentence"].startswith("The chunks were given with the question")


async def test_a_certain_answer_from_given_chunks_ends_the_run() -> None:
    ran = await run(Story(), given=["mine 0"])
    assert ran.path == [*START_NODES, "give_best_answer"]
    assert ran.texts == ["mine 0"]


async def test_where_given_chunks_are_only_dropped_no_corpus_is_opened() -> None:
    llm = Story(wavering={"mine 0", "mine 2"}, needed={"mine 2"}, enough={"mine 2"}).reader()
    opened = Resources(llm=llm, judge=ScriptedJudge())
    graph: Any = dense_rag.build(opened).compile()
    context = DenseRagContext(corpus="none.index", adaptive=False, refinement="prune", accept="either")
    given = ["mine 0", "mine 2"]
    output = await graph.ainvoke({"question": QUESTION, "chunks": given}, context=context)
    assert [chunk["text"] for chunk in output["evidence"]] == given
    assert output["stop_reason"] == "accepted"


async def test_the_next_question_of_a_thread_has_its_own_chunks() -> None:
    graph = machine(Story().reader(), checkpointer=InMemorySaver())
    thread: Any = {"configurable": {"thread_id": "1"}}
    first = await graph.ainvoke({"question": QUESTION, "chunks": ["mine 0"]}, thread, context={"k": 3})
    second = await graph.ainvoke({"question": QUESTION}, thread, context={"k": 3})
    assert [chunk["text"] for chunk in first["evidence"]] == ["mine 0"]
    assert [chunk["text"] for chunk in second["evidence"]] == ["fixed 0", "fixed 1", "fixed 2"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "The list of chunks is empty: give at least one, or leave chunks out to look some up."),
        ([""], "Chunk 1 has no text"),
        ("mine 0", "The chunks are not a list"),
    ],
)
async def test_given_chunks_that_are_none_are_refused(given: Any, said: str) -> None:
    with pytest.raises(UserFault, match=said):
        await run(Story(), given=given)


# --- without refinement ---


async def test_certain_at_once() -> None:
    ran = await run(Story())
    assert ran.path == [*START_NODES, "give_best_answer"]
    assert ran.inner == [measured(3, 4, repeat=True)]
    assert (ran.state["stop_reason"], ran.state["dse"], ran.state["certain"]) == ("certain", 0, True)
    assert ran.state["uncertainty"] == {"signal": "DSE", "value": 0.0, "threshold": 0.2}
    assert ran.state["sufficient"] is None
    assert ran.texts == ["fixed 0", "fixed 1", "fixed 2"]
    assert len(ran.rounds) == 1
    assert ran.rounds[0]["chunking"] == DenseRagContext().chunker
    assert ran.llm.evaluated == []


async def test_certain_after_rechunking() -> None:
    ran = await run(unsure(enough={"s0"}))
    assert ran.path == [*RECHUNKED, "give_best_answer"]
    assert ran.inner == [measured(3, 4, repeat=True), measured(3, 4)]
    assert (ran.state["stop_reason"], ran.state["dse"], ran.state["certain"]) == ("accepted", 0, True)
    assert ran.state["sufficient"] is True
    assert ran.texts == ["s0", "s1", "s2"]
    first, second = ran.rounds
    assert (first["number"], first["chunking"], first["sufficient"]) == (0, DenseRagContext().chunker, None)
    assert (second["number"], second["chunking"], second["sufficient"]) == (0, DenseRagContext().rechunker, True)
    assert first["dse"] == pytest.approx(ONE_OF_FOUR)
    assert ran.llm.evaluated == [["s0", "s1", "s2"]]
    assert [chunk["score"] for chunk in ran.state["evidence"]] == pytest.approx(
        [math.cos(math.radians(angle)) for angle in (0, 10, -20)], abs=1e-6
    )


async def test_certain_after_rechunking_but_insufficient() -> None:
    ran = await run(unsure())
    assert ran.path == [*RECHUNKED, "classify", "refine", "give_best_answer"]
    assert (ran.state["stop_reason"], ran.state["certain"], ran.state["sufficient"]) == ("unchanged", True, False)
    assert {chunk["kind"] for chunk in ran.rounds[-1]["classified"]} == {"certain"}
    assert len(ran.rounds) == 2


async def test_without_refinement() -> None:
    ran = await run(unsure(wavering={"s0"}), refinement="off")
    assert ran.path == [*START_NODES, "rechunk", "dense", "give_best_answer"]
    assert (ran.state["stop_reason"], ran.state["certain"]) == ("not_refined", False)
    assert ran.texts == ["s0", "s1", "s2"]
    assert ran.state["sufficient"] is None
    assert ran.llm.evaluated == []


async def test_without_refinement_and_certain_after_rechunking() -> None:
    ran = await run(unsure(), refinement="off")
    assert ran.path == [*START_NODES, "rechunk", "dense", "give_best_answer"]
    assert (ran.state["stop_reason"], ran.state["certain"]) == ("certain", True)


async def test_without_rechunking_and_refinement() -> None:
    ran = await run(unsure(), refinement="off", adaptive=False)
    assert ran.path == [*START_NODES, "give_best_answer"]
    assert (ran.state["stop_reason"], ran.state["certain"]) == ("not_refined", False)
    assert ran.texts == ["fixed 0", "fixed 1", "fixed 2"]
    assert len(ran.rounds) == 1


# --- refinement ---


async def test_refined_until_accepted() -> None:
    ran = await run(unsure(wavering={"s1"}, needed={"s1"}, settling={"s3"}, enough={"s3"}))
    assert ran.path == [*RECHUNKED, "ablate", *REFINED, "give_best_answer"]
    assert ran.inner == [measured(3, 4, repeat=True), measured(3, 4), measured(1, 5)]
    assert (ran.state["stop_reason"], ran.state["answer"], ran.state["dse"]) == ("accepted", "settled", 0)
    assert ran.texts == ["s0", "s1", "s2", "s3"]
    _, before, after = ran.rounds
    assert (before["number"], after["number"]) == (0, 1)
    assert (before["pruned"], after["pruned"], after["refilled"], after["classified"]) == ([], [], [], [])
    assert [refill["chunk_id"] for refill in before["refilled"]] == ["c3"]
    assert before["refilled"][0]["near"] == "c1"
    assert before["refilled"][0]["similarity"] == pytest.approx(math.cos(math.radians(20)), abs=1e-6)
    assert [chunk["kind"] for chunk in before["classified"]] == ["certain", "necessary", "certain"]
    assert before["classified"][1] == {
        "chunk_id": "c1",
        "kind": "necessary",
        "response": "astray",
        "link": 0.0,
        "ablation": "seen",
        "ablation_link": 0.0,
    }
    assert before["classified"][0]["ablation"] is None
    assert before["dse"] == pytest.approx(ONE_OF_FOUR)
    assert (before["sufficient"], after["sufficient"]) == (False, True)


async def test_accepted_in_a_later_round() -> None:
    # s1 brings s3; that changes nothing, so the next round brings the next nearest chunk
    story = unsure(wavering={"s1"}, needed={"s1"}, settling={"s5"}, enough={"s5"})
    ran = await run(story)
    assert ran.path == [*RECHUNKED, "ablate", *REFINED, "ablate", *REFINED, "give_best_answer"]
    assert [record["chunk_ids"] for record in ran.rounds[1:]] == [
        ["c0", "c1", "c2"],
        ["c0", "c1", "c2", "c3"],
        ["c0", "c1", "c2", "c3", "c5"],
    ]
    assert [record["number"] for record in ran.rounds] == [0, 0, 1, 2]
    assert ran.inner[2:] == [measured(1, 5), measured(1, 6)]


async def test_kept_chunks_are_not_rephrased_again() -> None:
    story = unsure(wavering={"s1"}, needed={"s1"}, settling={"s5"}, enough={"s5"})
    llm = (await run(story)).llm
    assert len(llm.rephrased) == len(set(llm.rephrased)) == 3 + 5


async def test_unnecessary_chunks_are_dropped_and_necessary_ones_bring_more() -> None:
    ran = await run(unsure(wavering={"s0", "s1", "s2"}, needed={"s1", "s2"}, settling={"s4"}, enough={"s4"}))
    assert ran.path == [*RECHUNKED, "ablate*3", *REFINED, "give_best_answer"]
    refined = ran.rounds[1]
    assert [chunk["kind"] for chunk in refined["classified"]] == ["unnecessary", "necessary", "necessary"]
    assert refined["pruned"] == ["c0"]
    assert [(refill["near"], refill["chunk_id"]) for refill in refined["refilled"]] == [("c1", "c3"), ("c2", "c4")]
    assert ran.texts == ["s1", "s2", "s3", "s4"]
    for without in (["s1", "s2"], ["s0", "s2"], ["s0", "s1"]):
        assert ran.llm.answered.count(without) == 1


async def test_two_necessary_chunks_do_not_bring_the_same_one() -> None:
    semantic = {"s0": 0, "s1": 10, "s2": 12, "s3": 30, "s4": 40, "s5": 80}
    ran = await run(
        unsure(wavering={"s1", "s2"}, needed={"s1", "s2"}, settling={"s4"}, enough={"s4"}), semantic=semantic
    )
    assert [(refill["near"], refill["chunk_id"]) for refill in ran.rounds[1]["refilled"]] == [
        ("c1", "c3"),
        ("c2", "c4"),
    ]


async def test_every_chunk_dropped() -> None:
    ran = await run(unsure(wavering={"s0", "s1", "s2"}))
    assert ran.path == [*RECHUNKED, "ablate*3", "classify", "refine", "give_best_answer"]
    assert (ran.state["stop_reason"], ran.state["answer"]) == ("nothing_left", "seen")
    assert ran.texts == ["s0", "s1", "s2"]
    assert ran.rounds[-1]["pruned"] == ["c0", "c1", "c2"]
    assert len(ran.rounds) == 2


async def test_every_chunk_visited() -> None:
    semantic = dict(list(SEMANTIC.items())[:4])
    ran = await run(unsure(wavering={"s1"}, needed={"s1"}), semantic=semantic)
    assert ran.path == [*RECHUNKED, "ablate", *REFINED, "give_best_answer"]
    assert ran.state["stop_reason"] == "all_visited"
    assert ran.rounds[-1]["classified"] == []
    assert (ran.texts, ran.state["dse"]) == (
        ["s0", "s1", "s2", "s3"],
        pytest.approx(-(4 * math.log(4 / 5) + math.log(1 / 5)) / 5),
    )


async def test_every_chunk_visited_at_once() -> None:
    semantic = dict(list(SEMANTIC.items())[:3])
    ran = await run(unsure(wavering={"s1"}, needed={"s1"}), semantic=semantic)
    assert ran.path == [*RECHUNKED, "give_best_answer"]
    assert ran.state["stop_reason"] == "all_visited"


@pytest.mark.parametrize("max_rounds", [1, 2])
async def test_the_rounds_are_spent(max_rounds: int) -> None:
    story = unsure(wavering={"s1"}, needed={"s1"})
    ran = await run(story, max_rounds=max_rounds)
    assert ran.path == [*RECHUNKED, *(["ablate", *REFINED] * max_rounds), "give_best_answer"]
    assert ran.state["stop_reason"] == "max_rounds"
    assert [record["number"] for record in ran.rounds] == [0, *range(max_rounds + 1)]


async def test_the_answer_of_the_lowest_dse_is_kept() -> None:
    # s3, which s1 brings, makes the responses differ as well: the DSE rises
    ran = await run(unsure(wavering={"s1", "s3"}, needed={"s1", "s3"}), max_rounds=1)
    assert ran.state["stop_reason"] == "max_rounds"
    assert ran.rounds[2]["dse"] > ran.rounds[1]["dse"]
    assert ran.state["dse"] == ran.rounds[1]["dse"] == pytest.approx(ONE_OF_FOUR)
    assert ran.state["uncertainty"]["value"] == ran.state["dse"], "of the best context, not of the last one"
    assert (ran.state["answer"], ran.texts) == ("seen s1", ["s0", "s1", "s2"])
    assert ran.state["certain"] is False


async def test_the_first_fixed_chunks_are_no_candidate() -> None:
    # fixed: one of four responses differs; semantic: two do, so the DSE is higher
    story = unsure(wavering={"s0", "s1"}, needed={"s0", "s1"})
    llm = story.reader()
    llm.answer = lambda texts: (
        f"astray {texts[0]}" if story.answer(texts) == "astray" and "s" in texts[-1] else story.answer(texts)
    )
    ran = await run(story, llm=llm, max_rounds=1)
    assert ran.rounds[0]["dse"] < min(record["dse"] for record in ran.rounds[1:])
    assert ran.texts[0] == "s0"


async def test_a_sufficient_context_is_not_left_for_an_insufficient_one_of_lower_dse() -> None:
    story = unsure(wavering={"s1"}, needed={"s1"}, settling={"s3"})
    llm = story.reader()
    llm.sufficient = lambda texts: len(texts) == 3
    ran = await run(story, llm=llm)
    assert [record["sufficient"] for record in ran.rounds] == [None, True, False]
    assert ran.rounds[2]["dse"] == 0
    assert (ran.state["answer"], ran.state["sufficient"], ran.state["stop_reason"]) == ("seen s1", True, "unchanged")


# --- settings ---


async def test_accept_both_needs_both() -> None:
    ran = await run(unsure(wavering={"s1"}, needed={"s1"}, enough={"s0"}), max_rounds=1)
    assert ran.state["stop_reason"] == "max_rounds"
    assert [record["sufficient"] for record in ran.rounds] == [None, True, True]


async def test_accept_either_takes_a_sufficient_context() -> None:
    ran = await run(unsure(wavering={"s1"}, needed={"s1"}, enough={"s0"}), accept="either")
    assert ran.path == [*RECHUNKED, "give_best_answer"]
    assert (ran.state["stop_reason"], ran.state["certain"], ran.state["sufficient"]) == ("accepted", False, True)


async def test_accept_either_takes_a_low_dse() -> None:
    ran = await run(unsure(), accept="either")
    assert ran.path == [*RECHUNKED, "give_best_answer"]
    assert (ran.state["stop_reason"], ran.state["certain"], ran.state["sufficient"]) == ("accepted", True, False)


async def test_accept_either_answers_from_the_context_that_was_accepted() -> None:
    ran = await run(unsure(wavering={"s1", "s3"}, needed={"s1", "s3"}, enough={"s3"}), accept="either")
    assert ran.rounds[2]["dse"] > ran.rounds[1]["dse"]
    assert (ran.state["stop_reason"], ran.state["answer"]) == ("accepted", "seen s1 s3")
    assert ran.state["dse"] == ran.rounds[2]["dse"]
    assert ran.texts == ["s0", "s1", "s2", "s3"]


@pytest.mark.parametrize(("above", "stop_reason"), [(0.0, "unchanged"), (1e-9, "accepted")])
async def test_a_dse_at_the_threshold_is_certain_but_not_accepted(above: float, stop_reason: str) -> None:
    # rephrasings that change the response: two of the three fixed chunks, one of the semantic chunks
    story = Story(wavering={"fixed 0", "fixed 1", "s1"}, enough={"s0"})
    llm = story.reader()
    llm.answer = lambda texts: " ".join(texts) if story.answer(texts) == "astray" else "seen"
    ran = await run(story, llm=llm, refinement="prune", dse_threshold=ONE_OF_FOUR)
    dse = ran.rounds[1]["dse"]
    assert dse == pytest.approx(ONE_OF_FOUR)
    ran = await run(story, llm=llm, refinement="prune", dse_threshold=dse + above)
    assert ran.rounds[1]["dse"] == dse
    assert ran.state["certain"] is True
    assert len(ran.rounds) == (2 if above else 3), "the second time s1 is dropped"


@pytest.mark.parametrize(("accept", "stop_reason"), [("both", "unchanged"), ("either", "accepted")])
async def test_with_threshold_0_no_context_is_accepted_for_its_dse(accept: str, stop_reason: str) -> None:
    ran = await run(unsure(enough={"s0"}), dse_threshold=0.0, accept=accept)
    assert ran.rounds[1]["dse"] == 0
    assert ran.state["stop_reason"] == stop_reason
    assert ran.state["certain"] is True


async def test_without_rechunking() -> None:
    story = Story(wavering={"fixed 0"}, needed={"fixed 0"}, settling={"fixed 3"}, enough={"fixed 3"})
    ran = await run(story, adaptive=False)
    assert ran.path == [*START_NODES, "self_evaluate", "update_best", "ablate", *REFINED, "give_best_answer"]
    assert ran.inner == [measured(3, 4, repeat=True), measured(1, 5)]
    assert [record["number"] for record in ran.rounds] == [0, 1]
    assert {record["chunking"] for record in ran.rounds} == {DenseRagContext().chunker}
    assert ran.texts == ["fixed 0", "fixed 1", "fixed 2", "fixed 3"]
    assert ran.state["stop_reason"] == "accepted"


async def test_pruning_only() -> None:
    story = unsure(wavering={"s0", "s1"}, needed={"s1"})
    ran = await run(story, refinement="prune")
    assert ran.path == [*RECHUNKED, "ablate*2", *REFINED, "ablate", "classify", "refine", "give_best_answer"]
    assert [record["chunk_ids"] for record in ran.rounds[1:]] == [["c0", "c1", "c2"], ["c1", "c2"]]
    assert ran.state["stop_reason"] == "unchanged"
    assert all(record["refilled"] == [] for record in ran.rounds)
    assert ran.inner[2] == measured(0, 3)


async def test_without_self_evaluation() -> None:
    ran = await run(unsure(wavering={"s1"}, needed={"s1"}, settling={"s3"}), self_evaluation=False)
    assert ran.path == [
        *START_NODES,
        "rechunk",
        "dense",
        "update_best",
        "ablate",
        "classify",
        "refine",
        "dense",
        "update_best",
        "give_best_answer",
    ]
    assert ran.llm.evaluated == []
    assert (ran.state["stop_reason"], ran.state["sufficient"]) == ("accepted", None)


async def test_without_self_evaluation_and_rechunking() -> None:
    story = Story(wavering={"fixed 0"}, needed={"fixed 0"}, settling={"fixed 3"})
    ran = await run(story, self_evaluation=False, adaptive=False)
    assert ran.path == [
        *START_NODES,
        "update_best",
        "ablate",
        "classify",
        "refine",
        "dense",
        "update_best",
        "give_best_answer",
    ]
    assert ran.state["stop_reason"] == "accepted"


async def test_accept_either_without_self_evaluation_still_needs_a_low_dse() -> None:
    story = unsure(wavering={"s1"}, needed={"s1"}, settling={"s3"})
    ran = await run(story, self_evaluation=False, accept="either")
    assert (ran.state["answer"], ran.state["dse"]) == ("settled", 0)


async def test_refill_near_certain_chunks() -> None:
    ran = await run(unsure(wavering={"s1"}, needed={"s1"}), refill_near="certain", max_rounds=1)
    refined = ran.rounds[1]
    assert [chunk["kind"] for chunk in refined["classified"]] == ["certain", "necessary", "certain"]
    assert [(refill["near"], refill["chunk_id"]) for refill in refined["refilled"]] == [("c0", "c3"), ("c2", "c4")]
    assert ran.rounds[2]["chunk_ids"] == ["c0", "c1", "c2", "c3", "c4"]


@pytest.mark.parametrize("first", ["seen s1", "seen"])
@pytest.mark.parametrize(
    ("half_links", "kind"), [("necessary", "necessary"), ("unnecessary", "unnecessary"), (None, "necessary")]
)
async def test_half_links(first: str, half_links: str | None, kind: str) -> None:
    judge = ScriptedJudge(lambda a, b: a == first and "seen" in b)
    settings: dict[str, Any] = {} if half_links is None else {"half_links": half_links}
    ran = await run(unsure(wavering={"s1"}, needed={"s1"}), judge, max_rounds=1, **settings)
    classified = ran.rounds[1]["classified"][1]
    assert (classified["kind"], classified["ablation_link"]) == (kind, 0.5)
    assert ran.rounds[1]["pruned"] == (["c1"] if kind == "unnecessary" else [])


@pytest.mark.parametrize("half_links", ["necessary", "unnecessary"])
async def test_without_any_link_a_chunk_is_necessary(half_links: str) -> None:
    ran = await run(unsure(wavering={"s1"}, needed={"s1"}), half_links=half_links, max_rounds=1)
    assert ran.rounds[1]["classified"][1]["kind"] == "necessary"


async def test_a_chunk_that_is_half_linked_is_uncertain() -> None:
    judge = ScriptedJudge(lambda a, b: a == "astray")
    ran = await run(
        unsure(wavering={"s1"}, needed={"s1"}), judge, fixed={"fixed 0": 0}, max_rounds=1, dse_threshold=0.1
    )
    assert ran.rounds[1]["classified"][1]["link"] == 0.5
    assert ran.rounds[1]["classified"][1]["kind"] == "necessary"


@pytest.mark.parametrize(("max_chunks", "added"), [(3, []), (4, ["c3"]), (5, ["c3", "c4"]), (1, [])])
async def test_the_largest_context(max_chunks: int, added: list[str]) -> None:
    story = unsure(wavering={"s1", "s2"}, needed={"s1", "s2"})
    ran = await run(story, max_chunks=max_chunks, max_rounds=1)
    assert [refill["chunk_id"] for refill in ran.rounds[1]["refilled"]] == added
    assert ran.state["stop_reason"] == ("max_rounds" if added else "unchanged")
    warnings = [warning for warning in ran.state["warnings"] if f"at most max_chunks = {max_chunks} chunks" in warning]
    assert len(warnings) == (len(added) < 2)
    assert all(f"not added: {2 - len(added)}," in warning for warning in warnings)


async def test_of_equally_near_chunks_the_lowest_row_is_added() -> None:
    # s1 and s2 each bring a chunk; the copies of s3 are equally near to both
    semantic = {**SEMANTIC, "copy": 30, "copy of copy": 30}
    story = unsure(wavering={"s1", "s2"}, needed={"s1", "s2"})
    ran = await run(story, semantic={**semantic, "s4": 170, "s5": 175}, max_rounds=1)
    assert [refill["chunk_id"] for refill in ran.rounds[1]["refilled"]] == ["c3", "c6"]


@pytest.mark.parametrize(
    ("window", "added"),
    [
        (100, 0),
        (100_000, 2),
    ],
)
async def test_chunks_that_do_not_fit_the_window_are_not_added(window: int, added: int) -> None:
    story = unsure(wavering={"s1", "s2"}, needed={"s1", "s2"})
    ran = await run(story, llm=story.reader(context_window=window), max_rounds=1)
    assert ran.state["stop_reason"] == ("max_rounds" if added else "unchanged")
    assert len(ran.rounds[1]["refilled"]) == added
    warnings = [warning for warning in ran.state["warnings"] if "the model's window is full" in warning]
    assert warnings == ([] if added else ["2 chunks were not added: the model's window is full."])


async def smallest_windows(chunks: Sequence[Chunk]) -> dict[int, int]:
    """The smallest windows, in tokens, that have room for one and for both of the last two chunks."""

    async def fitting(window: int) -> int:
        return await how_many_fit(QUESTION, chunks[:-2], chunks[-2:], DenseRagContext(), Reader(context_window=window))

    counts = [await fitting(window) for window in range(1000)]
    assert counts == sorted(counts)
    return {count: counts.index(count) for count in (1, 2)}


async def test_only_as_many_are_added_as_fit() -> None:
    chunks = [cut(SEMANTIC).chunk(row) for row in range(6)]
    enough = await smallest_windows(chunks)
    sizes = await Reader().count([passage(chunk) for chunk in chunks])
    assert enough[2] - enough[1] == sizes[5]
    prompt = sum(await Reader().count([message["content"] for message in answer.messages(QUESTION, chunks[:5])]))
    assert enough[1] > prompt + DenseRagContext().max_answer_tokens


async def test_tokens_are_counted_in_one_request_and_not_at_all_where_the_bytes_fit() -> None:
    requests: list[int] = []

    class Counting(Reader):
        async def count(self, texts: Sequence[str]) -> list[int]:
            requests.append(len(texts))
            return await super().count(texts)

    chunks = [cut(SEMANTIC).chunk(row) for row in range(6)]
    for window, added in ((100_000, 2), (250, 2), (140, 0)):
        llm = Counting(context_window=window)
        assert await how_many_fit(QUESTION, chunks[:-2], chunks[-2:], DenseRagContext(), llm) == added, window
    assert requests == [2 + 6] * 2


async def test_half_of_the_longest_chunk_stays_free_for_its_rephrasing() -> None:
    short = [cut(SEMANTIC).chunk(row) for row in range(3)]
    long: list[Chunk] = [{**short[0], "id": "long", "text": "word " * words} for words in (100, 120)]
    before, after = [await smallest_windows([chunk, *short]) for chunk in long]
    assert after[2] - before[2] == 20 + 10, "the 20 words themselves and half as many again"


# --- few chunks ---


@pytest.mark.parametrize("fixed", [{}, FIXED], ids=["at all", "anew"])
async def test_nothing_found(fixed: Mapping[str, float]) -> None:
    ran = await run(unsure(), fixed=fixed, semantic={})
    assert (ran.state["answer"], ran.state["certain"], ran.texts) == ("seen", False, [])
    assert any("found no chunks" in warning for warning in ran.state["warnings"])


async def test_one_chunk() -> None:
    ran = await run(unsure(wavering={"s0"}, needed={"s0"}), fixed={"fixed 0": 0}, semantic={"s0": 0})
    assert ran.path == [*RECHUNKED, "give_best_answer"]
    assert (ran.state["stop_reason"], ran.state["dse"]) == ("all_visited", pytest.approx(math.log(2)))
    assert [warning for warning in ran.state["warnings"] if "Fewer chunks than k = 3 were found: 1." in warning]


async def test_the_only_chunk_is_ablated_to_no_context() -> None:
    story = unsure(wavering={"s0"}, needed={"s0"}, settling={"s1"}, enough={"s1"})
    ran = await run(story, semantic={"s0": 0, "s1": 10}, k=1)
    assert ran.path == [*RECHUNKED, "ablate", *REFINED, "give_best_answer"]
    assert [] in ran.llm.answered
    assert ran.texts == ["s0", "s1"]


async def test_equal_texts_are_rephrased_once() -> None:
    retriever = ScriptedRetriever([1.0, 0.0], [[1.0, 0.0]] * 3, ["same"] * 3)
    llm = Story().reader()
    graph = dense_rag.build(TwoCuts(llm, ScriptedJudge(), retriever, retriever)).compile()
    state, path, inner = await walk(graph, {"question": QUESTION}, {"k": 3})
    assert path == [*START_NODES, "give_best_answer"]
    assert inner == [measured(1, 4, repeat=True)]
    assert llm.rephrased == ["same"]
    assert [chunk["id"] for chunk in state["evidence"]] == ["c0", "c1", "c2"]


# --- what goes wrong ---


async def test_a_self_evaluation_that_cannot_be_read_is_a_no() -> None:
    def sufficient(texts: Sequence[str]) -> bool:
        raise ContractFault("it names no option", "maybe")

    llm = unsure().reader()
    llm.sufficient = sufficient
    ran = await run(unsure(), llm=llm)
    assert (ran.state["stop_reason"], ran.state["sufficient"]) == ("unchanged", False)
    assert ran.state["warnings"] == [
        "The model's self-evaluation was neither yes nor no; the context counts as insufficient."
    ]


async def test_a_chunk_that_cannot_be_rephrased_counts_as_certain() -> None:
    story = unsure(wavering={"s1"}, needed={"s1"}, settling={"s3"}, enough={"s3"})
    llm = story.reader(rephrasing=lambda text, again: "" if text == "s0" else f"other {text}")
    ran = await run(story, llm=llm)
    assert ran.path == [*RECHUNKED, "ablate", *REFINED, "give_best_answer"]
    assert ran.inner[1:] == [measured(3, 3), measured(1, 4)]
    assert ran.rounds[1]["classified"][0]["kind"] == "certain"
    assert llm.rephrased.count("s0") == 2, "not tried again in the next round"
    assert len([warning for warning in ran.state["warnings"] if "was not rephrased" in warning]) == 1


async def test_nothing_probed_is_neither_certain_nor_accepted() -> None:
    story = Story(enough={"s0"})
    ran = await run(story, llm=story.reader(rephrasing=lambda text, again: ""))
    assert ran.path == [*RECHUNKED, "classify", "refine", "give_best_answer"]
    assert (ran.state["stop_reason"], ran.state["certain"], ran.state["dse"]) == ("unchanged", False, 0)
    assert ran.state["uncertainty"]["value"] is None
    assert len(ran.state["warnings"]) == 3


async def test_a_context_without_an_answer_is_neither_certain_nor_accepted() -> None:
    ran = await run(Story(), llm=Reader(answer=lambda texts: "", sufficient=lambda texts: True), accept="either")
    assert ran.path == [*RECHUNKED, "classify", "refine", "give_best_answer"]
    assert (ran.state["stop_reason"], ran.state["certain"], ran.state["uncertainty"]["value"]) == (
        "unchanged",
        False,
        None,
    )


async def test_an_answer_is_not_left_for_an_empty_one_of_lower_dse() -> None:
    story = unsure(wavering={"s1"}, needed={"s1"}, enough=set(SEMANTIC))
    llm = story.reader()
    llm.answer = lambda texts: "" if any("s3" in text for text in texts) else story.answer(texts)  # which s1 brings
    ran = await run(story, llm=llm, max_rounds=1)
    assert (ran.rounds[2]["dse"], ran.rounds[2]["responses"][0]) == (0, "")
    assert (ran.state["answer"], ran.state["dse"]) == ("seen s1", ran.rounds[1]["dse"])


@pytest.mark.parametrize(
    ("new", "best", "better"),
    [
        (("seen", False, 0.0), ("", False, 0.0), True),  # an answer that could not be probed is better than none
        (("", False, 0.0), ("seen", False, 0.7), False),
        (("seen", False, 0.0), ("seen s1", True, 0.7), False),
        (("seen", True, 0.7), ("seen s1", False, 0.0), True),
        (("seen", True, 0.3), ("seen s1", True, 0.7), True),
        (("seen", True, 0.7), ("seen s1", True, 0.7), False),
    ],
)
def test_which_of_two_answers_is_better(
    new: tuple[str, bool, float], best: tuple[str, bool, float], *, better: bool
) -> None:
    def answer(given: str, probed: bool, dse: float) -> BestAnswer:
        return {"answer": given, "chunk_ids": ["c"], "dse": dse, "probed": probed, "sufficient": None}

    assert is_better(answer(*new), answer(*best), DenseRagContext(self_evaluation=False)) == better


async def test_a_chunk_too_long_to_rephrase() -> None:
    def rephrasing(text: str, again: bool) -> str:
        if text == "fixed 1":
            raise ContextOverflow("The prompt has 9000 tokens and the window is 2048: use fewer chunks.")
        return f"other {text}"

    ran = await run(Story(), llm=Story().reader(rephrasing=rephrasing))
    assert ran.state["stop_reason"] == "certain"
    assert ran.state["warnings"] == [
        "Chunk 'c1' was not rephrased: the chunk and its rephrasing do not fit the model's window."
    ]


async def test_a_chunk_is_kept_if_the_judge_cannot_label_its_ablation() -> None:
    judge = ScriptedJudge(lambda a, b: None if {a, b} == {"seen s1", "seen"} else False)
    ran = await run(unsure(wavering={"s1"}, needed={"s1"}), judge, max_rounds=1)
    assert ran.rounds[1]["classified"][1]["kind"] == "necessary"
    assert ran.state["warnings"] == [
        "The judge 'judge' could not label 2 pairs of answers; they count as not entailing."
    ]


async def test_a_lasting_fault_is_not_retried_by_both_graphs(fast_retries: None) -> None:
    llm = Story().reader(faults=[ModelFault("scripted", "connection refused")] * 50)
    with pytest.raises(ModelUnavailable, match="scripted did not answer after 4 attempts"):
        await run(Story(), llm=llm, k=1)
    assert len(llm.calls) == 4


async def test_a_model_that_does_not_repeat_itself() -> None:
    turns = iter(range(1000))
    llm = Reader(answer=lambda texts: f"answer {next(turns)}", sufficient=lambda texts: True)
    graph = machine(llm)
    for _ in range(2):
        state = await graph.ainvoke({"question": QUESTION}, context={"k": 3, "max_rounds": 1})
        warnings = [warning for warning in state["warnings"] if "gave two answers to one prompt" in warning]
        assert (len(warnings), len(state["rounds"])) == (1, 3), "said once"
    llm.calls.clear()
    state = await machine(llm).ainvoke({"question": QUESTION}, context={"k": 3, "check_determinism": False})
    assert not [warning for warning in state["warnings"] if "gave two answers" in warning]


# --- cost and latency ---


async def test_ablations_run_together() -> None:
    story = unsure(wavering={"s0", "s1", "s2"})
    llm = story.reader()
    arrived: list[int] = []
    complete = llm.complete
    all_there = asyncio.Event()

    async def together(messages: Any, sampling: Any) -> Any:
        if "other" not in messages[1]["content"] and messages[1]["content"].count("<passage number") == 2:
            arrived.append(1)
            if len(arrived) == 3:
                all_there.set()
            await all_there.wait()
        return await complete(messages, sampling)

    llm.complete = together  # type: ignore[method-assign]
    ran = await asyncio.wait_for(run(story, llm=llm), 60)
    assert len(arrived) == 3
    assert ran.state["stop_reason"] == "nothing_left"


# --- against the straight line ---


WORDINGS = ["Red", "the red.", "blue", "Blue!", "green", "white", ""]


def world_of(seed: int) -> reference.World:
    """A random world, its chunks' vectors such that cosines are exact in float32 and ties are ties."""
    luck = np.random.default_rng(seed)
    dimensions = int(luck.choice([4, 16]))
    astray = float(luck.choice([0, 0.2, 0.5])), float(luck.choice([0.3, 0.6, 1]))  # as it is, with a chunk rephrased
    entailing, enough, stuck = luck.choice([0, 0.5, 0.9]), luck.choice([0, 0.3, 0.7]), luck.choice([0, 0, 0, 0.3, 1])

    def vectors(count: int) -> np.ndarray:
        drawn: np.ndarray = luck.choice([-1, 1], size=(count, dimensions)) / math.sqrt(dimensions)
        return drawn

    def chunking(name: str, most: int) -> reference.Chunking:
        count = int(luck.integers(1, most + 1))
        return reference.Chunking([f"{name}{row}" for row in range(count)], vectors(count))

    def chance(kind: int, texts: Sequence[str]) -> np.random.Generator:
        return np.random.default_rng([seed, kind, *map(ord, "|".join(texts))])

    def response(texts: Sequence[str]) -> str:
        # depends on the set of texts alone, not on their order
        own = chance(0, sorted(set(texts)))
        unsteady = own.random() < astray[any(text.startswith("other ") for text in texts)]
        return WORDINGS[int(own.integers(len(WORDINGS)))] if unsteady else WORDINGS[0]

    return reference.World(
        answer=response,
        rephrase=lambda text: None if chance(1, [text]).random() < stuck else f"other {text}",
        entails=lambda a, b: bool(chance(3, [a, b]).random() < entailing),
        sufficient=lambda texts: bool(chance(2, sorted(texts)).random() < enough),
        question=vectors(1)[0],
        fixed=chunking("f", 5),
        semantic=chunking("s", 9),
    )


worlds = st.integers(0, 2**32 - 1).map(world_of)


@st.composite
def options(draw: st.DrawFn) -> reference.Options:
    return reference.Options(
        k=draw(st.sampled_from([2, 3, 4, 1])),
        dse_threshold=draw(st.sampled_from([0.2, 0.2, 0.05, 0.6])),
        adaptive=draw(st.sampled_from([True, True, False])),
        refinement=draw(st.sampled_from(["full", "full", "full", "prune", "off"])),
        self_evaluation=draw(st.sampled_from([True, True, False])),
        refill_near=draw(st.sampled_from(["necessary", "necessary", "certain"])),
        half_links=draw(st.sampled_from(["necessary", "unnecessary"])),
        accept=draw(st.sampled_from(["both", "both", "either"])),
        max_rounds=draw(st.sampled_from([2, 1, 4])),
        max_chunks=draw(st.sampled_from([8, 5, 3, 1])),
    )


@settings(max_examples=40, database=None, suppress_health_check=list(HealthCheck))
@given(worlds, options())
async def test_it_computes_what_the_straight_line_computes(world: reference.World, chosen: reference.Options) -> None:
    expected = reference.dense_rag(world, chosen)
    llm = Reader(
        answer=world.answer,
        rephrasing=lambda text, again: world.rephrase(text) or "",
        sufficient=world.sufficient,
    )
    judge = ScriptedJudge(lambda a, b: world.entails(reference.plain(a), reference.plain(b)))
    cuts = [ScriptedRetriever(world.question.tolist(), cut.vectors.tolist(), cut.texts) for cut in cuts_of(world)]
    graph: Any = dense_rag.build(TwoCuts(llm, judge, *cuts)).compile()
    state = await graph.ainvoke({"question": QUESTION}, context=DenseRagContext.unchecked(vars(chosen)))

    assert state["stop_reason"] == expected.stop
    assert state["answer"] == expected.answer
    assert [chunk["text"] for chunk in state["evidence"]] == expected.evidence
    rounds = state["rounds"]
    if not expected.rounds or chosen.adaptive:
        assert same(rounds[0], expected.first)
        rounds = rounds[1:]
    assert len(rounds) == len(expected.rounds)
    for number, (record, reference_round) in enumerate(zip(rounds, expected.rounds, strict=True)):
        assert record["number"] == number
        assert same(record, reference_round.measured)
        assert [int(name[1:]) for name in record["chunk_ids"]] == list(reference_round.context)
        assert record["sufficient"] is reference_round.sufficient
        assert [chunk["kind"] for chunk in record["classified"]] == reference_round.classes
    final = expected.first if expected.best is None else expected.rounds[expected.best].measured
    assert state["dse"] == pytest.approx(final.dse, abs=1e-12)
    assert state["certain"] is reference.is_certain(final, chosen)
    assert state["usage"]["calls"] == len(llm.calls)


def cuts_of(world: reference.World) -> tuple[reference.Chunking, reference.Chunking]:
    return world.fixed, world.semantic


def same(record: dict[str, Any], measurement: reference.Measurement) -> bool:
    is_same = record["responses"] == measurement.answers and record["link"] == measurement.links
    return bool(is_same and record["dse"] == pytest.approx(measurement.dse, abs=1e-12))


def test_the_random_worlds_reach_every_end() -> None:
    reached: Counter[str] = Counter()

    @settings(max_examples=250, derandomize=True, database=None)
    @given(worlds, options())
    def tell(world: reference.World, chosen: reference.Options) -> None:
        outcome = reference.dense_rag(world, chosen)
        reached[outcome.stop] += 1
        reached["later"] += outcome.best is not None and outcome.best > 0
        reached["half"] += any(0.5 in row for done in outcome.rounds for row in done.measured.links)

    tell()
    ends = {"certain", "not_refined", "accepted", "all_visited", "max_rounds", "unchanged", "nothing_left"}
    assert {end for end, times in reached.items() if times >= 3} == {*ends, "later", "half"}
