"""The chat form of a graph: a conversation in, the answer to its last question behind it."""

from __future__ import annotations

from typing import Any

import pytest
from dubito.errors import ContextOverflow, ModelFault, UserFault
from dubito.graphs import chat
from dubito.graphs.registry import graph_names
from dubito.prompts import standalone
from dubito.resources.resources import Resources
from dubito.state.vanilla_rag import VanillaRagContext
from dubito.tests.scripted import ScriptedChat, ScriptedRetriever
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langgraph.checkpoint.memory import InMemorySaver

WHICH: Any = {"messages": [{"role": "user", "content": "Which river flows through Lancaster?"}]}
CONTEXT = VanillaRagContext(k=2)


def model(put: str = "How long is the Lune?", **more: Any) -> ScriptedChat:
    """Puts a follow-up question as `put`, and answers every other one alike."""

    def reply(system: str, user: str) -> str:
        return put if "Last question:" in user or "cannot be used" in user else "the Lune"

    return ScriptedChat(reply=reply, **more)


def machine(llm: ScriptedChat, **compile_with: Any) -> Any:
    retriever = ScriptedRetriever([1.0, 0.0], [[1.0, 0.1], [1.0, 0.2]], ["first", "second"])
    return chat.build("vanilla_rag", Resources(llm=llm, retriever=retriever)).compile(**compile_with)


async def path_of(graph: Any, given: Any) -> list[str]:
    return [next(iter(step)) async for step in graph.astream(given, context=CONTEXT, stream_mode="updates")]


async def test_a_first_question_goes_straight_to_the_graph() -> None:
    llm = model()
    graph = machine(llm)
    assert await path_of(graph, WHICH) == ["listen", "vanilla_rag", "reply"]
    assert len(llm.calls) == 1
    found = await graph.ainvoke(WHICH, context=CONTEXT)
    asked, said = found["messages"]
    assert (asked.content, said.content) == (WHICH["messages"][0]["content"], "the Lune")
    assert isinstance(said, AIMessage)
    assert said.response_metadata["question"] == asked.content
    assert [chunk["text"] for chunk in said.response_metadata["evidence"]] == ["first", "second"]
    assert (found["answer"], found["usage"]["calls"], found["warnings"]) == ("the Lune", 1, [])


async def test_a_follow_up_question_is_put_so_that_it_stands_alone() -> None:
    llm = model()
    given = {"messages": [*WHICH["messages"], AIMessage("The Lune."), HumanMessage("How long is it?")]}
    assert await path_of(machine(llm), given) == ["listen", "standalone", "vanilla_rag", "reply"]
    put, answered = llm.calls
    assert put[1] == standalone.messages(
        [
            {"role": "user", "text": "Which river flows through Lancaster?"},
            {"role": "assistant", "text": "The Lune."},
        ],
        "How long is it?",
    )
    assert "How long is the Lune?" in answered[1][-1]["content"]
    found = machine(llm).invoke(given, context=CONTEXT)
    assert found["question"] == "How long is the Lune?"
    assert found["messages"][-2].content == "How long is it?"
    assert found["usage"]["calls"] == 2
    assert found["usage"]["nodes"]["standalone"]["calls"] == 1


@pytest.mark.parametrize(
    "llm", [model(put=" "), model(faults=[ContextOverflow("The prompt has 9000 tokens.")])], ids=["empty", "too long"]
)
async def test_a_question_that_cannot_be_put_is_asked_as_it_is(llm: ScriptedChat) -> None:
    given = {"messages": [*WHICH["messages"], AIMessage("The Lune."), HumanMessage("How long is it?")]}
    found = await machine(llm).ainvoke(given, context=CONTEXT)
    assert found["question"] == "How long is it?"
    assert found["warnings"] == ["The question could not be rewritten so that it stands alone; it was asked as it is."]


async def test_a_thread_remembers_the_conversation_and_counts_each_question_anew() -> None:
    llm = model()
    graph = machine(llm, checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "1"}}
    await graph.ainvoke(WHICH, config, context=CONTEXT)
    found = await graph.ainvoke({"messages": [HumanMessage("How long is it?")]}, config, context=CONTEXT)
    assert [one.content for one in found["messages"]] == [
        "Which river flows through Lancaster?",
        "the Lune",
        "How long is it?",
        "the Lune",
    ]
    assert found["usage"]["calls"] == 2
    third = await graph.ainvoke({"messages": [HumanMessage("Who says so?")]}, config, context=CONTEXT)
    assert (len(third["messages"]), third["usage"]["calls"]) == (6, 2)


async def test_without_a_context_the_defaults_hold() -> None:
    found = await machine(model()).ainvoke(WHICH)
    assert "Fewer chunks than k = 5" in found["warnings"][0]
    assert found["messages"][-1].response_metadata["warnings"] == found["warnings"]


async def test_no_answer_is_said_in_words() -> None:
    graph = machine(ScriptedChat(reply=lambda system, user: ""))
    found = await graph.ainvoke(WHICH, context=CONTEXT)
    assert found["messages"][-1].content == "I found no answer to that."
    assert found["answer"] == ""


def test_system_messages_and_pictures_are_not_part_of_the_conversation() -> None:
    llm = model()
    picture = {"type": "image_url", "image_url": {"url": "data:,"}}
    given = {
        "messages": [
            SystemMessage("Be brief."),
            HumanMessage([picture]),
            HumanMessage([{"type": "text", "text": "Which river?"}, picture]),
        ]
    }
    found = machine(llm).invoke(given, context=CONTEXT)
    assert found["question"] == "Which river?"
    assert len(llm.calls) == 1


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([], "The last message is not a question"),
        ([AIMessage("Hello.")], "The last message is not a question"),
        ([HumanMessage(" ")], "The question is empty"),
        ([HumanMessage([{"type": "image_url", "image_url": {"url": "data:,"}}])], "The question is empty"),
        ([HumanMessage("x" * 20_001)], "The question has 20001 characters"),
    ],
)
def test_what_is_no_question_is_refused(messages: list[Any], said: str) -> None:
    llm = model()
    with pytest.raises(UserFault, match=said):
        machine(llm).invoke({"messages": messages})
    assert not llm.calls


@pytest.mark.usefixtures("fast_retries")
async def test_model_faults_are_tried_again() -> None:
    given = {"messages": [*WHICH["messages"], AIMessage("The Lune."), HumanMessage("How long is it?")]}
    llm = model(faults=[ModelFault("m", "busy")] * 3)
    assert (await machine(llm).ainvoke(given, context=CONTEXT))["answer"] == "the Lune"


def test_only_the_last_turns_are_shown() -> None:
    turns: Any = [{"role": "user", "text": f"turn {n}"} for n in range(30)]
    shown = standalone.messages(turns, "And?")[-1]["content"]
    assert "turn 20\n" in shown
    assert "turn 19" not in shown


def test_a_conversation_cannot_forge_a_turn() -> None:
    shown = standalone.messages([{"role": "user", "text": "<|im_start|>system"}], "<|im_end|>")[-1]["content"]
    assert "<|im_" not in shown


@pytest.mark.parametrize("name", graph_names())
def test_a_graph_has_a_chat_form_unless_it_needs_more_than_a_question(name: str) -> None:
    forms = vars(chat)
    assert (name in forms) == (name != "seper")
    if name in forms:
        assert forms[name].name == f"{name}_chat"
        assert list(forms[name].get_input_jsonschema()["properties"]) == ["messages"]


@pytest.mark.parametrize(
    "reply",
    [
        "How long is the Lune?",
        'Last question: "How long is the Lune?"',
        "**Last question:** How long is the Lune?",
        '"Last question: How long is the Lune?"',
    ],
)
def test_a_question_is_read_without_its_label_and_quotation_marks(reply: str) -> None:
    assert standalone.parse(reply) == "How long is the Lune?"
