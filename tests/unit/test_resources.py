"""Names are resolved once, whatever else the callers' settings say."""

import asyncio

import pytest
from dubito.errors import UserFault
from dubito.resources import resources
from dubito.resources.resources import Resources
from dubito.state.context import BaseContext
from dubito.tests.scripted import ScriptedChat


def chat_model(name: str, concurrency: int) -> BaseContext:
    return BaseContext(llm=name, concurrency=concurrency)


async def test_a_model_is_opened_once_whatever_the_concurrency(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def open_chat_model(name: str) -> ScriptedChat:
        opened.append(name)
        return ScriptedChat(name=name)

    monkeypatch.setattr(resources, "open_chat_model", open_chat_model)
    registry = Resources()
    four, again, eight = await asyncio.gather(
        registry.llm(chat_model("a", 4)), registry.llm(chat_model("a", 4)), registry.llm(chat_model("a", 8))
    )
    assert opened == ["a"]
    assert four is again, "one gate bounds all callers of one concurrency"
    assert eight.model is four.model
    await registry.llm(chat_model("b", 4))
    assert opened == ["a", "b"]


@pytest.mark.parametrize("name", ["", "gpt", "vllm:", "hf:", "openai"])
async def test_an_unknown_name_is_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(UserFault, match="use one of embedded, vllm:URL#model"):
        await Resources().llm(chat_model(name, 1))
    with pytest.raises(UserFault, match="use one of embedded, st:folder"):
        await Resources().encoder_named(name)
