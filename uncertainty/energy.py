"""Uncertainty of an answer from the logits it was drawn from."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import UserFault


def energy(logits: ArrayLike, temperature: float = 1.0) -> float:
    """The free energy of an answer's logits, the mean over its tokens of −T log Σ_v exp(logit_v / T).

    Liu et al. 2020, "Energy-based Out-of-distribution Detection", equation 4, of each token in place of an input; the
    "energy" estimator of SeaKR, section 5.1. Log-probabilities have none: of them it is 0 at T = 1 whatever the answer.
    logits: [T, V], for each of the answer's tokens those of the whole vocabulary; −inf is a token that is left out.
    temperature: T > 0, Liu's, which need not be the one the answer was sampled at.
    Returns a number in the logits' own unit, of any sign: the higher, the more uncertain.
    Raises `UserFault`, a ValueError, for another shape, no tokens, a token all of whose logits are −inf, NaN, +inf, and
    a temperature that is not above 0.
    """
    if not 0 < temperature < math.inf:
        raise UserFault(f"The temperature of the energy is {temperature:g}: give a number above 0, such as 1.")
    # a row at a time: [T, V] in float64 may be hundreds of megabytes
    tokens = np.asarray(logits)
    if tokens.ndim != 2 or not tokens.size:
        raise UserFault(f"The logits have shape {tokens.shape}: give a row for each token of the answer, as [T, V].")
    energies = [_free_energy(np.asarray(row, dtype=np.float64), temperature) for row in tokens]
    return math.fsum(energies) / len(energies)


def _free_energy(logits: NDArray[np.float64], temperature: float) -> float:
    highest = float(logits.max())  # NaN if any is
    if not math.isfinite(highest):
        raise UserFault(f"The highest logit of a token is {highest:g}: give logits that are finite, or −inf for some.")
    total = float(np.exp((logits - highest) / temperature).sum())
    return -(highest + temperature * math.log(total))
