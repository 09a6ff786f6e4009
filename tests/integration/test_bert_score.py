"""BERTScore of real hidden states against torchmetrics, and greedy matching by hand."""

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from dubito.errors import UserFault
from dubito.evals.measuring import measure_bertscore
from dubito.evals.scores import scores_of
from dubito.models.bert_score import BertScorer, greedy_f1
from dubito.models.weights import minilm_folder
from dubito.tests.unit.test_evals_llm_judge import answered, store

__all__ = ["store"]

pytestmark = pytest.mark.weights

PAIRS = [
    ("the river Lune", "Lune"),
    ("Beatrix Hale founded it in 1897.", "It was founded by Beatrix Hale"),
    ("no", "yes"),
    ("Kirkby Lonsdale", "Kirkby Lonsdale"),
]


@pytest.mark.parametrize("layer", [4, 6])
async def test_f1_is_torchmetrics(layer: int) -> None:
    peer = pytest.importorskip("torchmetrics.functional.text.bert").bert_score
    # one pair a call: of several, torchmetrics returns the values in the order of the texts' lengths
    wanted = [
        float(peer([answer], [reference], model_name_or_path=str(minilm_folder()), num_layers=layer)["f1"])
        for answer, reference in PAIRS
    ]
    assert await BertScorer(str(minilm_folder()), layer).f1(PAIRS) == pytest.approx(wanted, abs=1e-5)


async def test_layer_0_is_the_last_and_an_empty_answer_has_0() -> None:
    last, named = BertScorer(str(minilm_folder())), BertScorer(str(minilm_folder()), 6)
    assert await last.f1([*PAIRS, ("", "Lune")]) == [*(await named.f1(PAIRS)), 0.0]
    assert await last.f1([]) == []


async def test_what_cannot_be_loaded_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserFault, match="it has 6 layers, and no layer 7"):
        await BertScorer(str(minilm_folder()), 7).f1(PAIRS)
    with pytest.raises(UserFault, match="There is no BERTScore model folder"):
        await BertScorer(str(tmp_path / "none")).f1(PAIRS)


def test_greedy_matching_by_hand() -> None:
    half = math.sqrt(0.5)
    answer, reference = np.array([[1.0, 0.0], [half, half]]), np.array([[0.0, 1.0]])
    # cosines 0 and √½: precision is their mean, recall the higher one
    assert greedy_f1(answer, reference) == pytest.approx(2 * (half / 2) * half / (half / 2 + half))
    assert greedy_f1(answer, np.zeros((0, 2))) == 0


async def test_the_answers_of_a_run(tmp_path: Path, store: object) -> None:
    run = answered(tmp_path, store, "the Lune", "the Wyre", "")  # type: ignore[arg-type]
    heard = SimpleNamespace(last=())
    scorer = BertScorer(str(minilm_folder()))
    await measure_bertscore(run, store, scorer, lambda *so_far: setattr(heard, "last", so_far))  # type: ignore[arg-type]
    found = [scores_of(run, store)["plain", f"own/{n}"].metrics["bertscore"] for n in range(3)]  # type: ignore[arg-type]
    assert found[0] == pytest.approx(1)
    assert found[0] > found[1] > found[2] == 0
    assert heard.last == (3, 3)
