"""The uncertainty of an answer from its tokens' logits."""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import UserFault


def energy(logits: ArrayLike, temperature: float = 1.0) -> float:
    """The mean free energy of an answer's tokens: −T log Σ_v exp(logit_v / T).

    Equation 4 of Liu et al. 2020, "Energy-based Out-of-distribution Detection", applied to each token; the "energy"
    estimator of SeaKR, section 5.1. It needs logits: log-probabilities give 0 at T = 1 for every answer.
    logits: [tokens, vocabulary]; −inf excludes a word of the vocabulary.
    temperature: T > 0 of the formula; it may differ from the sampling temperature.
    Returns a number in the unit of the logits, of any sign; higher is more uncertain.
    Raises `UserFault`, a ValueError, for another shape, no tokens, NaN, +inf, a token with only −inf logits, and T ≤ 0.
    """
    if not 0 < temperature < math.inf:
        raise UserFault(f"The temperature of the energy is {temperature:g}: give a number above 0, such as 1.")
    # one row at a time: the whole array in float64 may have hundreds of megabytes
    tokens = np.asarray(logits)
    if tokens.ndim != 2 or not tokens.size:
        raise UserFault(
            f"The logits have shape {tokens.shape}: give a row for each token of the answer, as [tokens, vocabulary]."
        )
    energies = [_free_energy(np.asarray(row, dtype=np.float64), temperature) for row in tokens]
    return math.fsum(energies) / len(energies)


def _free_energy(logits: NDArray[np.float64], temperature: float) -> float:
    highest = float(logits.max())  # NaN if any logit is NaN
    if not math.isfinite(highest):
        raise UserFault(f"The highest logit of a token is {highest:g}: give logits that are finite, or −inf for some.")
    total = float(np.exp((logits - highest) / temperature).sum())
    return -(highest + temperature * math.log(total))
