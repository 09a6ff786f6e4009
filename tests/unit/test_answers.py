"""Answer metrics by hand; `test_answers_evouna.py` holds them against torchmetrics."""

from __future__ import annotations

import math
from typing import Any

import pytest
from dubito.errors import UserFault
from dubito.evals.answers import (
    NAMES,
    Standard,
    accuracy,
    answer_scores,
    bleu,
    cover_em,
    exact_match,
    f1,
    rouge_l,
    squad_normalised,
)
from dubito.evals.questions import GoldQuestion
from hypothesis import given
from hypothesis import strategies as st


def asked(*answers: str, **more: Any) -> GoldQuestion:
    return GoldQuestion("?", answers, **more)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Lune.", "lune"),
        ("U.S.", "us"),
        ("U S", "u s"),
        ("an apple a day", "apple day"),
        ("Theatre", "theatre"),
        ("the-end", "theend"),
        ("A.", ""),  # punctuation goes first
        ("¿Qué?", "¿qué"),
    ],
)
def test_normalisation_is_squads_and_longbenchs(text: str, normal: str) -> None:
    assert squad_normalised(text) == normal


@pytest.mark.parametrize(
    ("prediction", "golds", "em", "score"),
    [
        ("The river Lune", ["Lune"], 0, 2 / 3),  # precision 1/2, recall 1
        ("lune!", ["the Lune", "Wyre"], 1, 1),
        ("", [""], 1, 1),
        ("", ["Lune"], 0, 0),
        ("the", ["a"], 1, 1),  # nothing is left of either
        ("Ada Ada Byron", ["Ada Lovelace"], 0, 2 / 5),  # one of the two is shared
        ("Lune", [], 0, 0),
    ],
)
def test_hand_worked(prediction: str, golds: list[str], em: float, score: float) -> None:
    assert exact_match(prediction, golds) == em
    assert f1(prediction, golds) == pytest.approx(score)


WORDS = st.lists(st.sampled_from(["the", "a", "Lune", "lune,", "river", "Ada", "U.S.", "1960", "-"]), max_size=6)


# precision and recall


@pytest.mark.parametrize(
    ("prediction", "golds", "precision", "recall"),
    [
        ("the river Lune", ["Lune"], 1 / 2, 1),
        ("Lune", ["river Lune in Lancashire"], 1, 1 / 4),
        ("Ada Ada Byron", ["Ada Lovelace"], 1 / 3, 1 / 2),
        # F1 is 1/2 (1 of 3, 1 of 1), 2/3 (2 of 3, 2 of 3): the second has the lower recall and counts
        ("north river Lune", ["Lune", "wide river Lune"], 2 / 3, 2 / 3),
        # 2/3 both ways round: the first counts
        ("Lune river", ["Lune", "Lune river Wyre Ada"], 1 / 2, 1),
        ("Wyre", ["Lune"], 0, 0),
    ],
)
def test_precision_and_recall_are_of_the_gold_answer_with_the_best_f1(
    prediction: str, golds: list[str], precision: float, recall: float
) -> None:
    found = answer_scores(prediction, asked(*golds))
    assert found["precision"] == pytest.approx(precision)
    assert found["recall"] == pytest.approx(recall)
    assert found["f1"] == pytest.approx(2 * precision * recall / (precision + recall) if precision else 0)


def test_standards_differ_only_where_nothing_is_left_of_both() -> None:
    squad, longbench = (answer_scores("the", asked("a", "Lune"), standard) for standard in ("squad", "longbench"))
    assert (squad["f1"], squad["precision"], squad["recall"]) == (1, 1, 1)
    assert (longbench["f1"], longbench["precision"], longbench["recall"]) == (0, 0, 0)
    assert longbench["exact_match"] == squad["exact_match"] == 1


# cover_em and accuracy


@pytest.mark.parametrize(
    ("prediction", "golds", "covered"),
    [
        ("It rises near the River Lune, in the north.", ["Wyre", "the river Lune"], 1),
        ("The Lunedale hills", ["Lune"], 0),  # half a word
        ("The fluent", ["fluent the"], 1),
        ("river north Lune", ["river Lune"], 0),  # not together
        ("Lune", ["river Lune"], 0),
        ("born in 1960.", ["1960"], 1),
        ("born in 1960s", ["1960"], 0),
        ("in the U.S. Senate", ["US"], 1),
        ("Lune", ["The"], 0),  # nothing is left of the gold answer
        ("the", ["A"], 1),
        ("Lune", [], 0),
    ],
)
def test_a_gold_answer_is_covered_by_whole_words(prediction: str, golds: list[str], covered: float) -> None:
    assert cover_em(prediction, golds) == covered
    assert accuracy(prediction, asked(*golds)) == covered


@pytest.mark.parametrize(
    ("prediction", "gold", "right"),
    [
        ("Yes.", "yes", 1),
        ("NO, it is not", "no", 1),
        ("No, yes is what they would say", "yes", 0),  # the first counts
        ("I think yes, not no", "yes", 1),
        ("The noon train", "no", 0),  # as a word
        ("Yesterday", "yes", 0),
        ("Both are", "yes", 0),
        ("**No**", "No.", 1),
    ],
)
def test_the_first_yes_or_no_is_the_answer(prediction: str, gold: str, right: float) -> None:
    assert accuracy(prediction, asked(gold, kind="yes_no")) == right


def test_a_no_in_a_text_is_no_verdict() -> None:
    assert accuracy("No Country for Old Men", asked("No Country for Old Men")) == 1
    assert accuracy("No Country for Old Men", asked("no", kind="yes_no")) == 1
    assert accuracy("There is no such film", asked("No Country for Old Men")) == 0


# ROUGE-L


@pytest.mark.parametrize(
    ("prediction", "golds", "score"),
    [
        ("police kill the gunman", ["police killed the gunman"], 3 / 4),  # Lin's own examples
        ("the gunman kill police", ["police killed the gunman"], 2 / 4),
        ("the gunman police killed", ["police killed the gunman"], 2 / 4),
        ("The cat sat on the mat", ["a cat sat on mat"], 2 * 4 / 11),  # articles are words
        ("U.S.", ["us"], 0),  # "u", "s"
        ("Röntgen", ["röntgen"], 1),
        ("snake_case", ["snake case"], 1),
        ("", ["Lune"], 0),
        ("...", ["..."], 0),
        ("Lune", [], 0),
        ("Lune river", ["Wyre", "Lune"], 2 / 3),
    ],
)
def test_rouge_l_by_hand(prediction: str, golds: list[str], score: float) -> None:
    assert rouge_l(prediction, golds) == pytest.approx(score)


# BLEU


@pytest.mark.parametrize(
    ("prediction", "golds", "score"),
    [
        ("The Lune", ["the lune"], 1),
        ("Lune", ["Lune"], 1),
        ("Wyre", ["Lune"], 0),
        ("", ["Lune"], 0),
        ("Lune", [], 0),
        ("Lune", ["the river Lune"], math.exp(1 - 3)),  # right as far as it goes, and too short
        ("the the the", ["the Lune"], (1 / 3 * 1 / 3 * 1 / 2 * 1) ** 0.25),  # a word counts as often as in the gold
        ("a b c d e", ["a b c d f"], (4 / 5 * 4 / 5 * 3 / 4 * 2 / 3) ** 0.25),
        ("Wyre", ["Lune", "Wyre"], 1),
    ],
)
def test_bleu_by_hand(prediction: str, golds: list[str], score: float) -> None:
    assert bleu(prediction, golds) == pytest.approx(score)


# all together


def test_all_figures_of_one_answer_by_hand() -> None:
    found = answer_scores("It is the river Lune.", asked("Lune", "Wyre"))
    assert found == {
        "exact_match": 0.0,
        "f1": pytest.approx(2 / 5),  # it is river lune: 1 of 4, 1 of 1
        "precision": 0.25,
        "recall": 1.0,
        "cover_em": 1.0,
        "accuracy": 1.0,
        "rouge_l": pytest.approx(2 / 6),  # it is the river lune: 1 of 5, 1 of 1
        "bleu": pytest.approx((1 / 5 * 1 / 5 * 1 / 4 * 1 / 3) ** 0.25),  # 1 of 5, then 0 + 1 of 4 + 1, 3 + 1, 2 + 1
    }
    assert tuple(found) == NAMES
    assert {type(value) for value in found.values()} == {float}


@pytest.mark.parametrize(("prediction", "right"), [("", 1.0), ("I don't know.", 1.0), ("Lune", 0.0), ("  \n", 1.0)])
@pytest.mark.parametrize("answers", [(), ("Lune",)])
def test_of_a_question_without_an_answer_abstaining_is_right(
    prediction: str, right: float, answers: tuple[str, ...]
) -> None:
    found = answer_scores(prediction, asked(*answers, answerable=False))
    assert found == dict.fromkeys(NAMES, right)
    assert {type(value) for value in found.values()} == {float}


@pytest.mark.parametrize(
    ("prediction", "golds"),
    [
        ("I don't know whether it is the Lune", ["Lune"]),
        ("Unknown", ["Unknown Pleasures"]),
        ("", ["The"]),  # nothing is left of either
        (" ", [" "]),
    ],
)
def test_abstaining_from_a_question_that_has_an_answer_is_wrong(prediction: str, golds: list[str]) -> None:
    assert answer_scores(prediction, asked(*golds)) == dict.fromkeys(NAMES, 0.0)


@pytest.mark.parametrize("gold", ["None", "I Don't Know"])
def test_a_gold_answer_is_no_abstention(gold: str) -> None:
    assert answer_scores(gold.lower() + ".", asked(gold)) == dict.fromkeys(NAMES, 1.0)


@given(
    st.one_of(st.text(max_size=40), WORDS.map(" ".join)),
    st.lists(st.one_of(st.text(max_size=20), WORDS.map(" ".join)), max_size=3),
    st.sampled_from(["squad", "longbench"]),
    st.booleans(),
)
def test_every_figure_is_a_share(prediction: str, golds: list[str], standard: Standard, answerable: bool) -> None:
    found = answer_scores(prediction, asked(*golds, answerable=answerable), standard)
    assert tuple(found) == NAMES
    assert all(type(value) is float and 0 <= value <= 1 for value in found.values())  # NaN is not
    assert found["exact_match"] <= found["cover_em"]
    assert min(found["precision"], found["recall"]) <= found["f1"] + 1e-12


def test_an_unknown_standard_is_refused() -> None:
    with pytest.raises(UserFault, match="use one of squad, longbench"):
        answer_scores("Lune", asked("Lune"), "triviaqa")  # type: ignore[arg-type]
