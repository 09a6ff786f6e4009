"""Record what the functions of SePer's authors return, for tests/graphs/test_seper_authors.py.

    git clone https://github.com/sepermetric/seper /tmp/seper
    python tests/authors/record_seper.py /tmp/seper

It writes seper.json beside itself. Their code (Apache License 2.0) is imported and run, and nothing of it is kept here.
The responses, the answers and the judge's logits are random: the values show what the functions compute from them.

Of several right answers, their code asks the judge about all responses for the first answer, then about all for the
second, and reads the replies as if all answers came for the first response, then all for the second. So each value is
recorded twice: `published`, and `in_order` with a judge that replies in the order in which the replies are read.
"""

from __future__ import annotations

import json
import subprocess
import sys
import types
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import numpy as np
import torch

CASES = 8
"""Cases for each number of right answers."""

LABELS = ("contradiction", "neutral", "entailment")
"""The order of the logits that their code expects."""


class Judge:
    """Their entailment model: logits for each pair of texts. right: to reorder the replies about these answers."""

    def __init__(self, question: str, logits: dict[tuple[str, str], list[float]], right: list[str]) -> None:
        self.logits = {(f"{question} {a}", f"{question} {b}"): row for (a, b), row in logits.items()}
        self.right = {f"{question} {answer}" for answer in right}

    def check_implication(self, first: list[str], second: list[str]) -> Any:
        """The likeliest label and the logits of each pair."""
        rows = np.array([self.logits[pair] for pair in zip(first, second, strict=True)])
        if self.right and (self.right.issuperset(first) or self.right.issuperset(second)):
            rows = rows.reshape(len(self.right), -1, len(LABELS)).swapaxes(0, 1).reshape(-1, len(LABELS))
        logits = torch.tensor(rows)
        return logits.argmax(dim=1), logits


def drawn(seed: int, right: int) -> dict[str, Any]:
    """A question with random responses, right answers and logits; two of the responses are equal."""
    chance = np.random.default_rng(seed)
    responses = [f"response {number}" for number in range(int(chance.integers(4, 9)))]
    responses.append(str(chance.choice(responses)))
    answers = [f"answer {number}" for number in range(right)]
    texts = sorted({*responses, *answers})
    logits = []
    for first in texts:
        for second in texts:
            row = chance.normal(0, 2, 3) + np.array([-1, 0, 0])
            logits.append([first, second, [0.0, 0.0, 1e3] if first == second else [round(float(x), 3) for x in row]])
    tokens = [[round(-float(x), 3) for x in chance.exponential(1, int(chance.integers(1, 6)))] for _ in responses]
    return {
        "question": f"question {seed}" + "?" * (seed % 2),
        "answers": answers,
        "responses": [list(each) for each in zip(responses, tokens, strict=True)],
        "logits": logits,
    }


def recorded(case: dict[str, Any], calculate: Any) -> dict[str, Any]:
    """What their functions return for a case."""
    item = calculate.process_item_for_seper({**case, "context": ""})
    logits = {(first, second): row for first, second, row in case["logits"]}
    batch = {name: [item[name]] for name in ("question", "response_text", "answers", "likelihood", "log_liks_agg")}
    values: dict[str, Any] = {"judged_question": item["question"], "weights": item["likelihood"].tolist()}
    for name, right in (("published", []), ("in_order", case["answers"])):
        judge = Judge(item["question"], logits, right)
        values[name] = {
            "soft": float(calculate.calculate_uncertainty_soft_batch(batch, judge, 10**6)[0]),
            "hard_bidirectional": float(
                calculate.calculate_uncertainty_hard_batch(batch, judge, strict_entailment=True)
            ),
            "hard_loose": float(calculate.calculate_uncertainty_hard_batch(batch, judge, strict_entailment=False)),
        }
    return values


def main(code: Path) -> None:
    """Run their functions on all cases and write the values."""
    sys.path.insert(0, str(code))
    for name in ("wandb", "accelerate"):  # imported there, and not used by these functions
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__spec__ = ModuleSpec(name, None)
    calculate: Any = import_module("seper.calculate")
    entropy: Any = import_module("seper.uncertainty_measures.semantic_entropy")
    calculate.logsumexp_by_id = entropy.logsumexp_by_id  # the import that their hard rule lacks
    cases = [drawn(100 * right + number, right) for right in (1, 2, 3) for number in range(CASES)]
    commit = subprocess.run(["git", "-C", code, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    found = {
        "code": "https://github.com/sepermetric/seper, Apache License 2.0",
        "commit": commit.stdout.strip(),
        "labels": LABELS,
        "cases": [{**case, "values": recorded(case, calculate)} for case in cases],
    }
    (Path(__file__).parent / "seper.json").write_text(json.dumps(found, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
