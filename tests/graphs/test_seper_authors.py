"""SePer against the values of its authors' functions (tests/authors/seper.json), and against the paper's formulas."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dubito.graphs import seper
from dubito.models.interfaces import Completion, Judgements, Token
from dubito.resources.resources import Resources
from dubito.tests.scripted import Believer

RECORDED = json.loads((Path(__file__).parent.parent / "authors" / "seper.json").read_text())
CASES = RECORDED["cases"]
ONE, SEVERAL = CASES[:8], CASES[8:]
END = -0.7
"""The log-probability of the end-of-turn token, which the authors leave out."""

AUTHORS: dict[str, Any] = {"end_of_turn": False, "question_mark": True}
HARD: dict[str, Any] = {**AUTHORS, "rule": "hard", "several_answers": "union", "cluster_founder": "last"}


def probabilities(case: dict[str, Any]) -> dict[tuple[str, str], dict[str, float]]:
    """P(label) of each ordered pair of texts."""
    found = {}
    for first, second, logits in case["logits"]:
        shares = [math.exp(x - max(logits)) for x in logits]
        found[first, second] = {label: x / sum(shares) for label, x in zip(RECORDED["labels"], shares, strict=True)}
    return found


class Recorded:
    """The judge of a recorded case. It must be asked about the question as the authors' judge was."""

    name = "recorded"

    def __init__(self, case: dict[str, Any], question: str) -> None:
        self.rows = probabilities(case)
        self.question = question

    async def judge(self, question: str, pairs: Sequence[tuple[str, str]]) -> Judgements:
        assert question == self.question
        return np.array(
            [[self.rows[pair][label] for label in ("entailment", "neutral", "contradiction")] for pair in pairs]
        )


async def measured(case: dict[str, Any], **settings: Any) -> dict[str, Any]:
    """The belief that the graph measures in the case's responses, each with its end-of-turn token."""
    said = [
        Completion(text, "stop", (*(Token("t", log) for log in logs), Token("", END)))
        for text, logs in case["responses"]
    ]
    judged = case["values"]["judged_question"] if settings.get("question_mark") else case["question"]
    opened = Resources(llm=Believer(believes=lambda question, shown: said), judge=Recorded(case, judged))
    graph: Any = seper.build(opened).compile()
    asked = {"question": case["question"], "answers": case["answers"], "chunks": []}
    found: dict[str, Any] = (await graph.ainvoke(asked, context={"samples": len(said), **settings}))["with_context"]
    return found


# --- the authors' values ---


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["question"])
async def test_the_weights_and_both_rules_are_the_authors(case: dict[str, Any]) -> None:
    values = case["values"]["in_order"]
    soft = await measured(case, **AUTHORS)
    assert [one["weight"] for one in soft["responses"]] == pytest.approx(case["values"]["weights"], abs=1e-12)
    assert soft["seper"] == pytest.approx(values["soft"], abs=1e-12)
    for rule in ("bidirectional", "loose"):
        hard = await measured(case, **HARD, cluster_rule=rule)
        assert hard["seper"] == pytest.approx(values[f"hard_{rule}"], abs=1e-12)


def test_as_published_several_answers_are_mixed_with_the_responses() -> None:
    assert all(case["values"]["published"] == case["values"]["in_order"] for case in ONE)
    for rule in ("soft", "hard_bidirectional", "hard_loose"):
        assert any(case["values"]["published"][rule] != case["values"]["in_order"][rule] for case in SEVERAL)


@pytest.mark.parametrize(
    ("changed", "cases"),
    [
        ({"cluster_founder": "first"}, ONE),
        ({"end_of_turn": True}, ONE),
        ({"several_answers": "max"}, SEVERAL),
        ({"match_rule": "bidirectional"}, ONE),
        ({"entailment_threshold": "0.9"}, ONE),
    ],
)
async def test_each_setting_leaves_the_authors_values(changed: dict[str, Any], cases: list[dict[str, Any]]) -> None:
    found = [(await measured(case, **HARD | changed | {"cluster_rule": "loose"}))["seper"] for case in cases]
    assert any(
        abs(one - case["values"]["in_order"]["hard_loose"]) > 1e-6 for one, case in zip(found, cases, strict=True)
    )


# --- the paper's formulas, in plain loops ---


def likelihoods(case: dict[str, Any]) -> list[float]:
    """p(r|q), a product over the tokens up to the end (equation 7), in shares."""
    products = []
    for _, logs in case["responses"]:
        product = 1.0
        for log in logs:
            product *= math.exp(log)
        products.append(product)
    return [product / sum(products) for product in products]


def soft_by_the_paper(case: dict[str, Any]) -> float:
    """Algorithm 1, SePer_S, E(r, a) in one direction, and the mean over all references (equation 10)."""
    entails = probabilities(case)
    total = 0.0
    for answer in case["answers"]:
        for weight, (text, _) in zip(likelihoods(case), case["responses"], strict=True):
            total += weight * entails[text, answer]["entailment"]
    return total / len(case["answers"])


def hard_by_the_paper(case: dict[str, Any], tau: float) -> float:
    """Algorithm 1, SePer_H: x ≡ y iff E(x, y) ≥ τ and E(y, x) ≥ τ (definition 2); equations 8 and 10."""
    entails = probabilities(case)

    def equivalent(x: str, y: str) -> bool:
        return x == y or (entails[x, y]["entailment"] >= tau and entails[y, x]["entailment"] >= tau)

    clusters: list[list[int]] = []
    texts = [text for text, _ in case["responses"]]
    for i, text in enumerate(texts):
        for cluster in clusters:
            if equivalent(texts[cluster[0]], text):
                cluster.append(i)
                break
        else:
            clusters.append([i])
    weights = likelihoods(case)
    total = 0.0
    for answer in case["answers"]:
        for cluster in clusters:
            if equivalent(texts[cluster[0]], answer):
                total += sum(weights[i] for i in cluster)
    return total / len(case["answers"])


PAPER: dict[str, Any] = {"likelihood": "sum", "several_answers": "mean", "end_of_turn": False}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["question"])
async def test_the_formulas_are_the_papers(case: dict[str, Any]) -> None:
    soft = await measured(case, **PAPER, direction="forward")
    assert soft["seper"] == pytest.approx(soft_by_the_paper(case), abs=1e-12)
    for tau in (0.2, 0.6):
        hard = await measured(case, **PAPER, rule="hard", entailment_threshold=tau, match_rule="bidirectional")
        assert hard["seper"] == pytest.approx(hard_by_the_paper(case, tau), abs=1e-12)


def test_the_papers_cases_tell_thresholds_apart() -> None:
    found = [(hard_by_the_paper(case, 0.2), hard_by_the_paper(case, 0.6)) for case in CASES]
    assert sum(low != high for low, high in found) >= 8
