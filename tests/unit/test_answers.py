"""Exact match and F1, by hand and against torchmetrics' SQuAD."""

from __future__ import annotations

import pytest
from dubito.evals.answers import exact_match, f1, squad_normalised
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Lune.", "lune"),
        ("U.S.", "us"),
        ("an apple a day", "apple day"),
        ("Theatre", "theatre"),
        ("¿Qué?", "¿qué"),
    ],
)
def test_normalisation_is_squads(text: str, normal: str) -> None:
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


@settings(deadline=None, max_examples=100)
@given(WORDS, st.lists(WORDS, min_size=1, max_size=3))
def test_equal_to_torchmetrics(prediction: list[str], golds: list[list[str]]) -> None:
    squad = pytest.importorskip("torchmetrics.functional.text").squad
    said, texts = " ".join(prediction), [" ".join(gold) for gold in golds]
    target = {"answers": {"answer_start": [0] * len(texts), "text": texts}, "id": "1"}
    peer = squad([{"prediction_text": said, "id": "1"}], [target])
    assert exact_match(said, texts) * 100 == pytest.approx(float(peer["exact_match"]))
    # torchmetrics gives 0 where nothing is left of one of the two, SQuAD's script 1 where nothing is left of both
    if squad_normalised(said) and all(map(squad_normalised, texts)):
        assert f1(said, texts) * 100 == pytest.approx(float(peer["f1"]), rel=1e-5)
