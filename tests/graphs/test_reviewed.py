"""A person in the loop: when a run stops to be looked at, and how it goes on."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from dubito.errors import UserFault
from dubito.graphs import reviewed
from dubito.state.calibration import AnswerCalibration, identity, settings_of
from dubito.state.dense import DenseContext
from dubito.tests.scripted import (
    CERTIFIED,
    QUERY,
    QUESTION,
    THE_CORPUS,
    VECTORS,
    KnownCorpus,
    Reader,
    ScriptedJudge,
    ScriptedRetriever,
)
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

THREAD: Any = {"configurable": {"thread_id": "1"}}
ASKED: Any = {"question": QUESTION}
CONTEXT: Any = {"k": 3, "judge": "embedded", "check_determinism": False}
SURE = ["the Lune flows past", "a second text"]


def wavering(texts: Any) -> str:
    """The same of the chunks that a person gives, and else another answer to every wording."""
    return "the Lune" if any("Lune" in text for text in texts) else " ".join(texts)


def machine(llm: Reader | None = None) -> Any:
    retriever = ScriptedRetriever(QUERY, VECTORS[:5])
    opened = KnownCorpus(llm=llm or Reader(answer=wavering), judge=ScriptedJudge(), retriever=retriever)
    return reviewed.build("dense", opened).compile(checkpointer=InMemorySaver())


async def interrupted(graph: Any) -> dict[str, Any]:
    """The value of the interrupt, which a person is shown."""
    state = await graph.ainvoke(ASKED, THREAD, context=CONTEXT)
    (shown,) = state["__interrupt__"]
    assert (await graph.aget_state(THREAD)).next == ("review",)
    return dict(shown.value)


async def nodes(graph: Any) -> list[str]:
    """The steps of the thread so far, outer ones alone, in their order."""
    history = [snapshot async for snapshot in graph.aget_state_history(THREAD)]
    return [name for snapshot in reversed(history) for name in snapshot.next if name != "__start__"]


async def test_a_certain_answer_is_not_shown() -> None:
    graph = machine(Reader())
    state = await graph.ainvoke(ASKED, THREAD, context=CONTEXT)
    assert "__interrupt__" not in state
    assert (state["answer"], state["certain"], state["decisions"]) == ("the Lune", True, [])
    assert await nodes(graph) == ["begin_review", "dense"]


async def test_an_uncertain_answer_is_shown_with_its_evidence_and_accepted() -> None:
    graph = machine()
    shown = await interrupted(graph)
    assert shown["question"] == QUESTION
    assert shown["dse"] > 0.2
    assert len(shown["evidence"]) == 3
    assert shown["decide"]["action"] == "accept, answer or stop"
    assert json.loads(json.dumps(shown)) == shown
    state = await graph.ainvoke(Command(resume={"action": "accept"}), THREAD, context=CONTEXT)
    assert (state["answer"], state["certain"]) == (shown["answer"], False)
    assert state["decisions"] == [{"action": "accept"}]
    assert await nodes(graph) == ["begin_review", "dense", "review"]


async def calibrated(folder: Path) -> dict[str, Any]:
    """The settings with a calibration that withholds what DENSE is not certain of."""
    context = DenseContext(**CONTEXT)
    made = {"technique": "dense", "model": identity(context.llm), "settings": settings_of(context)}
    calibration = AnswerCalibration(**made, threshold=0.2, **CERTIFIED, corpus=THE_CORPUS)
    await asyncio.to_thread(calibration.save, folder / "c.json")
    return {**CONTEXT, "calibration": str(folder / "c.json")}


async def test_an_answer_that_a_calibration_withholds_is_shown_and_accepted_without_a_promise(tmp_path: Path) -> None:
    graph, settings = machine(), await calibrated(tmp_path)
    state = await graph.ainvoke(ASKED, THREAD, context=settings)
    (shown,) = state["__interrupt__"]
    assert (state["answer"], state["abstained"]) == ("", True)
    assert shown.value["answer"] == state["withheld_answer"] != ""
    state = await graph.ainvoke(Command(resume={"action": "accept"}), THREAD, context=settings)
    assert (state["answer"], state["withheld_answer"], state["abstained"]) == (shown.value["answer"], "", False)
    assert not state["certificate"]["holds"]
    assert state["certificate"]["sentence"].startswith("A person accepted the answer")


async def test_nothing_is_certified_of_an_answer_from_a_persons_chunks(tmp_path: Path) -> None:
    graph, settings = machine(), await calibrated(tmp_path)
    await graph.ainvoke(ASKED, THREAD, context=settings)
    state = await graph.ainvoke(Command(resume={"action": "answer", "chunks": SURE}), THREAD, context=settings)
    assert state["answer"] == "the Lune"
    assert not state["certificate"]["holds"]
    assert state["certificate"]["sentence"].startswith("The chunks were given with the question")


async def test_a_person_stops_the_run() -> None:
    graph = machine()
    await interrupted(graph)
    await graph.aupdate_state(THREAD, {"cited_answer": "the Lune [1]", "citations": [{}]})
    state = await graph.ainvoke(Command(resume="stop"), THREAD, context=CONTEXT)
    assert (state["answer"], state["cited_answer"], state["citations"]) == ("", "", [])
    assert state["warnings"] == ["A person stopped the run: there is no answer."]


async def test_an_answer_from_other_chunks_is_measured_and_given_if_it_is_certain() -> None:
    graph = machine()
    await interrupted(graph)
    before = (await graph.aget_state(THREAD)).values["usage"]["calls"]
    state = await graph.ainvoke(Command(resume={"action": "answer", "chunks": SURE}), THREAD, context=CONTEXT)
    assert "__interrupt__" not in state
    assert (state["answer"], state["certain"], state["dse"]) == ("the Lune", True, 0)
    assert state["uncertainty"] == {"signal": "DSE", "value": 0.0, "threshold": 0.2}
    assert [chunk["text"] for chunk in state["evidence"]] == SURE
    assert state["usage"]["calls"] > before
    assert await nodes(graph) == ["begin_review", "dense", "review", "measure_given_chunks"]


async def test_an_answer_that_wavers_again_is_shown_again() -> None:
    graph = machine()
    await interrupted(graph)
    given: Any = {"action": "answer", "chunks": ["one", {"id": "x", "text": "two"}]}
    state = await graph.ainvoke(Command(resume=given), THREAD, context=CONTEXT)
    (shown,) = state["__interrupt__"]
    assert [chunk["text"] for chunk in shown.value["evidence"]] == ["one", "two"]
    state = await graph.ainvoke(Command(resume={"action": "accept"}), THREAD, context=CONTEXT)
    assert [decision["action"] for decision in state["decisions"]] == ["answer", "accept"]
    assert await nodes(graph) == ["begin_review", "dense", "review", "measure_given_chunks", "review"]


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        ("yes", "accept, answer or stop"),
        ({"action": "go on"}, "accept, answer or stop"),
        ({"action": "answer"}, "give the chunks"),
        ({"action": "answer", "chunks": [" "]}, "Chunk 1 has no text"),
        ({"action": "answer", "chunks": "text"}, "The chunks are not a list"),
    ],
)
async def test_a_decision_that_cannot_be_followed_is_asked_for_again(reply: Any, problem: str) -> None:
    graph = machine()
    await interrupted(graph)
    state = await graph.ainvoke(Command(resume=reply), THREAD, context=CONTEXT)
    (shown,) = state["__interrupt__"]
    assert problem in shown.value["problem"]
    state = await graph.ainvoke(Command(resume={"action": "accept"}), THREAD, context=CONTEXT)
    assert state["decisions"] == [{"action": "accept"}]


async def test_a_threads_next_question_begins_anew() -> None:
    graph = machine()
    await interrupted(graph)
    await graph.ainvoke(Command(resume={"action": "answer", "chunks": SURE}), THREAD, context=CONTEXT)
    shown = await interrupted(graph)
    assert len(shown["evidence"]) == 3, "the chunks of the question before are not taken again"
    assert (await graph.aget_state(THREAD)).values["decisions"] == []


def test_it_waits_and_goes_on_without_an_event_loop_too() -> None:
    graph = machine()
    assert "__interrupt__" in graph.invoke(ASKED, THREAD, context=CONTEXT)
    state = graph.invoke(Command(resume={"action": "accept"}), THREAD, context=CONTEXT)
    assert state["decisions"] == [{"action": "accept"}]


def test_the_one_of_dense_rag_is_there_and_others_are_refused() -> None:
    assert {"begin_review", "dense_rag", "review", "measure_given_chunks"} <= set(reviewed.dense_rag.get_graph().nodes)
    with pytest.raises(UserFault, match="df_rag does not say whether its answer is certain: review dense or dense_rag"):
        reviewed.build("df_rag")
    with pytest.raises(UserFault, match="The question is empty"):
        machine().invoke({"question": " "}, THREAD)
