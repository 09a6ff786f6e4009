"""From a reply to a sentence, its words with their probabilities, and a query."""

from __future__ import annotations

import math
import time
from itertools import pairwise

import pytest
from dubito.models.interfaces import Completion, Token
from dubito.nodes.query_formulation import content_words, first_sentence, query_from, tokens_before, words_of
from dubito.state.reasoning import Word
from hypothesis import given
from hypothesis import strategies as st


def first(text: str) -> str:
    start, end = first_sentence(text)
    return text[start:end]


def reply(text: str, *tokens: tuple[str, float]) -> Completion:
    return Completion(text, "stop", tuple(Token(piece, math.log(p)) for piece, p in tokens))


def words(completion: Completion, start: int = 0, end: int | None = None) -> list[tuple[str, float | None]]:
    measured = words_of(completion, start, len(completion.text) if end is None else end)
    return [(w["text"], None if w["probability"] is None else round(w["probability"], 9)) for w in measured]


# --- the first sentence ---


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("Ada founded it. She was born in Kirkby.", "Ada founded it."),
        ("Ada founded it", "Ada founded it"),
        ("Did she? Yes.", "Did she?"),
        (" \n Ada founded it. ", "Ada founded it."),
        ("Mr. Brown founded it. He died.", "Mr. Brown founded it."),
        ("It was founded c. 1815 in St. Ives. He died.", "It was founded c. 1815 in St. Ives."),
        ("The U.S. Senate met. It left.", "The U.S. Senate met."),
        ("It cost 3.5 pounds. It was old.", "It cost 3.5 pounds."),
        ("阿達生於倫敦。她離開了。", "阿達生於倫敦。"),
        ("So the final answer is: J. R. R. Tolkien. He wrote.", "So the final answer is: J. R. R. Tolkien."),
        ("So the final answer is: Washington, D.C.", "So the final answer is: Washington, D.C."),
        ("1. Ada founded it.\n2. She died.", "Ada founded it."),
        ("1) Ada founded it. 2) She died.", "Ada founded it."),
        ("- Ada founded it.\n- She died.", "Ada founded it."),
        ("• Ada founded it.", "Ada founded it."),
        ("Step 2: Ada founded it.", "Ada founded it."),
        ("Next sentence: Ada founded it.", "Ada founded it."),
        ("Sentence: Ada founded it. So", "Ada founded it."),
        ("- 1. Ada founded it.", "Ada founded it."),
        ("1.\nAda founded it.", "Ada founded it."),
        ("**Ada** founded it. She died.", "**Ada** founded it."),
        ("... Ada founded it.", "Ada founded it."),
        ("1815 was the year. It was cold.", "1815 was the year."),
        ("-5 degrees were measured. It was cold.", "-5 degrees were measured."),
        ("Ada founded it\nShe died.", "Ada founded it"),
        ("Ada founded it.\n\nShe died.", "Ada founded it."),
        ("***\nAda founded it.\nShe died.", "Ada founded it."),
        ("Ada founded it\r\nShe died.", "Ada founded it"),
    ],
)
def test_the_first_sentence(text: str, sentence: str) -> None:
    assert first(text) == sentence


@pytest.mark.parametrize("text", ["", " ", "\n\n", "...", "?!", "- ", "1. ", "**", "\u2028", "--- \n ***"])
def test_a_reply_without_a_word_has_no_sentence(text: str) -> None:
    assert first_sentence(text) == (len(text), len(text))


pieces = st.sampled_from(
    ["Ada", "Mr.", ".", "?", " ", "\n", "1.", "-", "*", "Step 1:", "é", "阿", "\u200b", "\u2028", "_"]
)
texts = st.one_of(st.text(max_size=60), st.lists(pieces, max_size=25).map("".join))


@given(texts)
def test_a_sentence_is_part_of_a_line_and_has_words(text: str) -> None:
    start, end = first_sentence(text)
    assert 0 <= start <= end <= len(text)
    sentence = text[start:end]
    assert "\n" not in sentence
    assert sentence == sentence.strip()
    assert bool(sentence) == bool(words_of(Completion(text, "stop"), start, end))


@pytest.mark.parametrize("run", ["- ", "-", "1. ", "step 1: ", "\n", " ", "a.", "*", "'a", "…"])
def test_long_repetitive_replies_are_read_fast(run: str) -> None:
    text = run * (20_000 // len(run))
    begin = time.perf_counter()
    start, end = first_sentence(text)
    words_of(Completion(text, "stop"), start, end)
    assert time.perf_counter() - begin < 3


# --- words and their probabilities ---


def test_a_word_for_each_token() -> None:
    assert words(reply("Ada left.", ("Ada", 0.5), (" left", 0.25), (".", 0.125))) == [("Ada", 0.5), ("left", 0.25)]


def test_the_least_likely_token_of_a_word_counts() -> None:
    assert words(reply("Kirkby", ("Ki", 0.9), ("rk", 0.2), ("by", 0.8))) == [("Kirkby", 0.2)]


def test_a_token_may_have_parts_of_several_words() -> None:
    completion = reply("Ada left it", ("Ad", 0.9), ("a le", 0.5), ("ft", 0.8), (" it", 0.7))
    assert words(completion) == [("Ada", 0.5), ("left", 0.5), ("it", 0.7)]


def test_marks_and_spaces_belong_to_no_word() -> None:
    completion = reply(
        "“Ada” - left!", ("“", 0.01), ("Ada", 0.9), ("”", 0.02), (" - ", 0.03), ("left", 0.8), ("!", 0.04)
    )
    assert words(completion) == [("Ada", 0.9), ("left", 0.8)]


def test_marks_within_a_word_are_part_of_it() -> None:
    completion = reply("U.S. Ada's 3.5", ("U", 0.9), (".", 0.3), ("S", 0.8), (". ", 0.1), ("Ada's", 0.7), (" 3.5", 0.6))
    assert words(completion) == [("U.S", 0.3), ("Ada's", 0.7), ("3.5", 0.6)]


def test_a_letter_of_several_tokens_has_the_least_likely_ones_probability() -> None:
    # bytes of one letter: the tokens before the last have no text of their own
    assert words(reply("né", ("n", 0.9), ("", 0.2), ("é", 0.8))) == [("né", 0.2)]
    assert words(reply("né a", ("n", 0.9), ("", 0.3), ("", 0.2), ("é", 0.8), (" a", 0.7))) == [("né", 0.2), ("a", 0.7)]


def test_bytes_before_the_first_letter() -> None:
    assert words(reply("é a", ("", 0.2), ("é", 0.8), (" a", 0.7))) == [("é", 0.2), ("a", 0.7)]


def test_tokens_after_the_text_change_nothing() -> None:
    # an end-of-turn token, text that a stop string cut off
    assert words(reply("Ada", ("Ada", 0.9), ("", 0.1))) == [("Ada", 0.9)]
    assert words(reply("Ada", ("Ada", 0.9), ("\n", 0.1))) == [("Ada", 0.9)]


def test_the_text_may_lack_leading_space_of_the_tokens() -> None:
    assert words(reply("Ada left", (" Ada", 0.9), (" left", 0.8))) == [("Ada", 0.9), ("left", 0.8)]
    assert words(reply("Ada left", ("\n", 0.1), (" Ada", 0.9), (" left", 0.8))) == [("Ada", 0.9), ("left", 0.8)]


@pytest.mark.parametrize("tokens", [(), (("▁Ada", 0.9),), (("Ad", 0.9),), (("ada left", 0.5),), (("", 0.5),)])
def test_without_tokens_that_spell_the_text_the_probabilities_are_unknown(
    tokens: tuple[tuple[str, float], ...],
) -> None:
    assert words(reply("Ada left", *tokens)) == [("Ada", None), ("left", None)]


def test_a_probability_is_one_at_most() -> None:
    assert words(Completion("Ada", "stop", (Token("Ada", 1e-7),))) == [("Ada", 1.0)]


def test_a_token_of_probability_0() -> None:
    assert words(Completion("Ada", "stop", (Token("Ada", -math.inf),))) == [("Ada", 0.0)]


def test_only_the_words_between_start_and_end() -> None:
    completion = reply(
        "1. Ada left. Bo", ("1", 0.1), (". ", 0.2), ("Ada", 0.9), (" left", 0.8), (". ", 0.3), ("Bo", 0.4)
    )
    assert words(completion, *first_sentence(completion.text)) == [("Ada", 0.9), ("left", 0.8)]


def test_no_words() -> None:
    assert words(reply("", ("", 0.5))) == []
    assert words(reply("...", ("...", 0.5))) == []


@given(st.text("abé ,.'-\n", max_size=20), st.data())
def test_however_the_text_is_cut_into_tokens_a_words_probability_is_its_letters_lowest(
    text: str, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))) | {0, len(text)})
    parts = [text[a:b] for a, b in pairwise(cuts)]
    chances = [data.draw(st.sampled_from([0.125, 0.25, 0.5, 1.0])) for _ in parts]
    by_letter = [p for part, p in zip(parts, chances, strict=True) for _ in part]
    completion = reply(text, *zip(parts, chances, strict=True))
    at = 0
    for word, probability in words(completion):
        at = text.index(word, at)
        assert probability == min(by_letter[at : at + len(word)])
        at += len(word)


# --- the query ---


def known(text: str, **probabilities: float) -> list[Word]:
    return [{"text": word, "probability": probabilities.get(word, 1.0)} for word in text.split()]


QUESTION = "Who founded the Herald of Kirkby?"


def test_uncertain_words_are_left_out() -> None:
    assert query_from(known("Ada Bo left Lancaster", Ada=0.89, Bo=0.91), 0.1, QUESTION, []) == "Bo left Lancaster"


def test_a_word_at_the_bound_stays() -> None:
    assert query_from(known("Ada Bo Cy", Ada=0.5, Bo=0.499), 0.5, QUESTION, []) == "Ada Cy"


def test_uncertain_words_of_spared_texts_stay() -> None:
    uncertain = dict.fromkeys(["KIRKBY", "Ada", "Bo"], 0.1)
    assert (
        query_from(known("KIRKBY Ada Bo Cy", **uncertain), 0.1, QUESTION, ["kirkby?", "ADA left."]) == "KIRKBY Ada Cy"
    )


def test_words_of_unknown_probability_stay() -> None:
    unsure: list[Word] = [{"text": "Ada", "probability": None}, {"text": "Bo", "probability": 0.1}]
    assert query_from(unsure, 0.1, QUESTION, []) == "Ada"


def test_stop_words_are_left_out_and_the_order_stays() -> None:
    assert query_from(known("So Ada was born in The Hague and she left"), 0.1, QUESTION, []) == "Ada born Hague left"


def test_words_that_announce_an_answer_never_enter_a_query() -> None:
    assert query_from(known("So the final answer is: 2012"), 0.1, QUESTION, []) == "2012"
    assert query_from(known("Thus Ada therefore lost the final, so Answer it"), 0.1, QUESTION, []) == "Ada lost final"
    assert query_from([], 0.1, "What is the final answer of Deep Thought?", []) == "Deep Thought"


def test_a_word_that_comes_twice_stays_twice() -> None:
    assert query_from(known("Ada met Ada"), 0.1, QUESTION, []) == "Ada met Ada"


@pytest.mark.parametrize("drafted", ["", "She was the one of", "Ada Bo"])
def test_without_a_word_left_the_query_is_the_questions_content_words(drafted: str) -> None:
    left: list[Word] = [
        {"text": word, "probability": 0.1 if word in {"Ada", "Bo", "one"} else 1.0} for word in drafted.split()
    ]
    assert query_from(left, 0.1, QUESTION, []) == "founded Herald Kirkby"


@pytest.mark.parametrize("question", ["Who was it?", "???", "is it"])
def test_without_content_words_the_query_is_the_question(question: str) -> None:
    assert query_from([], 0.1, question, []) == question


def test_the_tokens_before_a_place_are_those_that_overlap_the_text_up_to_it() -> None:
    pieces = [("so ", 0.9), ("Ada", 0.8), ("", 0.7), (" left. S", 0.6), ("he", 0.5)]
    spelt = Completion("Ada left. She", "stop", reply("", *pieces).tokens)
    assert [token.text for token in tokens_before(spelt, 9)] == ["Ada", "", " left. S"]
    assert [token.text for token in tokens_before(spelt, 3)] == ["Ada"]
    assert len(tokens_before(reply("other", *pieces), 3)) == 5, "they do not spell the text"


def test_content_words() -> None:
    assert content_words("The founder, Ada O'Neil, wasn't born in the U.S.; was Bo?") == [
        "founder", "Ada", "O'Neil", "born", "U.S", "Bo",
    ]  # fmt: skip
    assert content_words("THE and Of") == []
