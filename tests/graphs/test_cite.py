"""Citations: the marks that a model writes, in every graph that can cite, and what becomes of each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from dubito.errors import ContextOverflow, ModelFault, UserFault
from dubito.graphs import chat, vanilla_rag
from dubito.graphs.registry import context_type, graph_named, graph_names
from dubito.graphs.tool import words_for_agent
from dubito.models.interfaces import Completion, Judgements, Message, Reply, Sampling, Tokens
from dubito.nodes import cite as node
from dubito.nodes.structured_reply import NO_ANSWER
from dubito.prompts import answer, cited_answer, standalone
from dubito.resources.resources import Resources
from dubito.state.calibration import AnswerCalibration, identity, settings_of
from dubito.state.escalate import EscalateContext
from dubito.state.mixins import CitingContext
from dubito.state.records import Chunk
from dubito.state.vanilla_rag import VanillaRagContext
from dubito.tests.graphs.test_certainty import SAMPLED, Sampled, means_the_same
from dubito.tests.graphs.test_forks import CASES
from dubito.tests.graphs.test_streaming import typing
from dubito.tests.scripted import (
    CERTIFIED,
    QUERY,
    QUESTION,
    VECTORS,
    ScriptedChat,
    ScriptedJudge,
    ScriptedRetriever,
    walk,
)
from langchain_core.messages import AIMessage, HumanMessage

INPUT: Any = {"question": QUESTION}
SYSTEM = cited_answer.messages("", [])[0]
CONTEXTS: dict[str, Any] = {name: context_type(graph_named(name)) for name in graph_names()}
CITING = [name for name, context in CONTEXTS.items() if issubclass(context, CitingContext)]
IN_PLACE = {name for name in CITING if CONTEXTS[name].writes_marks}
"""The graphs whose model writes the marks with the answer."""

WORDS = "the Lune [1], and not [9] the Wyre"


@dataclass
class Ran:
    output: dict[str, Any]
    path: list[str]
    llm: ScriptedChat
    judge: ScriptedJudge

    @property
    def verdicts(self) -> list[tuple[int, str | None]]:
        return [(one["mark"], one["verdict"]) for one in self.output["citations"]]


def of_first(premise: str, hypothesis: str) -> bool:
    """Only the first passage supports anything."""
    return premise.endswith("text 0")


def model(said: str | Callable[[str, str], str], **more: Any) -> ScriptedChat:
    return ScriptedChat(reply=said if callable(said) else lambda system, user: said, **more)


def opened(llm: ScriptedChat, judge: ScriptedJudge, vectors: Any = None) -> Resources:
    retriever = ScriptedRetriever(QUERY, VECTORS if vectors is None else vectors)
    return Resources(llm=llm, judge=judge, retriever=retriever)


async def run(
    said: str | Callable[[str, str], str], judge: ScriptedJudge | None = None, vectors: Any = None, **settings: Any
) -> Ran:
    llm, judge = model(said), judge or ScriptedJudge(of_first)
    graph = vanilla_rag.build(opened(llm, judge, vectors)).compile()
    output, path, _ = await walk(graph, INPUT, {"k": 2, "cite": True, **settings})
    return Ran(output, path, llm, judge)


async def test_the_marks_are_read_and_checked() -> None:
    ran = await run("the Lune [1][2]")
    assert ran.path == ["prepare", "retrieve", "generate", "cite"]
    assert (ran.output["answer"], ran.output["cited_answer"]) == ("the Lune", "the Lune [1][2]")
    first, second = ran.output["evidence"]
    assert ran.output["citations"] == [
        {
            "mark": mark,
            "exists": True,
            "chunk_id": chunk["id"],
            "title": chunk["title"],
            "address": "",
            "page": None,
            "heading": "",
            "statement": "the Lune",
            "verdict": verdict,
        }
        for mark, chunk, verdict in [(1, first, "supported"), (2, second, "unsupported")]
    ]
    assert ran.judge.asked == [("T0\ntext 0", "the Lune"), ("T1\ntext 1", "the Lune")]
    assert len(ran.llm.calls) == 1, "the answer and its marks are one call"
    assert ran.output["warnings"] == []


async def test_each_statement_is_checked_against_its_own_passage() -> None:
    ran = await run("It is long [2]. It is wet. [1]", ScriptedJudge(lambda one, other: other == "It is wet."))
    assert ran.verdicts == [(2, "unsupported"), (1, "supported")]
    assert [one["statement"] for one in ran.output["citations"]] == ["It is long.", "It is wet."]


@dataclass
class Questioned(ScriptedJudge):
    """It remembers the questions, too."""

    questions: list[str] = field(default_factory=list)

    async def judge(self, question: str, pairs: Sequence[tuple[str, str]]) -> Judgements:
        self.questions.append(question)
        return await super().judge(question, pairs)


@pytest.mark.parametrize(
    ("name", "said", "question", "premises"),
    [
        ("nli:x", "the Lune", "", ["T0\nIt is wet.", "T0\nIt is long."]),
        ("nli:x", "Yes.", QUESTION, ["T0\nIt is wet. It is long."]),
        ("llm", "the Lune", QUESTION, ["T0\nIt is wet. It is long."]),
    ],
)
async def test_what_a_judge_is_shown(name: str, said: str, question: str, premises: list[str]) -> None:
    judge = Questioned(lambda one, other: "long" in one, name=name)
    retriever = ScriptedRetriever(QUERY, [QUERY], ["It is wet. It is long."])
    resources = Resources(llm=model(f"{said} [1]"), judge=judge, retriever=retriever)
    output = await vanilla_rag.build(resources).compile().ainvoke(INPUT, context={"cite": True, "k": 1})
    assert [one["verdict"] for one in output["citations"]] == ["supported"], "one sentence is enough"
    assert (judge.questions, judge.asked) == ([question], [(premise, said) for premise in premises])


async def test_a_mark_of_no_passage_is_left_out_and_said() -> None:
    ran = await run("the Lune [0], or [1] the Wyre [99][7]")
    assert ran.output["cited_answer"] == "the Lune, or [1] the Wyre"
    assert ran.output["answer"] == "the Lune, or the Wyre"
    assert [(one["mark"], one["exists"], one["verdict"], one["chunk_id"]) for one in ran.output["citations"]] == [
        (0, False, None, None),
        (1, True, "supported", "c0"),
        (99, False, None, None),
        (7, False, None, None),
    ]
    (warning,) = ran.output["warnings"]
    assert warning.endswith("left out: [0], [7], [99].")
    assert len(ran.judge.asked) == 1, "of a passage that is not there nothing is asked"


@pytest.mark.parametrize("name", ["embedded", "similarity:0.7"])
async def test_similarity_checks_nothing_and_says_so_once(name: str) -> None:
    ran = await run("the Lune [1][2]", ScriptedJudge(name=name))
    assert ran.verdicts == [(1, "unchecked"), (2, "unchecked")]
    assert ran.output["warnings"] == [node.UNCHECKED.format(judge=name)]
    assert ran.judge.asked == []


async def test_a_judge_that_cannot_say() -> None:
    ran = await run("the Lune [1][2]", ScriptedJudge(lambda one, other: None if one == "T0\ntext 0" else True))
    assert ran.verdicts == [(1, "unchecked"), (2, "supported")]
    assert "gave no verdict on 1 of the citations" in ran.output["warnings"][0]


async def test_marks_without_an_answer_are_asked_for_again() -> None:
    replies = iter(["[1][2]", "the Lune [1]"])
    ran = await run(lambda system, user: next(replies))
    assert (ran.output["answer"], ran.verdicts, len(ran.llm.calls)) == ("the Lune", [(1, "supported")], 2)
    ran = await run("[1]")
    assert (ran.output["answer"], ran.output["cited_answer"], ran.output["citations"]) == ("", "", [])
    assert ran.output["warnings"] == [NO_ANSWER.format(problem="it has marks and no answer")]


@pytest.mark.parametrize("said", ["I don't know [1].", "The passages do not say [1][9]."])
async def test_an_answer_that_abstains_has_no_citations(said: str) -> None:
    ran = await run(said)
    assert (ran.output["cited_answer"], ran.output["citations"], ran.output["warnings"]) == ("", [], [])
    assert "[" not in ran.output["answer"]


async def test_an_answer_without_marks_cites_nothing() -> None:
    ran = await run("the Lune")
    assert (ran.output["cited_answer"], ran.output["citations"], ran.judge.asked) == ("the Lune", [], [])


async def test_without_passages_the_answer_is_asked_for_as_ever() -> None:
    ran = await run("the Lune [1]", vectors=[])
    assert ran.llm.calls == [("complete", answer.messages(QUESTION, []))]
    assert (ran.output["cited_answer"], ran.output["citations"]) == ("", [])


async def test_off_nothing_is_asked_for_and_brackets_stay() -> None:
    ran = await run("the Lune [1]", cite=False)
    assert ran.path == ["prepare", "retrieve", "generate"]
    assert ran.llm.calls == [("complete", answer.messages(QUESTION, ran.output["evidence"]))]
    assert (ran.output["answer"], ran.output["cited_answer"]) == ("the Lune [1]", "")


async def test_samples_are_compared_without_marks() -> None:
    """What is sampled to measure the uncertainty is asked for without marks, and compared with the plain answer."""

    def reply(system: str, user: str) -> str:
        return "the Lune [1]" if system == SYSTEM["content"] else "Lune!"

    ran = await run(reply, uncertainty="semantic_entropy", answer_samples=3)
    assert ran.path == ["prepare", "retrieve", "generate", "check_certainty", "cite"]
    assert ran.output["signals"] == {"semantic entropy": 0.0, "disagreement": 0.0}
    assert ran.judge.asked == [("T0\ntext 0", "the Lune")], "the samples say the same without a judge"
    assert ran.output["cited_answer"] == "the Lune [1]"


async def test_what_the_source_says_of_the_passage_is_in_the_citation() -> None:
    class WithPages(ScriptedRetriever):
        def chunk(self, row: int) -> Chunk:
            return {**super().chunk(row), "metadata": {"url": "https://a.b/c", "page": 3, "heading": "Its\ncourse"}}

    resources = Resources(llm=model("the Lune [1]"), judge=ScriptedJudge(), retriever=WithPages(QUERY, VECTORS))
    output = await vanilla_rag.build(resources).compile().ainvoke(INPUT, context={"cite": True})
    (one,) = output["citations"]
    assert (one["address"], one["page"], one["heading"]) == ("https://a.b/c", 3, "Its\ncourse")
    assert '\n[1] T0, page 3, section "Its course", https://a.b/c' in node.with_sources(output)


async def test_a_judge_that_does_not_answer_leaves_the_answer_uncited(fast_retries: None) -> None:
    judge = ScriptedJudge(faults=[ModelFault("http://x", "connection refused")] * 9)
    ran = await run("the Lune [1]", judge)
    assert (ran.output["answer"], ran.output["cited_answer"], ran.output["citations"]) == ("the Lune", "", [])
    assert ran.output["warnings"][0].startswith("The answer is not cited: ")


# --- every graph ---


def citing(llm: Any, repeated: Callable[[str], str]) -> None:
    """Have a scripted model answer the requests for marks, too. repeated: of the given answer, its reply."""
    complete = llm.complete

    async def with_marks(messages: list[Message], sampling: Sampling) -> Reply:
        if messages[0] != SYSTEM:
            reply: Reply = await complete(messages, sampling)
            return reply
        llm.calls.append(("complete", messages))
        given = messages[-1]["content"].rpartition("Answer: ")[2].partition("\n")[0]
        return Reply((Completion(repeated(given), "stop"),), Tokens(7, 3))

    llm.complete = with_marks


@pytest.mark.parametrize("name", CITING)
def test_a_calibration_holds_with_citations_unless_they_may_change_the_answer(name: str) -> None:
    assert ("cite" in settings_of(CONTEXTS[name](cite=True))) == (name in IN_PLACE)


def test_the_graphs_that_can_cite_are_those_that_answer_from_passages() -> None:
    assert sorted(set(graph_names()) - set(CITING)) == ["cot", "seper"]


@pytest.mark.parametrize("name", CITING)
async def test_every_graph_gives_its_own_answer_with_marks(name: str) -> None:
    case = CASES[name]()
    graph, llm = case.builder.compile(), case.models[0]
    plain, path, parts = await walk(graph, case.given, case.context)
    calls = len(llm.calls)
    case.forget()
    citing(llm, lambda given: f"{plain['answer'] if name in IN_PLACE else given} [1]")
    output, cited_path, cited_parts = await walk(graph, case.given, {**case.context, "cite": True})
    assert (cited_path, cited_parts) == ([*path, "cite"], parts), "and no part of it cites"
    assert output["answer"] == plain["answer"], "`writes_marks`: does its model write the marks with the answer?"
    assert output["cited_answer"] == f"{plain['answer']} [1]"
    assert [(one["mark"], one["chunk_id"]) for one in output["citations"]] == [(1, output["evidence"][0]["id"])]
    assert output["uncertainty"] == plain["uncertainty"]
    assert len(llm.calls) == calls + (name not in IN_PLACE)


@pytest.mark.parametrize(
    ("repeated", "shown"),
    [("the Lune [2]", "the Lune [2]"), ("I think so [2], it is [1].", "the Lune [2][1]"), ("no idea", "the Lune")],
)
async def test_a_model_that_repeats_another_answer(repeated: str, shown: str) -> None:
    case = CASES["dense"]()
    citing(case.models[0], lambda given: repeated)
    output = await case.builder.compile().ainvoke(case.given, context={**case.context, "cite": True})
    assert (output["answer"], output["cited_answer"]) == ("the Lune", shown)


async def test_passages_that_do_not_fit_with_the_request_for_marks() -> None:
    case = CASES["dense"]()

    def too_long(given: str) -> str:
        raise ContextOverflow("The prompt is too long.")

    citing(case.models[0], too_long)
    output = await case.builder.compile().ainvoke(case.given, context={**case.context, "cite": True})
    assert (output["answer"], output["cited_answer"], output["citations"]) == ("the Lune", "the Lune", [])
    assert output["warnings"] == ["The answer is not cited: The prompt is too long."]


async def test_a_cascade_cites_the_answer_that_it_gives_and_no_other() -> None:
    case = CASES["escalate"]()
    citing(case.models[0], lambda given: f"{given} [1]")
    graph = case.builder.compile()
    output = await graph.ainvoke(case.given, context={**case.context, "cite": True, "certain_up_to": 0.5})
    assert output["cited_answer"] == "the Lune [1]"
    case.models[0].with_passages = ("the Wyre", "the Ribble")
    output = await graph.ainvoke(case.given, context={**case.context, "cite": True, "certain_up_to": 0.5})
    assert (output["abstained"], output["cited_answer"], output["citations"]) == (True, "", [])
    with pytest.raises(UserFault, match="may not have cite"):
        EscalateContext(rungs="cot,vanilla_rag", rung_settings='{"vanilla_rag": {"cite": true}}')


@pytest.mark.parametrize("name", ["cot", "seper"])
def test_a_graph_that_answers_without_passages_refuses(name: str) -> None:
    context: Any = context_type(graph_named(name))
    with pytest.raises(UserFault, match="cite"):
        context(cite=True)


def test_a_judge_may_be_named_for_citations_alone() -> None:
    with pytest.raises(UserFault, match="judge has no effect"):
        VanillaRagContext(judge="llm")
    assert VanillaRagContext(judge="llm", cite=True).is_used("judge")


# --- agents and chats ---


async def test_an_agent_is_told_what_the_marks_name() -> None:
    ran = await run("the Lune [1][2][9]")
    assert words_for_agent(ran.output) == "the Lune [1][2]\n\n[1] T0\n[2] T1, does not support it"


async def test_a_chat_shows_the_marks_and_forgets_them_in_the_next_turn() -> None:
    def reply(system: str, user: str) -> str:
        return "How long is the Lune?" if "Last question:" in user else "the Lune [1]"

    llm = model(reply)
    graph = chat.build("vanilla_rag", opened(llm, ScriptedJudge(of_first))).compile()
    settings: Any = {"k": 2, "cite": True}
    first = await graph.ainvoke({"messages": [HumanMessage("Which river?")]}, context=settings)
    said = first["messages"][-1]
    assert said.content == "the Lune [1]\n\n[1] T0"
    assert said.response_metadata["citations"] == first["citations"]
    llm.calls.clear()
    await graph.ainvoke({"messages": [*first["messages"], HumanMessage("How long?")]}, context=settings)
    turns: Any = [{"role": "user", "text": "Which river?"}, {"role": "assistant", "text": "the Lune"}]
    assert llm.calls[0][1] == standalone.messages(turns, "How long?")
    llm.calls.clear()
    kept: Any = [HumanMessage("Which river?"), AIMessage("the Lune [1]"), HumanMessage("How long?")]
    await graph.ainvoke({"messages": kept}, context={"k": 2})
    assert "the Lune [1]" in llm.calls[0][1][-1]["content"], "without the setting, brackets are the user's business"


# --- the stream ---


async def streamed(graph: Any, given: Any, **settings: Any) -> list[tuple[str, str]]:
    """The text of each message that was streamed, and the node that began it."""
    texts: dict[Any, tuple[str, str]] = {}
    async for piece, metadata in graph.astream(given, context={"k": 2, **settings}, stream_mode="messages"):
        text, place = texts.get(piece.id, ("", metadata["langgraph_node"]))
        texts[piece.id] = (text + piece.content, place)
    return list(texts.values())


async def test_the_answer_streams_with_the_marks_that_exist() -> None:
    graph = vanilla_rag.build(opened(typing(WORDS), ScriptedJudge())).compile(name="vanilla_rag")
    assert await streamed(graph, INPUT, cite=True) == [("the Lune [1], and not the Wyre", "generate")]


async def test_a_chat_streams_its_message_once() -> None:
    graph = chat.build("vanilla_rag", opened(typing("the Lune [1]"), ScriptedJudge(of_first))).compile()
    found = await streamed(graph, {"messages": [HumanMessage("Which river?")]}, cite=True)
    assert found == [("the Lune [1]\n\n[1] T0", "vanilla_rag")]


async def test_marks_that_come_after_the_answer_go_on_from_it() -> None:
    case = CASES["neighbourhood"]()
    citing(case.models[0], lambda given: f"{given} [1]")
    found = await streamed(case.builder.compile(), case.given, **{**case.context, "cite": True})
    assert [text for text, _ in found] == ["found [1]"]


@pytest.mark.parametrize(("threshold", "shown"), [(0.6, ["the Lune [1]"]), (0.5, [])])
async def test_a_calibrated_answer_is_cited_once_it_is_given(
    threshold: float, shown: list[str], tmp_path: Path
) -> None:
    settings: dict[str, Any] = {**SAMPLED, "cite": True, "k": 2}
    context = VanillaRagContext(**settings, judge="embedded")
    made = {"technique": "vanilla_rag", "model": identity(context.llm), "settings": settings_of(context)}
    calibration = AnswerCalibration(**made, threshold=threshold, **CERTIFIED, corpus=None)
    await asyncio.to_thread(calibration.save, tmp_path / "c.json")
    resources = opened(Sampled(answer="the Lune [1]"), ScriptedJudge(means_the_same))
    graph: Any = vanilla_rag.build(resources).compile(name="vanilla_rag")
    settings["calibration"] = str(tmp_path / "c.json")
    assert [text for text, _ in await streamed(graph, INPUT, **settings)] == shown
    output = await graph.ainvoke(INPUT, context=settings)
    assert output["abstained"] == (not shown)
    assert (output["cited_answer"], len(output["citations"])) == ("".join(shown), len(shown))
