"""The uncertainty of answers from the log-probabilities of their tokens."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import UserFault

TOLERANCE = 1e-6  # rounding may put a log-probability this far above 0


def perplexity(log_probs: ArrayLike) -> float:
    """The perplexity of one answer, exp(−mean log p): the "perplexity" estimator of SeaKR, section 5.1.

    log_probs: [T], the natural log-probabilities of the answer's tokens, at most 0 (values up to 1e-6 count as 0).
    Returns a number in [1, inf] without a unit: 1 if every token was certain, V if every token was drawn uniformly from
    V tokens, inf if a token has probability 0 or the result is too large for a float.
    Raises `UserFault`, a ValueError, for an answer without tokens, for NaN and for a log-probability above 0.
    """
    return _exp(_surprisal(log_probs, "The answer"))


def multi_perplexity(log_probs: Sequence[ArrayLike]) -> float:
    """The mean perplexity of n sampled answers: the "multi-perplexity" estimator of SeaKR, section 5.1 (n = 20).

    log_probs: n arrays [T_i], as for `perplexity`.
    Returns a number in [1, inf] without a unit: 1 if every token was certain, inf if a token has probability 0.
    Raises `UserFault`, a ValueError, for no answers, and for an answer that `perplexity` refuses.
    """
    surprisals = _surprisals(log_probs)
    # divide before the sum: the sum may overflow
    return math.fsum(_exp(surprisal) / len(surprisals) for surprisal in surprisals)


def length_normalised_entropy(log_probs: Sequence[ArrayLike]) -> float:
    """Length-normalised predictive entropy of n sampled answers (Malinin & Gales 2021; SeaKR's "LN-Entropy").

    The Monte-Carlo estimate −(1/n) Σ_i (mean log p over answer i's tokens): long and short answers weigh the same.
    log_probs: n arrays [T_i], as for `perplexity`. The estimate is unbiased for answers sampled at temperature 1.
    Returns nats per token in [0, inf]: 0 if every token was certain.
    Raises `UserFault`, a ValueError, for no answers, and for an answer that `perplexity` refuses.
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
    """The mean of −log p over an answer's tokens, nats in [0, inf]. answer: its name in error messages."""
    logs = checked_log_probs(log_probs, answer)
    if not logs.size:
        raise UserFault(f"{answer} has no tokens: leave empty answers out.")
    return float(np.abs(logs).mean())


def checked_log_probs(log_probs: ArrayLike, answer: str) -> NDArray[np.float64]:
    """The log-probabilities [T] of an answer's tokens, at most 0; T may be 0. answer: its name in error messages."""
    logs = np.asarray(log_probs, dtype=np.float64)
    if logs.ndim != 1:
        raise UserFault(f"{answer}'s log-probabilities have shape {logs.shape}: give one for each token, as [T].")
    if np.isnan(logs).any():
        raise UserFault(f"{answer} has a token whose log-probability is NaN or missing: leave that answer out.")
    if logs.size and logs.max() > TOLERANCE:
        raise UserFault(
            f"{answer} has a token of log-probability {logs.max():.6g}: give natural logarithms, which are at most 0."
        )
    return np.minimum(logs, 0)
