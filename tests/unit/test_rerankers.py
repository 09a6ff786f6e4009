"""Re-rankers without weights: how similarity and likelihood become scores, which names and labels are known."""

import asyncio
import math
from collections.abc import Sequence

import numpy as np
import pytest
from dubito.errors import CapabilityMissing, UserFault
from dubito.models.cross_encoder import relevance_column
from dubito.models.interfaces import Message, Scores, Token, Tokens, Vectors
from dubito.models.rerankers import HIGHEST, LOWEST, BoundedReranker, Reranker, open_reranker
from dubito.tests.scripted import ScriptedChat, ScriptedEncoder, unit
from hypothesis import given
from hypothesis import strategies as st

QUERY = "Which river flows past Lancaster?"


def opened(name: str, llm: ScriptedChat | None = None, encoder: ScriptedEncoder | None = None) -> Reranker:
    return open_reranker(name, llm or ScriptedChat(), encoder or ScriptedEncoder())


# --- similarity ---


class Angles(ScriptedEncoder):
    """The vector of "60" stands at 60 degrees to that of "0"; a query is turned by 30."""

    def __init__(self) -> None:
        self.asked: dict[bool, list[list[str]]] = {True: [], False: []}

    async def embed(self, texts: Sequence[str], *, query: bool = False) -> Vectors:
        self.asked[query].append(list(texts))
        degrees = [np.deg2rad(float(text) + 30 * query) for text in texts]
        return unit([[np.cos(angle), np.sin(angle)] for angle in degrees])


async def test_similarity_is_the_cosine_moved_between_0_and_1() -> None:
    encoder = Angles()
    scores = await opened("embedded", encoder=encoder).scores("0", ["120", "90", "0", "30", "210"])
    # cosines of 90, 60, 30, 0 and 180 degrees
    np.testing.assert_allclose(scores, [0.5, 0.75, (1 + math.sqrt(3) / 2) / 2, 1, 0], atol=1e-7)
    assert min(scores) > 0
    assert max(scores) < 1
    assert [type(score) for score in scores] == [float] * 5
    assert encoder.asked == {True: [["0"]], False: [["120", "90", "0", "30", "210"]]}


@pytest.mark.parametrize("name", ["embedded", "cross:/no/such/folder", "likelihood"])
async def test_no_texts_have_no_scores_and_ask_no_model(name: str) -> None:
    encoder = Angles()
    assert await opened(name, encoder=encoder).scores(QUERY, []) == []
    assert encoder.asked == {True: [], False: []}


# --- likelihood ---


class TwoTokens(ScriptedChat):
    """Gives the query one likely and one less likely token, by the passage."""

    async def score(self, messages: Sequence[Message], continuations: Sequence[str]) -> Scores:
        await self._begin("score", messages)
        assert list(continuations) == [QUERY]
        pair = {"good": (0.5, 0.125), "poor": (0.5, 0.005)}["good" if "Lune" in messages[-1]["content"] else "poor"]
        return Scores((tuple(Token("t", math.log(p)) for p in pair),), Tokens())


async def test_likelihood_is_the_geometric_mean_of_the_querys_tokens() -> None:
    llm = TwoTokens()
    scores = await opened("likelihood", llm).scores(QUERY, ["The Wyre.", "The Lune.", "The Wyre.", "The Thames."])
    # the roots of 1/16 and of 1/400
    np.testing.assert_allclose(scores, [0.05, 0.25, 0.05, 0.05], rtol=1e-12)
    assert len(llm.calls) == 3
    assert llm.under_way_at_most == 3


async def test_scores_stay_inside_the_interval() -> None:
    logs = {"sure": 0.0, "above": 1e-9, "never": -math.inf, "hardly": -5000.0}
    llm = ScriptedChat(mean_logprob=lambda user, _: next(logs[word] for word in logs if word in user))
    scores = await opened("likelihood", llm).scores(QUERY, list(logs))
    assert scores == [HIGHEST, HIGHEST, LOWEST, LOWEST]
    assert 0 < LOWEST < HIGHEST < 1


async def test_likelihood_needs_a_model_that_scores() -> None:
    llm = ScriptedChat(capabilities=frozenset({"seed"}), name="openai:https://host/v1#m")
    with pytest.raises(CapabilityMissing, match=r"'openai:https://host/v1#m' cannot: use a vllm:.* or the re-ranker"):
        opened("likelihood", llm)
    assert opened("embedded", llm).name == "embedded"
    assert llm.calls == []


# --- whatever the backend ---


@given(st.lists(st.sampled_from("abcdefgh")))
def test_scores_come_in_the_callers_order(texts: list[str]) -> None:
    async def relevance(query: str, distinct: list[str]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        assert len(set(distinct)) == len(distinct)
        return np.array([(ord(text) - 96) / 10 for text in distinct])

    scores = asyncio.run(BoundedReranker("x", relevance).scores(QUERY, texts))
    assert scores == [(ord(text) - 96) / 10 for text in texts]


@pytest.mark.parametrize("number", [math.nan, math.inf])
async def test_what_is_no_number_is_told(number: float) -> None:
    async def relevance(query: str, texts: list[str]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.array([0.5, number, 0.2])

    with pytest.raises(UserFault, match=r"The re-ranker 'cross:x' gives no numbers for 1 of 3 documents"):
        await BoundedReranker("cross:x", relevance).scores(QUERY, ["a", "b", "c", "a"])


# --- names ---


@pytest.mark.parametrize("name", ["embedded", "likelihood", "cross:/no/such/folder", "cross:a/b:c"])
def test_a_reranker_is_called_by_the_name_it_was_opened_by_and_loads_nothing(name: str) -> None:
    assert opened(name).name == name


@pytest.mark.parametrize(
    "name", ["", "cross", "cross:", "Embedded", "embedded:x", "likelihood:x", "nli:/folder", "llm"]
)
def test_an_unknown_name_is_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(UserFault, match=rf"no re-ranker named '{name}'.*embedded, cross:.*, likelihood"):
        opened(name)


# --- labels ---


@pytest.mark.parametrize(
    ("id2label", "column"),
    [
        ({0: "LABEL_0"}, 1),
        ({0: "anything"}, 1),
        ({0: "LABEL_0", 1: "LABEL_1"}, 1),
        ({0: "irrelevant", 1: "relevant"}, 1),
        ({0: "Relevant", 1: "Not-Relevant"}, 0),
        ({0: "yes", 1: "NO"}, 0),
        ({0: "false", 1: "true"}, 1),
    ],
)
def test_which_output_is_relevance(id2label: dict[int, str], column: int) -> None:
    assert relevance_column("x", id2label) == column


@pytest.mark.parametrize(
    "id2label",
    [
        {0: "contradiction", 1: "neutral", 2: "entailment"},
        {0: "not_entailment", 1: "entailment"},
        {0: "negative", 1: "positive"},
        {0: "relevant", 1: "true"},
        {0: "relevant", 1: "relevant"},
        {0: "relevant", 1: "other"},
        {0: "irrelevant", 1: "no"},
        {0: "irrelevant", 1: "relevant", 2: "unclear"},
        {},
    ],
)
def test_labels_that_do_not_tell_are_shown(id2label: dict[int, str]) -> None:
    with pytest.raises(UserFault) as fault:
        relevance_column("some/model", id2label)
    assert f"its id2label is {id2label}" in str(fault.value)
    assert "'some/model'" in str(fault.value)
    assert "natural-language inference" in str(fault.value)
    assert "config.json" in str(fault.value)
