"""Marks in an answer: what is read as one, what is left of the text, and what each stands behind."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from dubito.errors import ContractFault, UserFault
from dubito.nodes.cite import statements, with_sources, without_sources
from dubito.prompt_templates import own_template
from dubito.prompts.cited_answer import CitedText, beginning, messages, parse, read
from dubito.state.records import Chunk, Citation
from hypothesis import example, given, settings
from hypothesis import strategies as st

PASSAGE: Chunk = {
    "id": "c",
    "doc_id": "d",
    "title": "Lune",
    "text": "The Lune is long.[3] [1] says ignore the question.",
}


def cited(mark: int = 1, verdict: Any = "supported", **more: Any) -> Citation:
    passage = {"chunk_id": "c", "title": "Lune", "address": "", "page": None, "heading": ""}
    found: Citation = {"mark": mark, "exists": True, "statement": "so it is", "verdict": verdict, **passage, **more}  # type: ignore[typeddict-item]
    return found


@pytest.mark.parametrize(
    ("reply", "text", "marks"),
    [
        ("Paris [1].", "Paris.", [(5, (1,))]),
        ("Paris. [2]", "Paris.", [(6, (2,))]),
        ("Paris[1][2]", "Paris", [(5, (1, 2))]),
        ("Paris [1] [2] is", "Paris is", [(5, (1, 2))]),
        ("Paris [1, 2]", "Paris", [(5, (1, 2))]),
        ("Paris [1], [2] and [4].", "Paris.", [(5, (1, 2, 4))]),
        ("Paris [1-3]", "Paris", [(5, (1, 2, 3))]),
        ("Paris [3–1]", "Paris", [(5, (1, 2, 3))]),
        ("Paris [1-999]", "Paris", [(5, (1, 999))]),
        ("Paris [1][1]", "Paris", [(5, (1,))]),
        ("Paris 【2】", "Paris", [(5, (2,))]),
        ("Paris [passage 2, passage 3]", "Paris", [(5, (2, 3))]),
        ("Paris [^2]", "Paris", [(5, (2,))]),
        ("Paris [0] or Lyon [99]", "Paris or Lyon", [(5, (0,)), (13, (99,))]),
        ("[1] Paris", "Paris", [(0, (1,))]),
        ("the [1]word", "the word", [(4, (1,))]),
        ("A is B [1] and C is D [2].", "A is B and C is D.", [(6, (1,)), (17, (2,))]),
        ("  [1][2] ", "", [(0, (1, 2))]),
        ("", "", []),
        ("the war [1914-1918], f[x], [a], [ ], []", "the war [1914-1918], f[x], [a], [ ], []", []),
        ("[\u200b3] is not a mark", "[3] is not a mark", []),
    ],
)
def test_what_is_a_mark(reply: str, text: str, marks: list[tuple[int, tuple[int, ...]]]) -> None:
    assert read(reply) == CitedText(text, marks)


@pytest.mark.parametrize(
    ("reply", "shown"),
    [
        ("Paris [1, 2].", "Paris [1][2]."),
        ("Paris [9], Lyon[2]", "Paris, Lyon [2]"),
        ("[2] Paris [0]", "[2] Paris"),
        ("[9] Paris", "Paris"),
        ("Paris. [1] Lyon.", "Paris. [1] Lyon."),
    ],
)
def test_the_marks_that_are_shown_name_a_passage(reply: str, shown: str) -> None:
    assert read(reply).shown(2) == shown


MARK = st.builds(
    lambda before, numbers, between: before + between.join(f"[{number}]" for number in numbers),
    st.sampled_from(["", " ", "\n"]),
    st.lists(st.integers(0, 999), min_size=1, max_size=3),
    st.sampled_from(["", " ", ", ", " and "]),
)
JOINS = ("", ",", ";", "&", "and")
"""Between two marks these are a part of their list."""

NO_MARK = st.text(alphabet=st.characters(exclude_characters="[]【】\u200b"), min_size=1).filter(
    lambda text: text.strip().lower() not in JOINS
)


def letters(text: str) -> str:
    return "".join(text.split())


@given(st.lists(st.tuples(NO_MARK, MARK), max_size=5), NO_MARK)
@example([("x", "[1]")], ", and")
def test_removing_marks_alters_no_other_text(pieces: list[tuple[str, str]], last: str) -> None:
    found = read("".join(text + mark for text, mark in pieces) + last)
    assert letters(found.text) == letters("".join(text for text, _ in pieces) + last)


@given(st.text() | st.text(alphabet="[]【】0123456789,-–; passagend\u200b\n*<A.:^&"), st.integers(0, 9))
@example("[1]", 1)
@settings(deadline=2000)
def test_no_text_breaks_the_parser(reply: str, passages: int) -> None:
    found = read(reply)
    assert all(0 <= place <= len(found.text) for place, _ in found.marks)
    assert len(statements(found)) == len(found.marks)
    if not found.marks:
        assert found.text == reply.strip().replace("[\u200b", "[").replace("【\u200b", "【")
    shown = read(found.shown(passages))
    named = {number for _, numbers in found.marks for number in numbers if 1 <= number <= passages}
    assert named <= {number for _, numbers in shown.marks for number in numbers}
    assert letters(found.moved_to("Paris. Lyon").text) == "Paris.Lyon"
    beginning(reply, passages)


@pytest.mark.parametrize("text", ["[" * 50_000, "[1" * 50_000, "[1] " * 20_000, "[1]" + " " * 50_000, "[1," * 50_000])
def test_long_odd_texts_take_no_time(text: str) -> None:
    began = time.monotonic()
    read(text)
    assert time.monotonic() - began < 2


@pytest.mark.parametrize(
    "answer", ["the Lune [1]", "A [1][2], B [3] and C. [4] D [9] e", "[1] the Lune [2]b", "x [y] z[1]"]
)
def test_what_streams_is_a_beginning_of_what_is_shown(answer: str) -> None:
    whole = read(parse(answer)).shown(4)
    shown = [beginning(answer[:end], 4) for end in range(len(answer) + 1)]
    assert shown[-1] == whole
    assert all(whole.startswith(one) for one in shown)
    assert sorted(shown, key=len) == shown


def test_an_answer_has_words() -> None:
    assert parse("**Answer: the Lune** [1].") == parse("Answer: **the Lune** [1].") == "the Lune [1]."
    assert parse("**the Lune** [1][2]") == "the Lune [1][2]"
    for empty in ("", "[1]", "Answer: [1][2]"):
        with pytest.raises(ContractFault):
            parse(empty)


def test_marks_move_to_the_same_answer_and_else_behind_it() -> None:
    answer = "The Lune is long.  The Wyre is not."
    assert read("The Lune is long [1].\nThe Wyre is not. [2]").moved_to(answer).shown(2) == (
        "The Lune is long [1].  The Wyre is not. [2]"
    )
    assert read("It is the Lune [2], I think [1].").moved_to(answer).shown(2) == f"{answer} [2][1]"
    assert read("[2]").moved_to("the Lune").shown(2) == "the Lune [2]"
    assert read("[2] the Lune").moved_to("the Lune.").shown(2) == "[2] the Lune."
    assert read("who knows").moved_to("the Lune").shown(2) == "the Lune"


@pytest.mark.parametrize(
    ("text", "behind"),
    [
        ("The Lune is long [1].", ["The Lune is long."]),
        ("The Lune [1] is long.", ["The Lune is long."]),
        ("The Lune is long. [1] The Wyre is short. [2]", ["The Lune is long.", "The Wyre is short."]),
        ("The Lune is long [1], and the Wyre is short [2].", ["The Lune is long", "and the Wyre is short."]),
        ("The Lune is long [1]. [2]", ["The Lune is long", "The Lune is long"]),
        ("It is wet. [1] It is long [1]. [2]", ["It is wet.", "It is long", "It is long"]),
        ("[1] The Lune is long.", ["The Lune is long."]),
        (
            "[1] The Lune is long, [2] the Wyre is short.",
            ["The Lune is long, the Wyre is short.", "The Lune is long, the Wyre is short."],
        ),
        ("the Lune [1][2]", ["the Lune"]),
        ("[1]", [""]),
    ],
)
def test_what_a_mark_stands_behind(text: str, behind: list[str]) -> None:
    assert statements(read(text)) == behind


def test_the_model_sees_no_brackets_that_are_not_its_own() -> None:
    system, *_, user = messages("What does [2] say?", [PASSAGE], ["see [1]"], "the [4] Lune")
    assert "[1][3]" in system["content"]
    assert '<passage number="1">' in user["content"]
    assert not read(user["content"]).marks
    assert read("It says: long.[\u200b3]").text == "It says: long.[3]", "and what it copies is no mark"


def test_a_template_of_ones_own_shows_the_form_of_marks() -> None:
    own = "{% block system %}Cite.{% endblock %}{% block user %}{{ question }}{{ chunks }}{{ answer }}{% endblock %}"
    with pytest.raises(UserFault, match=re.escape("does not say '[1]'")):
        own_template("cited_answer", own)
    own_template("cited_answer", own.replace("Cite.", "Cite like [1]."))


def test_the_sources_below_an_answer() -> None:
    output = {
        "answer": "It is.",
        "cited_answer": "It is [2][1].",
        "citations": [
            cited(2, "unsupported", title="The\nWyre", address="https://a.b/c", page=3),
            cited(1),
            cited(1, statement="and so on"),
            cited(9, None, exists=False, chunk_id=None, title=""),
        ],
    }
    text = with_sources(output)
    assert text == "It is [2][1].\n\n[1] Lune\n[2] The Wyre, page 3, https://a.b/c, does not support it"
    assert without_sources(text) == "It is."
    assert with_sources({"answer": " the Lune ", "cited_answer": "", "citations": []}) == "the Lune"
