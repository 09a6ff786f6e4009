"""nearest: the rows with the highest cosines, equals by row."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from dubito.retrieval import pool
from dubito.retrieval.pool import nearest


def random_unit(seed: int, rows: int, dimensions: int) -> Any:
    vectors = np.random.default_rng(seed).standard_normal((rows, dimensions)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.mark.parametrize("count", [0, 1, 5, 39, 40, 100])
def test_the_rows_are_those_of_sums_without_rounding(count: int) -> None:
    vectors, vector = random_unit(1, 40, 12), random_unit(2, 1, 12)[0]
    exact = [sum(Fraction(float(a)) * Fraction(float(b)) for a, b in zip(row, vector, strict=True)) for row in vectors]
    assert nearest(vectors, vector, count) == sorted(range(40), key=lambda row: (-exact[row], row))[:count]


@pytest.mark.parametrize("rows", [7, 33, 1030])
@pytest.mark.parametrize("dimensions", [3, 17, 384])
def test_of_equal_vectors_the_lowest_rows_come_first(rows: int, dimensions: int) -> None:
    # BLAS adds up a row in another order if it stands at the end of a block
    vectors = np.repeat(random_unit(3, 1, dimensions), rows, axis=0)
    for seed in range(20):
        assert nearest(vectors, random_unit(seed, 1, dimensions)[0], 5) == [0, 1, 2, 3, 4]


def test_rounding_of_the_product_does_not_show() -> None:
    class Noisy(np.ndarray):
        def __matmul__(self, other: Any) -> Any:
            exact = np.asarray(self) @ other
            return exact + np.float32(64 * 2.0**-24) * np.random.default_rng().choice([-1, 1], size=exact.shape)

    vectors, vector = random_unit(4, 300, 64), random_unit(5, 1, 64)[0]
    vectors[150:] = vectors[:150]
    expected = nearest(vectors, vector, 10)
    assert [row + 150 for row in expected[::2]] == expected[1::2]
    for _ in range(10):
        assert nearest(vectors.view(Noisy), vector, 10) == expected


def test_cosines_of_equal_vectors_are_equal() -> None:
    vectors = np.repeat(random_unit(6, 1, 384), 50, axis=0)
    assert len(set(pool.cosines(vectors, range(50), random_unit(7, 1, 384)[0]).tolist())) == 1
