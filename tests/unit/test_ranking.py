"""Ranking figures by hand and against their textbook formulas."""

from __future__ import annotations

import math
import re
import sys

import pytest
from dubito.errors import UserFault, extra_command
from dubito.evals.ranking import CUTOFFS, retrieval_scores

pytest.importorskip("ir_measures")


def test_by_hand() -> None:
    # gold on ranks 2 and 4; a third one was not found
    found = retrieval_scores(["a", "b", "c", "d"], ["b", "d", "x"], [1, 3, 5])
    assert found == pytest.approx(
        {
            "mrr": 1 / 2,
            "recall@1": 0,
            "precision@1": 0,
            "ndcg@1": 0,
            "recall@3": 1 / 3,
            "precision@3": 1 / 3,
            "ndcg@3": (1 / math.log2(3)) / (1 + 1 / math.log2(3) + 1 / 2),
            "recall@5": 2 / 3,
            "precision@5": 2 / 5,  # of five places, though four are taken
            "ndcg@5": (1 / math.log2(3) + 1 / math.log2(5)) / (1 + 1 / math.log2(3) + 1 / 2),
        }
    )
    assert {type(value) for value in found.values()} == {float}


def test_of_several_chunks_of_a_document_the_first_counts() -> None:
    chunks = ["a", "a", "b", "a", "c", "b"]
    assert retrieval_scores(chunks, ["c"], [2, 3]) == retrieval_scores(["a", "b", "c"], ["c"], [2, 3])
    assert retrieval_scores(chunks, ["c"], [3])["recall@3"] == 1
    assert retrieval_scores(["a"], ["a", "a"], [1])["recall@1"] == 1


def test_the_order_is_the_order_given() -> None:
    names = [f"d{i}" for i in range(30)]
    assert retrieval_scores(names, ["d11"])["mrr"] == pytest.approx(1 / 12)
    assert retrieval_scores(names[::-1], ["d11"])["mrr"] == pytest.approx(1 / 19)


def test_without_gold_documents_nothing_is_told() -> None:
    assert retrieval_scores(["a"], []) == {}


def test_nothing_retrieved_is_nothing_found() -> None:
    assert set(retrieval_scores([], ["a"]).values()) == {0.0}
    assert len(retrieval_scores([], ["a"])) == 1 + 3 * len(CUTOFFS)


def test_any_text_is_an_id() -> None:
    strange = ["\ud800", "a\0b", "", "naïve id", "0"]
    found = retrieval_scores(["x", *strange], strange, [6])
    assert (found["recall@6"], found["mrr"]) == (1, 0.5)


@pytest.mark.parametrize("cutoffs", [[0], [5, -1]])
def test_cutoffs_that_are_refused(cutoffs: list[int]) -> None:
    with pytest.raises(UserFault, match="at least 1"):
        retrieval_scores(["a"], ["a"], cutoffs)


def test_what_to_install_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ir_measures", None)
    with pytest.raises(UserFault, match=re.escape(extra_command("eval"))):
        retrieval_scores(["a"], ["a"])
