"""What rungs share: replies by request and number, searches, and nothing that failed."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from dubito.errors import ModelFault
from dubito.models.interfaces import Message, Sampling
from dubito.models.metering import Metered
from dubito.models.question_memory import remembering
from dubito.retrieval.pool import Pool, SearchedOnce
from dubito.state.where import condition_of
from dubito.tests.scripted import QUERY, VECTORS, ScriptedChat, ScriptedRetriever

HI: list[Message] = [{"role": "user", "content": "Hi"}]
DRAWN = Sampling(temperature=1.0)


def numbered() -> ScriptedChat:
    """Says 1, then 2, and so on."""
    numbers = count(1)
    return ScriptedChat(reply=lambda *_: str(next(numbers)))


async def texts(chat: Metered, times: int) -> list[str]:
    return [(await chat.complete(HI, DRAWN)).text for _ in range(times)]


async def test_a_rung_draws_anew_and_the_next_one_has_the_same_draws() -> None:
    chat, known = Metered(numbered(), 1), dict[object, Any]()
    with remembering(known):
        assert await texts(chat, 2) == ["1", "2"]
    with remembering(known):
        assert await texts(chat, 3) == ["1", "2", "3"]
    assert await texts(chat, 1) == ["4"], "outside of a cascade nothing is remembered"
    with remembering({}):
        assert await texts(chat, 1) == ["5"]


@pytest.mark.parametrize("change", [{"temperature": 0.5}, {"n": 2}, {"seed": 1}, {"max_tokens": 5}])
async def test_whatever_differs_is_asked(change: dict[str, Any]) -> None:
    chat, known = Metered(numbered(), 1), dict[object, Any]()
    with remembering(known):
        await chat.complete(HI, DRAWN)
    with remembering(known):
        assert (await chat.complete(HI, Sampling(**{"temperature": 1.0, **change}))).text == "2"


async def test_another_model_of_the_same_name_is_asked() -> None:
    known = dict[object, Any]()
    with remembering(known):
        await texts(Metered(numbered(), 1), 1)
    with remembering(known):
        assert await texts(Metered(ScriptedChat(reply=lambda *_: "other"), 1), 1) == ["other"]


async def test_a_limit_of_the_calls_at_once_makes_no_other_model() -> None:
    model, known = numbered(), dict[object, Any]()
    with remembering(known):
        await texts(Metered(model, 1), 1)
    with remembering(known):
        assert await texts(Metered(model, 2), 1) == ["1"]


async def test_a_fault_is_not_remembered() -> None:
    model, known = numbered(), dict[object, Any]()
    model.faults.append(ModelFault("http://x", "gone"))
    chat = Metered(model, 1)
    with remembering(known), pytest.raises(ModelFault):
        await chat.complete(HI, DRAWN)
    with remembering(known):
        assert await texts(chat, 1) == ["1"]


class Filtering(ScriptedRetriever):
    """Keeps its queries; a filter finds nothing."""

    def __init__(self, vectors: list[list[float]] = VECTORS) -> None:
        super().__init__(QUERY, vectors)
        self.searched: list[tuple[str, int | None]] = []

    async def pool(self, query: str, top_n: int | None) -> Pool:
        self.searched.append((query, top_n))
        return await super().pool(query, top_n)

    def restricted(self, condition: Any) -> Filtering:
        return Filtering([])


async def test_a_search_is_made_once_by_query_and_number() -> None:
    source = Filtering()
    retriever, known = SearchedOnce(source), dict[object, Any]()
    for _ in range(2):
        with remembering(known):
            found = [await retriever.pool(*search) for search in [("a", 2), ("b", 2), ("a", None), ("a", 2)]]
            assert [len(pool) for pool in found] == [2, 2, len(VECTORS), 2]
    assert source.searched == [("a", 2), ("b", 2), ("a", None)]
    await retriever.pool("a", 2)
    assert len(source.searched) == 4


async def test_a_filter_is_another_search() -> None:
    retriever = SearchedOnce(Filtering())
    restricted = retriever.restricted(condition_of('{"year": 1}'))
    with remembering({}):
        assert [len(await each.pool("a", 2)) for each in (retriever, restricted)] == [2, 0]
    assert not hasattr(SearchedOnce(ScriptedRetriever(QUERY, VECTORS)), "restricted")
