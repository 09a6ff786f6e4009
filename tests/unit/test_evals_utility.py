"""The metrics of SePer's table 2, by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
from dubito.evals.questions import GoldQuestion
from dubito.evals.seper import SePerResult
from dubito.evals.utility import belief_metrics, utilities

QUESTION = GoldQuestion("Which river?", ("the river Lune",))


def belief(*responses: tuple[str, float | None, int, float, float, int | None], seper: float = 0.0) -> Any:
    """Responses: text, log-probability, tokens, weight, P(response entails answer), cluster."""
    keys = ("text", "log_probability", "tokens", "weight")
    clusters = {response[5] for response in responses} - {None}
    return {
        "seper": seper,
        "by_answer": [seper],
        "responses": [
            {**dict(zip(keys, response, strict=False)), "cut": False, "entails": [response[4]], "entailed": [0.1]}
            | {"cluster": response[5]}
            for response in responses
        ],
        "clusters": [{"first": "", "weight": 0.0, "matches": [True]} for _ in clusters],
    }


LUNE = ("the river Lune", math.log(0.25), 2, 0.75, 1.0, 0)
WYRE = ("the Wyre", math.log(0.5), 1, 0.25, 0.0, 1)


def test_the_metrics_of_one_side_by_hand() -> None:
    found = belief_metrics(belief(LUNE, WYRE, seper=0.75), QUESTION)
    assert found == {
        "exact_match": 0.5,
        "rouge_l": pytest.approx((1 + 2 / 5) / 2),  # "the" is 1 of 2 and 1 of 3 words
        "bleu": pytest.approx((1 + math.exp(1 - 3 / 2) * (1 / 2 * 1 / 2) ** 0.25) / 2),  # 1 of 2 words, 0 + 1 of 1 + 1
        "perplexity": pytest.approx(2.0),  # both have 1/2 per token
        "entropy": pytest.approx(math.log(2)),
        "seper_soft": pytest.approx(0.75 + 0.25 * 0.1),
        "semantic_entropy": pytest.approx(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25))),
        "seper_hard": 0.75,
    }


def test_a_utility_is_positive_where_the_evidence_helps() -> None:
    unsure = ("the Wyre", math.log(0.125), 1, 0.5, 0.0, 1)
    found = utilities(SePerResult(belief(LUNE, seper=1.0), belief(WYRE, unsure, LUNE)), QUESTION)
    assert found.keys() == belief_metrics(belief(LUNE), QUESTION).keys()
    assert min(found.values()) > 0
    assert found["perplexity"] == pytest.approx((2 + 8 + 2) / 3 - 2)
    assert found["exact_match"] == pytest.approx(1 - 1 / 3)


def test_a_similarity_is_the_mean_over_the_responses() -> None:
    found = utilities(
        SePerResult(belief(LUNE), belief(LUNE, WYRE)), QUESTION, {"the river Lune": 0.9, "the Wyre": 0.4}.__getitem__
    )
    assert found["similarity"] == pytest.approx(0.9 - 0.65)


def test_metrics_that_one_side_lacks_are_left_out() -> None:
    soft = belief(("the Wyre", None, 0, 1.0, 0.0, None))
    assert belief_metrics(soft, QUESTION).keys() == {"exact_match", "rouge_l", "bleu", "seper_soft"}
    assert utilities(SePerResult(belief(LUNE), soft), QUESTION).keys() == belief_metrics(soft, QUESTION).keys()
