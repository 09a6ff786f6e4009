"""Records the scores of the formula in SeaKR's published code, in float64, for the states of `cases`.

The code is under the GPL and is not part of this repository: it is read from a checkout of THU-KEG/SeaKR, and only the
numbers that it computes are kept.

    git clone https://github.com/THU-KEG/SeaKR
    python tests/record_eigen_scores.py SeaKR/vllm_uncertainty/vllm/engine/llm_engine.py
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np

SCORES = Path(__file__).parent / "golden" / "seakr_eigen_scores.json"


def cases() -> Iterator[tuple[np.ndarray, float]]:
    """States [k, d] and α: as far apart as told, around a common direction, as those of samples are."""
    for number, (k, d, common, spread, alpha) in enumerate(
        [
            (20, 4096, 0.05, 0.01, 1e-3),
            (20, 4096, 0.05, 0.0, 1e-3),
            (20, 576, 1.0, 1.0, 1e-3),
            (20, 576, 5.0, 0.1, 1e-3),
            (10, 64, 0.0, 2.0, 1e-3),
            (5, 3, 1.0, 1.0, 1e-3),
            (2, 8, 1.0, 0.5, 0.1),
        ]
    ):
        draw = np.random.default_rng(number)
        yield draw.normal(0.3, common, size=d) + draw.normal(0, 1, size=(k, d)) * spread, alpha


def main(source: str) -> None:
    """Run the method of the published code, its arithmetic set to float64, on every case."""
    import torch  # noqa: PLC0415 - for those who record alone

    tree = ast.parse(Path(source).read_text(encoding="utf-8"))
    [method] = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "_compute_eigen_score"
    ]
    for node in ast.walk(method):
        if isinstance(node, ast.Attribute) and node.attr == "float32":
            node.attr = "float64"
    torch.set_default_dtype(torch.float64)
    names = {"torch": torch}
    exec(compile(ast.Module([method], []), source, "exec"), names)
    scores = [
        names["_compute_eigen_score"](SimpleNamespace(eigen_alpha=alpha), torch.tensor(states))  # type: ignore[operator]
        for states, alpha in cases()
    ]
    SCORES.write_text(json.dumps(scores) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
