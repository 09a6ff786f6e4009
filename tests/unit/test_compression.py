"""Evidence with its least informative sentences left out, against numbers worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from dubito.errors import CapabilityMissing, UserFault
from dubito.evals.compression import (
    Contrasted,
    compressed,
    contrasted,
    informed,
    question_compressed,
    self_informations,
)
from dubito.models.interfaces import Message, Scores, Token, Tokens
from dubito.prompts import unparsed
from dubito.state.records import Chunk
from dubito.tests.scripted import ScriptedChat

TEXT = "The Lune is a river. It is long. Ada saw it."


def chunk(name: str, text: str) -> Chunk:
    return {"id": name, "doc_id": name, "title": f"T{name}", "text": text}


def tokens(*pairs: tuple[str, float]) -> list[Token]:
    return [Token(text, math.log(probability)) for text, probability in pairs]


def test_self_information_by_hand() -> None:
    found = self_informations(
        TEXT,
        tokens(
            ("The Lune", 1 / 8), (" is a river", 1 / 2), (".", 1.0),
            (" It is", 1 / 4), (" long.", 1 / 2),
            (" Ada", 1 / 32), (" saw it", 1 / 2), (".", 1 / 2), ("", 1 / 2),
        ),
    )  # fmt: skip
    assert [text for text, _ in found] == ["The Lune is a river. ", "It is long. ", "Ada saw it."]
    assert [one / math.log(2) for _, one in found] == pytest.approx([4, 3, 5 + 1 + 1 + 1])


def test_a_token_across_two_sentences_counts_for_the_one_it_begins_in() -> None:
    found = self_informations("One. Two.", tokens(("One", 1 / 2), (". Two", 1 / 4), (".", 1 / 8)))
    assert [one / math.log(2) for _, one in found] == pytest.approx([3, 3])


def test_more_tokens_than_text_stay_in_the_last_sentence() -> None:
    found = self_informations("One. Two.", tokens(("One. Two.", 1 / 2), (" Three. Four.", 1 / 2)))
    assert [one / math.log(2) for _, one in found] == pytest.approx([1, 1])
    assert self_informations("", []) == []


INFORMATION = {
    "A one. A two. A three.": [("A one. ", 5.0), ("A two. ", 1.0), ("A three.", 4.0)],
    "B one. B two.": [("B one. ", 2.0), ("B two.", 3.0)],
    "C.": [("C.", 0.5)],
}
CHUNKS = [chunk("a", "A one. A two. A three."), chunk("b", "B one. B two."), chunk("c", "C.")]


@pytest.mark.parametrize(
    ("keep", "texts"),
    [
        (1.0, ["A one. A two. A three.", "B one. B two.", "C."]),
        (0.8, ["A one. A two. A three.", "B one. B two."]),  # 4.8 of 6 sentences: 5
        (0.5, ["A one. A three.", "B two."]),
        (0.34, ["A one. A three.", "B two."]),  # 2.04: 3
        (1 / 3, ["A one. A three."]),
        (0.01, ["A one."]),
    ],
)
def test_the_least_informative_sentences_go(keep: float, texts: list[str]) -> None:
    found = compressed(CHUNKS, INFORMATION, keep)
    assert [one["text"] for one in found] == texts
    assert [one["title"] for one in found] == ["Ta", "Tb", "Tc"][: len(texts)]
    assert CHUNKS[0]["text"] == "A one. A two. A three.", "nothing is changed in place"


def test_of_equals_the_first_stays() -> None:
    information = {"A. B.": [("A. ", 1.0), ("B.", 1.0)]}
    assert [one["text"] for one in compressed([chunk("x", "A. B.")], information, 0.5)] == ["A."]


def test_rounding_keeps_no_sentence_more() -> None:
    text = "".join(f"S{i}. " for i in range(100))
    information = {text: [(f"S{i}. ", float(i)) for i in range(100)]}
    (found,) = compressed([chunk("x", text)], information, 0.07)  # 0.07 · 100 = 7.000000000000001
    assert found["text"].count("S") == 7


@pytest.mark.parametrize("keep", [0.0, -0.5, 1.01, math.nan, math.inf])
def test_a_share_that_is_none_is_refused(keep: float) -> None:
    with pytest.raises(UserFault, match="share of sentences or tokens to keep"):
        compressed(CHUNKS, INFORMATION, keep)
    with pytest.raises(UserFault, match="share of sentences or tokens to keep"):
        question_compressed(CHUNKS, {}, keep)


async def test_each_text_is_scored_once_as_a_reply_that_nothing_leads_to() -> None:
    class Words(ScriptedChat):
        async def score(self, messages: Sequence[Message], continuations: Sequence[str]) -> Scores:
            await self._begin("score", [*messages, {"role": "assistant", "content": continuations[0]}])
            assert len(continuations) == 1
            parts = continuations[0].replace(" ", "\0 ").split("\0")
            return Scores((tuple(Token(part, -float(len(part))) for part in parts),), Tokens())

    llm = Words()
    found = await informed(["One. Two three.", "Four.", "One. Two three."], llm)
    assert found == {"One. Two three.": [("One. ", 4.0), ("Two three.", 11.0)], "Four.": [("Four.", 5.0)]}
    asked: Any = [messages for _, messages in llm.calls]
    assert [one[-1]["content"] for one in asked] == ["One. Two three.", "Four."]
    assert asked[0][:-1] == unparsed.self_information()


async def test_a_model_that_cannot_score_is_refused_before_it_is_called() -> None:
    llm = ScriptedChat(capabilities=frozenset({"logprobs"}))
    with pytest.raises(CapabilityMissing, match="'scripted' has no score, which compression needs"):
        await informed(["One."], llm)
    assert llm.calls == []


# --- by the question ---

FAR = Contrasted(-3.0, [("Ada", 0.5), (" was", -1.0), (" born", 0.2), (".", -2.0)])
NEAR = Contrasted(-1.0, [("The", -0.5), (" Lune", 2.0), (" is", -0.5), (" a", -1.0), (" river", 1.0)])


@pytest.mark.parametrize(
    ("keep", "texts"),
    [
        # ranks 0 and 1 of 2: keep + δτ and keep, with δτ = min(0.3, 1 - keep)
        (1.0, ["The Lune is a river", "Ada was born."]),
        (0.9, ["The Lune is a river", "Ada was born."]),  # 1.0 of 5, 0.9 of 4
        (0.5, ["The Lune is river", "Ada born"]),  # 0.8 of 5: 4; 0.5 of 4: 2; of equal tokens the first stays
        (0.1, ["Lune river", "Ada"]),  # 0.4 of 5: 2; 0.1 of 4: 1
    ],
)
def test_the_tokens_that_matter_least_to_the_question_go(keep: float, texts: list[str]) -> None:
    chunks = [chunk("far", "F"), chunk("near", "N")]
    found = question_compressed(chunks, {"F": FAR, "N": NEAR}, keep)
    assert [one["id"] for one in found] == ["near", "far"], "the most relevant first"
    assert [one["text"] for one in found] == texts
    assert chunks[0]["text"] == "F", "nothing is changed in place"


def test_a_chunk_of_low_rank_may_lose_everything() -> None:
    chunks = [chunk(str(rank), str(rank)) for rank in range(10)]
    contrasts = {str(rank): Contrasted(-float(rank), [("word", 0.0)] * 10) for rank in range(10)}
    found = question_compressed(chunks, contrasts, 0.2)
    # 0.2 + (1 - I/5) 0.3, in tokens: 5, 4.4, 3.8, 3.2, 2.6, 2, 1.4, 0.8, 0.2, -0.4
    assert [one["text"].count("word") for one in found] == [5, 5, 4, 4, 3, 2, 2, 1, 1]
    assert question_compressed([], {}, 0.2) == []


async def test_what_the_question_does_to_each_token_by_hand() -> None:
    class Scorer(ScriptedChat):
        async def score(self, messages: Sequence[Message], continuations: Sequence[str]) -> Scores:
            await self._begin("score", messages)
            (text,) = continuations
            prompt = messages[-1]["content"]
            if text == "Which river?":
                return Scores((tuple(tokens(("Which", 1 / 2), (" river?", 1 / 8))),), Tokens())
            chances = (1 / 2, 1 / 4) if "Which river?" in prompt else (1 / 8, 1 / 2)
            return Scores((tuple(tokens(*zip(text.split("|"), chances, strict=True))),), Tokens())

    llm = Scorer()
    found = await contrasted("Which river?", ["The|Lune", "The|Lune"], llm)
    assert found["The|Lune"].relevance == pytest.approx(-2 * math.log(2))
    assert [text for text, _ in found["The|Lune"].tokens] == ["The", "Lune"]
    assert [nats for _, nats in found["The|Lune"].tokens] == pytest.approx([math.log(4), -math.log(2)])
    assert len(llm.calls) == 3, "each text once"


async def test_a_model_that_cannot_score_cannot_compress_by_the_question() -> None:
    llm = ScriptedChat(capabilities=frozenset({"logprobs"}))
    with pytest.raises(CapabilityMissing, match="has no score, which compression needs"):
        await contrasted("Which?", ["One."], llm)
    assert llm.calls == []
