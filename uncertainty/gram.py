"""The uncertainty of a prompt from the hidden states at the ends of its sampled continuations."""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import UserFault

LARGEST = float(np.finfo(np.float32).max)


def eigen_score(states: ArrayLike, alpha: float = 1e-3) -> float:
    """The regularised Gram determinant of k hidden states (SeaKR, section 3.4; the EigenScore of INSIDE).

    U = (1/k) log det(Z J Zᵀ + α I), J = I − (1/d) 1 1ᵀ: J subtracts each row's own mean. U is the mean logarithm of the
    eigenvalues of the Gram matrix. It grows with the number of directions in which the rows differ, and with their
    distance.

    states: Z, [k, d], k ≥ 2; a row is the hidden state of a continuation's last token. alpha: α > 0, which keeps the
    logarithm finite if rows are equal. Scores of different k, α, layers or models cannot be compared.
    Returns nats, at least log α. Equal rows of centred squared norm s give ((k − 1) log α + log(α + k s)) / k.

    Computed in float64 from the triangular factor of [Z J, √α I]ᵀ. This never forms the Gram matrix: the relative error
    of the smallest eigenvalue is about ε √(s / α), ε = 2e-16. With a Cholesky or LU factor of the matrix it would be
    ε s / α, and the factorisation would fail from s / α = 1 / ε on. Storing the states in float32 changes the score by
    less than 1e-5 if no entry exceeds 100 (tested at k = 20, d = 576).
    Raises `UserFault`, a ValueError, for fewer than two rows, another shape, an entry that is not finite in float32,
    and α ≤ 0.
    """
    if not 0 < alpha < math.inf:
        raise UserFault(f"The regularisation alpha is {alpha:g}: give a number above 0, such as 0.001.")
    rows = _checked(states)
    count = len(rows)
    centred = rows - rows.mean(axis=1, keepdims=True)
    factor = np.linalg.qr(np.vstack([centred.T, math.sqrt(alpha) * np.eye(count)]), mode="r")
    # only rounding puts a pivot below √α
    pivots = np.maximum(np.abs(np.diagonal(factor)), math.sqrt(alpha))
    return 2 * math.fsum(np.log(pivots)) / count


def _checked(states: ArrayLike) -> NDArray[np.float64]:
    try:
        rows = np.asarray(states, dtype=np.float64)
    except (TypeError, ValueError) as fault:
        raise UserFault(
            "The hidden states are not an array of numbers: give rows of equal length, as [k, d]."
        ) from fault
    if rows.ndim != 2 or not rows.size:
        raise UserFault(f"The hidden states have shape {rows.shape}: give one row for each continuation, as [k, d].")
    if len(rows) < 2:
        raise UserFault("There is one hidden state: sample at least two continuations to compare.")
    if not (np.abs(rows) <= LARGEST).all():  # NaN fails too
        raise UserFault("A hidden state holds a number that is not finite: leave that continuation out.")
    return rows
