import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from dubito.errors import UserFault
from dubito.models.as_langchain import DubitoChatModel, DubitoEmbeddings
from dubito.models.encoders import LangChainEncoder
from dubito.models.interfaces import Completion, Message, Reply, Sampling, Tokens
from dubito.models.langchain_chat import LangChainChat
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, ChatMessage, HumanMessage, SystemMessage, ToolMessage


class Echo:
    """Answers "said"; keeps what it was asked."""

    name = "echo"
    capabilities = frozenset[Any]()

    def __init__(self) -> None:
        self.asked: list[tuple[list[Message], Sampling]] = []

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        self.asked.append((list(messages), sampling))
        await asyncio.sleep(0)
        return Reply((Completion("said", "length"),), Tokens(7, 2))


def test_it_is_asked_and_answers_in_langchains_terms() -> None:
    echo = Echo()
    model = DubitoChatModel(llm=echo, temperature=0.3, max_tokens=9, stop=["."])
    message = model.invoke([SystemMessage("Be brief."), HumanMessage("Hello?")])
    assert isinstance(message, AIMessage)
    assert message.content == "said"
    assert message.usage_metadata == {"input_tokens": 7, "output_tokens": 2, "total_tokens": 9}
    assert message.response_metadata["finish_reason"] == "length"
    assert message.response_metadata["model_name"] == "echo"
    ((messages, sampling),) = echo.asked
    assert messages == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello?"}]
    assert sampling == Sampling(temperature=0.3, max_tokens=9, stop=(".",))


async def test_a_call_overrides_the_models_settings() -> None:
    echo = Echo()
    model = DubitoChatModel(llm=echo, temperature=0.3, stop=["."])
    await model.ainvoke("Hello?", stop=["!"], temperature=1.0, seed=5, thinking=True)
    await model.bind(max_tokens=3).ainvoke("Hello?")
    assert [sampling for _, sampling in echo.asked] == [
        Sampling(temperature=1.0, seed=5, thinking=True, stop=("!",)),
        Sampling(temperature=0.3, max_tokens=3, stop=(".",)),
    ]


async def test_it_can_be_called_synchronously_inside_a_running_loop() -> None:
    assert DubitoChatModel(llm=Echo()).invoke("Hello?").content == "said"


async def test_neighbours_of_one_role_become_one_turn_and_only_text_is_read() -> None:
    echo = Echo()
    await DubitoChatModel(llm=echo).ainvoke(
        [
            SystemMessage("a"),
            SystemMessage("b"),
            HumanMessage([{"type": "text", "text": "c"}, "d"], name="someone"),
            ChatMessage(content="e", role="user"),
            AIMessage([{"type": "reasoning", "reasoning": "hm"}, {"type": "text", "text": "f"}]),
        ]
    )
    assert echo.asked[0][0] == [
        {"role": "system", "content": "a\n\nb"},
        {"role": "user", "content": "cd\n\ne"},
        {"role": "assistant", "content": "f"},
    ]


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ([HumanMessage([{"type": "image_url", "image_url": {"url": "x"}}])], "image_url"),
        ([ToolMessage("x", tool_call_id="1")], "ToolMessage"),
        ([ChatMessage(content="x", role="referee")], "ChatMessage"),
    ],
)
async def test_what_it_cannot_read_is_refused(messages: list[Any], complaint: str) -> None:
    with pytest.raises(UserFault, match=complaint):
        await DubitoChatModel(llm=Echo()).ainvoke(messages)


@pytest.mark.parametrize("arguments", [{"n": 2}, {"tools": [{}]}])
async def test_what_it_cannot_do_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(UserFault):
        await DubitoChatModel(llm=Echo()).ainvoke("Hello?", **arguments)


async def test_streamed_a_reply_is_one_chunk() -> None:
    model = DubitoChatModel(llm=Echo())
    for chunks in (list(model.stream("Hello?")), [chunk async for chunk in model.astream("Hello?")]):
        assert [chunk.content for chunk in chunks] == ["said"]
        assert chunks[0].usage_metadata == {"input_tokens": 7, "output_tokens": 2, "total_tokens": 9}
        assert chunks[0].response_metadata["finish_reason"] == "length"


def test_a_model_survives_both_bridges() -> None:
    there_and_back = DubitoChatModel(llm=LangChainChat(FakeListChatModel(responses=["one", "two"])))
    assert [there_and_back.invoke("?").content for _ in range(2)] == ["one", "two"]
    assert there_and_back._get_ls_params()["ls_model_name"] == "langchain:FakeListChatModel"


def test_embeddings_on_both_sides_sync_and_async() -> None:
    encoder = LangChainEncoder(DeterministicFakeEmbedding(size=6))
    embeddings = DubitoEmbeddings(encoder)
    rows = embeddings.embed_documents(["a", "b"])
    assert np.shape(rows) == (2, 6)
    assert isinstance(rows[0][0], float)
    assert embeddings.embed_query("a") == pytest.approx(rows[0])
    assert asyncio.run(embeddings.aembed_documents(["a", "b"])) == rows
    assert asyncio.run(embeddings.aembed_query("a")) == embeddings.embed_query("a")
    assert embeddings.embed_documents([]) == []
