"""Uncertainty of answers from the log-probabilities of their own tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from ..errors import UserFault

TOLERANCE = 1e-6  # how far above 0 rounding may lift a log-probability


def perplexity(log_probs: ArrayLike) -> float:
    """Perplexity of one answer, exp(−mean log p): the "perplexity" estimator of SeaKR, section 5.1.

    log_probs: [T], the natural log-probability of each of the answer's tokens, at most 0 (up to 1e-6 more counts as 0).
    Returns a number in [1, inf], no unit: 1 when every token was certain, V when each was as likely as one of V equal
    ones, inf when a token has probability 0 or the result is too large for a float.
    Raises `UserFault`, a ValueError, for an answer without tokens, for NaN and for a log-probability above 0.
    """
    return _exp(_surprisal(log_probs, "The answer"))


def multi_perplexity(log_probs: Sequence[ArrayLike]) -> float:
    """The mean perplexity of n sampled answers: the "multi-perplexity" estimator of SeaKR, section 5.1, there of 20.

    log_probs: n arrays [T_i], as for `perplexity`.
    Returns a number in [1, inf], no unit: 1 when every token was certain, inf when one has probability 0.
    Raises `UserFault`, a ValueError, for no answers and wherever `perplexity` would for one of them.
    """
    surprisals = _surprisals(log_probs)
    # each divided first: their sum may be too large for a float where their mean is not
    return math.fsum(_exp(surprisal) / len(surprisals) for surprisal in surprisals)


def length_normalised_entropy(log_probs: Sequence[ArrayLike]) -> float:
    """Length-normalised predictive entropy of n sampled answers (Malinin & Gales 2021; SeaKR's "LN-Entropy").

    The Monte-Carlo estimate −(1/n) Σ_i mean log p of answer i's tokens: every answer weighs the same, however long.
    log_probs: n arrays [T_i], as for `perplexity`, of answers sampled at temperature 1 (of others it is a biased
    estimate).
    Returns nats per token in [0, inf]: 0 when every token was certain.
    Raises `UserFault`, a ValueError, for no answers and wherever `perplexity` would for one of them.
    """
    surprisals = _surprisals(log_probs)
    return math.fsum(surprisals) / len(surprisals)


def _exp(surprisal: float) -> float:
    try:
        return math.exp(surprisal)
    except OverflowError:
        return math.inf


def _surprisals(log_probs: Sequence[ArrayLike]) -> list[float]:
    if not len(log_probs):
        raise UserFault("There is no answer to measure: sample at least one.")
    return [_surprisal(answer, f"Answer {i}") for i, answer in enumerate(log_probs)]


def _surprisal(log_probs: ArrayLike, answer: str) -> float:
    """The mean of −log p over an answer's tokens, nats in [0, inf]; answer: what a fault's message calls it."""
    logs = np.asarray(log_probs, dtype=np.float64)
    if logs.ndim != 1:
        raise UserFault(f"{answer}'s log-probabilities have shape {logs.shape}: give one for each token, as [T].")
    if not logs.size:
        raise UserFault(f"{answer} has no tokens: leave empty answers out.")
    if np.isnan(logs).any():
        raise UserFault(f"{answer} has a token whose log-probability is NaN or missing: leave that answer out.")
    if logs.max() > TOLERANCE:
        raise UserFault(
            f"{answer} has a token of log-probability {logs.max():.6g}: give natural logarithms, which are at most 0."
        )
    return float(np.abs(np.minimum(logs, 0)).mean())
