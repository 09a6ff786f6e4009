"""Uncertainty of a model's continuations from its own hidden states at their ends."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import UserFault

LARGEST = float(np.finfo(np.float32).max)


def eigen_score(states: ArrayLike, alpha: float = 1e-3) -> float:
    """How far k continuations of one prompt disagree inside the model (SeaKR, section 3.4; INSIDE's EigenScore).

    U = (1/k) log det(Z J Zᵀ + α I), J = I − (1/d) 1 1ᵀ, which takes each row's own mean away. The mean logarithm of the
    eigenvalues of the rows' Gram matrix: the more directions they spread in, and the wider, the higher it is.

    states: Z, [k, d], a row for each continuation, the hidden state of its last token; k ≥ 2. alpha: α > 0, what keeps
    the logarithm finite where rows are alike; scores of different k, α, layer or model cannot be compared.
    Returns nats, at least log α; equal rows of centred squared norm s give ((k − 1) log α + log(α + k s)) / k.

    Computed in float64 from the triangular factor of [Z J, √α I]ᵀ, for the matrix itself is never formed: its smallest
    eigenvalues come out wrong by about ε √(s / α) of their size, ε = 2e-16, where Cholesky or LU factors of it have
    them wrong by ε s / α and break down from s / α = 1 / ε on. States that were kept in float32 change the score by
    less than 1e-5 if none of their numbers exceeds 100 (measured at k = 20, d = 576, rows that differ by 0 and by
    1e-7 to 1 of their size: a test of this repository).
    Raises `UserFault`, a ValueError, for fewer than two rows, another shape, a number that is not finite (in float32),
    and an α that is not above 0.
    """
    if not 0 < alpha < math.inf:
        raise UserFault(f"The regularisation alpha is {alpha:g}: give a number above 0, such as 0.001.")
    rows = _checked(states)
    count = len(rows)
    centred = rows - rows.mean(axis=1, keepdims=True)
    factor = np.linalg.qr(np.vstack([centred.T, math.sqrt(alpha) * np.eye(count)]), mode="r")
    # no pivot is below √α but by rounding
    pivots = np.maximum(np.abs(np.diagonal(factor)), math.sqrt(alpha))
    return 2 * math.fsum(np.log(pivots)) / count


def _checked(states: ArrayLike) -> NDArray[np.float64]:
    try:
        rows = np.asarray(states, dtype=np.float64)
    except (TypeError, ValueError) as fault:
        raise UserFault("The hidden states are no array of numbers: give rows of one length, as [k, d].") from fault
    if rows.ndim != 2 or not rows.size:
        raise UserFault(f"The hidden states have shape {rows.shape}: give one row for each continuation, as [k, d].")
    if len(rows) < 2:
        raise UserFault("There is one hidden state: sample at least two continuations to compare.")
    if not (np.abs(rows) <= LARGEST).all():  # nor is NaN
        raise UserFault("A hidden state holds a number that is not finite: leave that continuation out.")
    return rows
