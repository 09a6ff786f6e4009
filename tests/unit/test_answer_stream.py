"""The answer while it is written: what is shown of an unfinished text, and in which messages."""

from __future__ import annotations

import pytest
from dubito.models.answer_stream import AnswerStream, Pace, Shown, current_answer, showing, text_listener
from dubito.models.interfaces import Sampling
from dubito.prompts import answer, reasoning
from hypothesis import given
from hypothesis import strategies as st


def stream() -> tuple[AnswerStream, list[tuple[str, str]]]:
    pieces: list[tuple[str, str]] = []
    return AnswerStream(Shown(), lambda piece, message: pieces.append((piece, message))), pieces


def messages(pieces: list[tuple[str, str]]) -> list[str]:
    """The texts of the messages, in the order in which they began."""
    texts: dict[str, str] = {}
    for piece, message in pieces:
        texts[message] = texts.get(message, "") + piece
    return list(texts.values())


def test_a_growing_text_is_one_message():
    shown, pieces = stream()
    for text in ("", "the", "the river", "the river"):
        shown.show(text)
    shown.finish("the river Lune")
    assert [piece for piece, _ in pieces] == ["the", " river", " Lune"]
    assert len(messages(pieces)) == 1
    assert pieces[0][1] == shown.shown.message_id


def test_a_repeated_text_goes_on_where_it_was():
    shown, pieces = stream()
    for text in ("the river", "the", "the river", "the river Lune"):
        shown.show(text)
    shown.finish("the river Lune")
    assert [piece for piece, _ in pieces] == ["the river", " Lune"]


@pytest.mark.parametrize("last", ["the Lune", "the riv"])
def test_another_text_is_another_message(last):
    shown, pieces = stream()
    shown.show("the river")
    shown.finish(last)
    assert messages(pieces) == ["the river", last]


def test_a_listener_that_is_gone_is_no_fault():
    def closed(piece: str, message: str) -> None:
        raise RuntimeError("Event loop is closed")

    AnswerStream(Shown(), closed).show("the Lune")


def shown_of(text: str, **sampling: object) -> str:
    """What is shown of an unfinished reply."""
    shown, pieces = stream()
    token = current_answer.set(shown)
    try:
        with showing(lambda text: text):
            listener = text_listener(Sampling(**sampling))  # type: ignore[arg-type]
            assert listener is not None
            listener(text)
    finally:
        current_answer.reset(token)
    return "".join(piece for piece, _ in pieces)


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("the Lune", "the Lune"),
        ("<thi", ""),
        ("<think>the Thames?", ""),
        ("<think>the Thames?</think>the Lune", "the Lune"),
        ("the Lune <thin", "the Lune "),
        ("the Lune. E", "the Lune. "),
        ("the Lune\nthe Thames", "the Lune"),
        ("the Lune. EN", "the Lune. "),
        ("the Lune. EN ", "the Lune. EN "),
        ("Lun\ufffd", "Lun"),
        ("Lun" + chr(0xD83D), "Lun"),
    ],
)
def test_thoughts_stop_strings_and_half_characters_are_held_back(text, seen):
    assert shown_of(text, stop=("\n", "END")) == seen


def test_a_model_that_may_think_first_shows_nothing_before_its_thought_ends():
    assert shown_of("the Thames?", thinking=True) == ""
    assert shown_of("the Thames?</think>the Lune", thinking=True) == "the Lune"


def test_nobody_listens_outside_of_an_answer_and_to_samples():
    assert text_listener(Sampling()) is None
    with showing(lambda text: text):
        assert text_listener(Sampling()) is None, "nobody listens to the run"
    token = current_answer.set(stream()[0])
    try:
        assert text_listener(Sampling()) is None, "an inner call"
        with showing(lambda text: text):
            assert text_listener(Sampling()) is not None
            assert text_listener(Sampling(n=2, temperature=1.0)) is None
    finally:
        current_answer.reset(token)


def test_a_long_text_is_not_reported_for_each_token():
    pace = Pace()
    assert [pace.is_due() for _ in range(3)] == [True, False, False]


PARTS = [
    "the Lune",
    " is",
    "*",
    "**",
    "Answer:",
    "answer",
    ": ",
    "\n",
    '<passage id="1">',
    "</passage>",
    "<",
    ".",
    " ",
    "x",
]


@given(st.lists(st.sampled_from(PARTS), max_size=8).map("".join))
def test_what_is_shown_of_an_answer_is_in_the_answer(reply):
    whole = answer.parse_or_empty(reply)
    for end in range(len(reply) + 1):
        assert whole.startswith(answer.beginning(reply[:end]))


@pytest.mark.parametrize("reply", ["the river Lune", "Answer: the river Lune", "**Answer:** the river Lune"])
def test_an_answer_is_shown_before_it_ends(reply):
    assert answer.beginning(reply[:-4]) == "the river"


@pytest.mark.parametrize(
    "reply",
    [
        "So the final answer is: the river Lune.",
        'It rises in Cumbria. So the final answer is "St. Ives".',
        "So the final answer is: **U.S.**",
        "It rises in Cumbria.",
        "\nLune",
    ],
)
def test_what_is_shown_of_a_final_answer_is_in_it(reply):
    shown = [reasoning.beginning_of_answer(reply[:end]) for end in range(len(reply) + 1)]
    assert all(reasoning.end_of(reply).startswith(text) for text in shown)
    assert ("final answer is" in reply) == any(shown)
