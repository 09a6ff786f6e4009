"""A graph as an agent's tool: called directly, by LangChain's agent, with what cannot be answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from dubito.errors import ModelFault, UserFault
from dubito.graphs.tool import as_tool
from dubito.resources.resources import Resources
from dubito.state.vanilla_rag import VanillaRagContext
from dubito.tests.scripted import (
    Explorer,
    ListedRetriever,
    ScriptedChat,
    ScriptedEncoder,
    ScriptedReranker,
    ScriptedRetriever,
)
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_tests.unit_tests import ToolsUnitTests

CALL = {"type": "tool_call", "id": "1", "name": "vanilla_rag", "args": {"question": "Which river?"}}


def resources(llm: ScriptedChat | None = None) -> Resources:
    retriever = ScriptedRetriever([1.0, 0.0], [[1.0, 0.1], [1.0, 0.2]], ["first", "second"])
    return Resources(llm=llm or ScriptedChat(reply=lambda system, user: "the Lune"), retriever=retriever)


class TestStandard(ToolsUnitTests):
    @property
    def tool_constructor(self) -> Any:
        return as_tool("vanilla_rag", {"k": 2}, resources=resources())

    @property
    def tool_invoke_params_example(self) -> dict[str, Any]:
        return {"question": "Which river?"}


@pytest.mark.parametrize("context", [{"k": 2}, VanillaRagContext(k=2)])
async def test_the_answer_is_for_the_model_and_the_rest_for_the_program(context: Any) -> None:
    tool = as_tool("vanilla_rag", context, resources=resources())
    for message in (await tool.ainvoke(CALL), tool.invoke(CALL)):
        assert isinstance(message, ToolMessage)
        assert message.content == "the Lune"
        assert [chunk["text"] for chunk in message.artifact["evidence"]] == ["first", "second"]
        assert message.artifact["usage"]["calls"] == 1
        assert message.status == "success"


def test_the_schema_has_the_question_and_nothing_else() -> None:
    tool = as_tool("vanilla_rag", resources=resources(), name="search_notes", description="Searches my notes.")
    assert list(tool.args) == ["question"]
    assert (tool.name, tool.description) == ("search_notes", "Searches my notes.")
    assert as_tool("vanilla_rag").name == "vanilla_rag"


@pytest.mark.usefixtures("fast_retries")
@pytest.mark.parametrize(
    ("question", "llm", "said"),
    [
        (" ", ScriptedChat(), "The question is empty"),
        ("Q?", ScriptedChat(faults=[ModelFault("m", "down")] * 4), "m did not answer after 4 attempts"),
    ],
)
async def test_what_cannot_be_answered_is_told_to_the_agent(question: str, llm: ScriptedChat, said: str) -> None:
    message = await as_tool("vanilla_rag", resources=resources(llm)).ainvoke({**CALL, "args": {"question": question}})
    assert message.status == "error"
    assert said in message.content
    assert message.artifact is None


def test_an_empty_answer_is_said_in_words() -> None:
    tool = as_tool("vanilla_rag", resources=resources(ScriptedChat(reply=lambda system, user: "")))
    assert tool.invoke({"question": "Q?"}) == "No answer was found in the documents."


async def test_a_tool_has_the_steps_that_its_graph_needs() -> None:
    """A neighbourhood takes three steps a batch; what LangChain runs below a tool may otherwise take 25."""
    documents = [f"n{number}" for number in range(12)]
    opened = Resources(
        Explorer(),
        ScriptedEncoder(),
        ListedRetriever(lambda query: documents),
        reranker=ScriptedReranker(lambda query, name: 0.5),
    )
    settings = {"batch_size": 1, "budget": 12, "penalty": "none"}
    tool = as_tool("neighbourhood", settings, resources=opened)
    call = {**CALL, "name": "neighbourhood"}
    for message in (await tool.ainvoke(call), tool.invoke(call)):
        assert (message.status, len(message.artifact["scored"])) == ("success", 12)


def test_an_unknown_graph_is_refused() -> None:
    with pytest.raises(UserFault, match=r"There is no graph named 'vanila_rag'.*did you mean vanilla_rag"):
        as_tool("vanila_rag")


class Asks(BaseChatModel):
    """An agent's model: asks the tool once, then repeats what it was told."""

    bound: list[Any] = []  # noqa: RUF012 - a pydantic field

    @property
    def _llm_type(self) -> str:
        return "asks"

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> Any:
        self.bound.extend(tools)
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        told = [one for one in messages if isinstance(one, ToolMessage)]
        if told:
            return ChatResult(generations=[ChatGeneration(message=AIMessage(f"It is {told[-1].content}."))])
        asks = AIMessage("", tool_calls=[{**CALL, "type": "tool_call"}])
        return ChatResult(generations=[ChatGeneration(message=asks)])


async def test_langchains_agent_uses_it_and_shows_its_steps() -> None:
    agents = pytest.importorskip("langchain.agents")
    model = Asks()
    agent = agents.create_agent(model, [as_tool("vanilla_rag", {"k": 2}, resources=resources())])
    given: Any = {"messages": [HumanMessage("Which river?")]}
    found = await agent.ainvoke(given)
    assert found["messages"][-1].content == "It is the Lune."
    (said,) = [one for one in found["messages"] if isinstance(one, ToolMessage)]
    assert len(said.artifact["evidence"]) == 2
    assert model.bound[0].name == "vanilla_rag"
    inner = [
        next(iter(update))
        async for namespace, update in agent.astream(given, stream_mode="updates", subgraphs=True)
        if namespace
    ]
    assert inner == ["prepare", "retrieve", "generate"]
    assert [next(iter(update)) for update in agent.stream(given, stream_mode="updates")] == ["model", "tools", "model"]
