"""Answer metrics on thousands of real answers: EVOUNA's, of five systems, against its gold answers."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from dubito.benchmarks.evouna import SETS, Judged, distinct, judged_answers
from dubito.evals.answers import exact_match, f1, rouge_l, squad_normalised
from dubito.state.abstention import abstains


@pytest.fixture(scope="module")
def answers(test_data: Path) -> list[Judged]:
    folder = test_data / "data" / "evouna"
    return [one for name in SETS for one in judged_answers(folder, name)]


def test_exact_match_and_f1_are_torchmetrics(answers: list[Judged]) -> None:
    squad = pytest.importorskip("torchmetrics.functional.text").squad
    assert len(answers) > 2000
    for one in answers[::3]:
        target = {"answers": {"answer_start": [0] * len(one.golds), "text": list(one.golds)}, "id": "1"}
        peer = squad([{"prediction_text": one.said, "id": "1"}], [target])
        assert exact_match(one.said, one.golds) * 100 == float(peer["exact_match"]), one
        # where something is left of every answer there is no difference
        if squad_normalised(one.said) and all(map(squad_normalised, one.golds)):
            assert math.isclose(f1(one.said, one.golds) * 100, float(peer["f1"]), rel_tol=1e-5), one


def test_rouge_l_is_torchmetrics_where_all_letters_are_ascii(answers: list[Judged]) -> None:
    rouge = pytest.importorskip("torchmetrics.functional.text.rouge").rouge_score
    plain = [one for one in answers if "".join((one.said, *one.golds)).isascii()]
    assert len(plain) > 1500
    for one in plain[::4]:
        peers = [float(rouge(one.said, gold, rouge_keys="rougeL")["rougeL_fmeasure"]) for gold in one.golds[:5]]
        assert math.isclose(rouge_l(one.said, one.golds[:5]), max(peers), rel_tol=1e-5, abs_tol=1e-9), one


def test_what_abstains_was_called_right_by_no_human(answers: list[Judged]) -> None:
    abstaining = [one for one in answers if abstains(one.said)]
    assert len(abstaining) > 15
    assert not any(one.right for one in abstaining)


def test_spellings_of_a_gold_answer_are_one() -> None:
    one = Judged("?", "fid", "Lune", ("The Lune", "Wyre", "lune!", "Wyre river"), right=True)
    assert distinct(one).golds == ("The Lune", "Wyre", "Wyre river")
