"""The answer as it streams: in messages, from every kind of model, and never from an inner call."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from dubito.errors import ModelFault
from dubito.graphs import chat, dense, dense_rag, df_rag, reviewed, vanilla_rag
from dubito.models.answer_stream import text_listener
from dubito.models.interfaces import Completion, Message, Reply, Sampling, Tokens
from dubito.models.openai_chat import OpenAIChat
from dubito.resources.call_cache import CallMemory, RememberingChat
from dubito.resources.resources import Resources
from dubito.state.dense import DenseContext
from dubito.state.dense_rag import DenseRagContext
from dubito.state.df_rag import DFRagContext
from dubito.state.flow import Flow
from dubito.state.vanilla_rag import VanillaRagContext
from dubito.tests.recorded import RUNS
from dubito.tests.scripted import ScriptedChat, ScriptedJudge, ScriptedRetriever
from dubito.tests.stub_server import Stub, serving
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langgraph.graph import START, StateGraph

QUESTION: Any = {"question": "Which river flows through Lancaster?"}
CHAT: Any = {"messages": [{"role": "user", "content": QUESTION["question"]}]}
CONTEXT = VanillaRagContext(k=2)


@dataclass
class TypingChat(ScriptedChat):
    """A scripted model that tells its listener each reply word by word. `listened` counts the calls with a listener."""

    listened: int = 0

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        await self._begin("complete", messages)
        text = self.reply(messages[0]["content"], messages[-1]["content"])
        assert isinstance(text, str)
        if (listener := text_listener(sampling)) is not None:
            self.listened += 1
            for end in [i for i, letter in enumerate(text) if letter == " "]:
                listener(text[:end])
        return Reply((Completion(text, "stop"),) * sampling.n, Tokens(7, 3))


def typing(answer: str = "the river Lune", **more: Any) -> TypingChat:
    def reply(system: str, user: str) -> str:
        return "1) Find the river" if "plan how to answer" in system else answer

    return TypingChat(reply=reply, mean_logprob=lambda user, step: -1.0, **more)


def resources(llm: Any) -> Resources:
    retriever = ScriptedRetriever([1.0, 0.0], [[1.0, 0.1], [1.0, 0.2]], ["first", "second"])
    return Resources(llm=llm, retriever=retriever, judge=ScriptedJudge(entails=lambda one, other: True))


def plain_rag(llm: Any) -> Any:
    return vanilla_rag.build(resources(llm)).compile(name="vanilla_rag")


async def pieces(graph: Any, given: Any = None, context: Any = CONTEXT, **more: Any) -> list[tuple[Any, Any]]:
    stream = graph.astream(given or QUESTION, context=context, stream_mode="messages", **more)
    return [part async for part in stream]


def texts(found: Sequence[tuple[Any, Any]]) -> list[str]:
    return [message.content for message, _ in found]


async def test_the_answer_comes_in_pieces_of_one_message_with_its_node() -> None:
    found = await pieces(plain_rag(typing()))
    assert texts(found) == ["the", " river", " Lune"]
    assert all(isinstance(message, AIMessageChunk) for message, _ in found)
    assert len({message.id for message, _ in found}) == 1
    assert {metadata["langgraph_node"] for _, metadata in found} == {"generate"}


def test_it_does_so_for_synchronous_callers() -> None:
    assert texts([*plain_rag(typing()).stream(QUESTION, context=CONTEXT, stream_mode="messages")]) == [
        *("the", " river", " Lune")
    ]


async def test_without_messages_no_model_has_a_listener() -> None:
    llm = typing()
    async for _ in plain_rag(llm).astream(QUESTION, context=CONTEXT, stream_mode=["values", "updates", "custom"]):
        pass
    assert (len(llm.calls), llm.listened) == (1, 0)


async def test_plans_do_not_stream() -> None:
    llm = typing()
    graph = df_rag.build(resources(llm)).compile(name="df_rag")
    found = await pieces(graph, context=DFRagContext(k=2), subgraphs=True)
    assert texts([part for _, part in found]) == ["the", " river", " Lune"]
    assert llm.listened == 1
    assert len(llm.calls) > 1


async def test_of_denses_responses_only_the_first_streams() -> None:
    llm = typing()
    found = await pieces(dense.build(resources(llm)).compile(name="dense"), context=DenseContext(k=2))
    assert (texts(found), llm.listened) == (["the", " river", " Lune"], 1)
    assert {metadata["langgraph_node"] for _, metadata in found} == {"respond"}


async def test_drafts_of_dense_rag_do_not_stream_and_its_answer_comes_whole() -> None:
    llm = typing()
    graph = dense_rag.build(resources(llm)).compile(name="dense_rag")
    context = DenseRagContext(k=2, adaptive=False, refinement="off")
    found = await pieces(graph, context=context, subgraphs=True)
    assert [(namespace, message.content, metadata["langgraph_node"]) for namespace, (message, metadata) in found] == [
        ((), "the river Lune", "give_best_answer")
    ]
    assert llm.listened == 0


async def test_an_answer_under_review_does_not_stream() -> None:
    llm = typing()
    graph = reviewed.build("dense", resources(llm)).compile(name="dense_reviewed")
    assert await pieces(graph, context=DenseContext(k=2), subgraphs=True) == []


@pytest.mark.parametrize("name", sorted(RUNS))
async def test_the_messages_of_every_graph_are_its_answer(name: str) -> None:
    run = RUNS[name]()
    graph: Any = run.graph
    given = {"question": run.question, **run.more}
    shown: dict[str, str] = {}
    output: dict[str, Any] = {}
    modes = ["messages", "values"]
    async for mode, part in graph.astream(given, context=run.context, stream_mode=modes):
        if mode == "values":
            output = part
        else:
            shown[part[0].id] = shown.get(part[0].id, "") + part[0].content
    assert list(shown.values()) == ([output["answer"]] if output.get("answer") else [])


@pytest.mark.parametrize("subgraphs", [False, True])
async def test_a_chat_shows_its_answer_once(subgraphs: bool) -> None:
    graph: Any = chat.build("vanilla_rag", resources(typing())).compile()
    shown: list[Any] = []
    state: dict[str, Any] = {}
    modes = ["messages", "values"]
    async for part in graph.astream(CHAT, context=CONTEXT, stream_mode=modes, subgraphs=subgraphs, version="v2"):
        if part["ns"]:
            assert part["type"] == "values"
        elif part["type"] == "messages":
            shown.append(part["data"])
        else:
            state = part["data"]
    assert texts(shown) == ["the", " river", " Lune"]
    assert {message.id for message, _ in shown} == {state["messages"][-1].id}
    assert {metadata["langgraph_node"] for _, metadata in shown} == {"vanilla_rag"}


async def test_two_graphs_in_one_run_are_two_messages() -> None:
    outer: Any = StateGraph(Flow, context_schema=VanillaRagContext)
    outer.add_node("first", plain_rag(typing()))
    outer.add_node("second", plain_rag(typing()))
    outer.add_edge(START, "first")
    outer.add_edge("first", "second")
    found = await pieces(outer.compile(), subgraphs=True)
    ids = [message.id for _, (message, _) in found]
    assert ids == [ids[0]] * 3 + [ids[3]] * 3
    assert ids[0] != ids[3]


async def test_a_node_that_is_retried_goes_on_where_the_text_was(fast_retries: None) -> None:
    llm = typing()
    told = llm.complete

    async def breaks_once(messages: Sequence[Message], sampling: Sampling) -> Reply:
        reply = await told(messages, sampling)
        if len(llm.calls) == 1:
            raise ModelFault("scripted", "it broke off")
        return reply

    llm.complete = breaks_once  # type: ignore[method-assign]
    assert texts(await pieces(plain_rag(llm))) == ["the", " river", " Lune"]
    assert len(llm.calls) == 2


async def test_a_remembered_answer_comes_in_one_piece(tmp_path: Any) -> None:
    llm = RememberingChat(typing(), CallMemory(tmp_path / "calls.sqlite"))
    assert texts(await pieces(plain_rag(llm))) == ["the", " river", " Lune"]
    assert texts(await pieces(plain_rag(llm))) == ["the river Lune"]


async def test_of_a_langchain_model_only_the_answer_streams() -> None:
    replies = iter([AIMessage("1) Find the river"), *[AIMessage("5")] * 30, AIMessage("the river Lune")])
    found = await pieces(
        df_rag.build(resources(GenericFakeChatModel(messages=replies))).compile(name="df_rag"),
        context=DFRagContext(k=2, evaluator="choice", incremental_context=False, sampling="binary"),
    )
    assert "".join(texts(found)) in {"5", "the river Lune"}, "neither the plan nor the scores"
    replies = iter([AIMessage("the river Lune")])
    words = texts(await pieces(plain_rag(GenericFakeChatModel(messages=replies))))
    assert (words[0], "".join(words)) == ("the", "the river Lune")


@pytest.mark.parametrize("leaves", ["cancelled", "closed"])
async def test_a_reader_that_goes_away_ends_the_request(leaves: str) -> None:
    with serving(Stub(drip=0.05, script=lambda body: "river " * 400)) as stub:
        graph = plain_rag(OpenAIChat("openai:stub", stub.url, "m", "openai"))
        stream = graph.astream(QUESTION, context=CONTEXT, stream_mode="messages")
        await anext(stream)
        if leaves == "closed":
            await stream.aclose()
        else:
            reading = asyncio.create_task(anext_forever(stream))
            await asyncio.sleep(0)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
        assert await asyncio.to_thread(stub.left.wait, 5)


async def anext_forever(stream: Any) -> None:
    async for _ in stream:
        pass
