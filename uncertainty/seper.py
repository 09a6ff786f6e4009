"""SePer: a model's belief in the right answer (Dai et al., ICLR 2025)."""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import UserFault
from .likelihood import checked_log_probs

TOLERANCE = 1e-6
"""How far rounding may move a probability out of [0, 1]."""


def response_weights(
    log_probs: Sequence[ArrayLike], likelihood: Literal["mean", "sum"] = "mean"
) -> NDArray[np.float64]:
    """The weights of n responses sampled from one prompt: their likelihoods ℓ, normalised to sum 1.

    log_probs: n arrays [T_i] of the natural log-probability of each token. Equation 7 ends before the end-of-turn
    token, as the authors' code does; whether to give it is the caller's choice. A value may exceed 0 by at most 1e-6,
    which counts as 0; −inf is a token of probability 0.
    likelihood: "mean": ℓ_i = exp(mean log p), so that long responses weigh no less than short ones (the authors' code);
    "sum": the product of the probabilities (equation 7).
    Returns [n], each in [0, 1], with sum 1. A response without tokens, or with a token of probability 0, has weight 0.
    If that holds for every response, all weights are equal.
    Raises `UserFault`, a ValueError, for no responses, NaN, a log-probability above 0 and an unknown `likelihood`.
    """
    if likelihood not in {"mean", "sum"}:
        raise UserFault(f'There is no likelihood "{likelihood}": choose "mean" or "sum".')
    if not len(log_probs):
        raise UserFault("There is no response to weigh: sample at least one.")
    logs = np.array([_log_likelihood(tokens, i, likelihood) for i, tokens in enumerate(log_probs)])
    if np.isneginf(logs).all():
        return np.full(len(logs), 1 / len(logs))
    # relative to the maximum, because the product over a long response may underflow
    return _normalised(np.exp(logs - logs.max()))


def seper_soft(
    likelihoods: ArrayLike,
    forward: ArrayLike,
    backward: ArrayLike | None = None,
    several_answers: Literal["max", "mean"] = "max",
) -> float:
    """The belief in the right answer; each response counts by the probability that it entails it (algorithm 1).

    SePer(a) = Σ_i ℓ_i k_i(a). The kernel k_i(a) is P(response i ⊨ answer a); with `backward`, it is the greater of both
    directions ("either", the authors' code for one right answer; for several it mixes responses and answers).
    likelihoods: [n], at least 0 with a sum above 0; they are normalised. forward, backward: [n, a], P(response ⊨
    answer) and P(answer ⊨ response); NaN (unknown) counts as 0.
    several_answers: "max": the belief in the right answer with the highest belief; "mean": the mean (equation 10).
    Returns a number in [0, 1].
    Raises `UserFault`, a ValueError, for an argument that does not fit this description.
    """
    weights = _weights(likelihoods)
    kernel = _probabilities(forward, len(weights), "forward")
    if backward is not None:
        other = _probabilities(backward, len(weights), "backward")
        if other.shape != kernel.shape:
            raise UserFault(f"forward has shape {kernel.shape} but backward {other.shape}: judge the same answers.")
        kernel = np.maximum(kernel, other)
    return _over_answers([math.fsum(weights * column) for column in kernel.T], several_answers)


def seper_hard(
    likelihoods: ArrayLike,
    clusters: ArrayLike,
    matches: ArrayLike,
    several_answers: Literal["max", "mean", "union"] = "max",
) -> float:
    """The belief in the right answer: the likelihood of the semantic clusters that match it (equations 6 and 8).

    SePer(a) = the sum of ℓ_i over the responses in clusters whose first member matches a.
    likelihoods: [n], at least 0 with a sum above 0; they are normalised. clusters: [n], cluster ids from 0, as
    `semantic_clusters` returns them. matches: [clusters] bool, or [clusters, a] for several right answers; see
    `gold_matches`.
    several_answers: "max": the belief in the right answer with the highest belief; "mean": the mean (equation 10);
    "union": a cluster counts if it matches any right answer (section 3.4 in words, and the purpose of the authors'
    code), which is at least "max".
    Returns a number in [0, 1].
    Raises `UserFault`, a ValueError, for an argument that does not fit this description.
    """
    weights = _weights(likelihoods)
    ids = np.asarray(clusters)
    if ids.shape != weights.shape or not np.issubdtype(ids.dtype, np.integer):
        raise UserFault(f"The clusters have shape {ids.shape} and there are {len(weights)} responses: give an id each.")
    matched = np.asarray(matches)
    matched = matched[:, None] if matched.ndim == 1 else matched
    if matched.ndim != 2 or not matched.size or not np.isin(matched, [0, 1]).all():
        raise UserFault(
            f"The matches have shape {matched.shape}: give true or false for each cluster, and each answer."
        )
    if ids.min() < 0 or ids.max() >= len(matched):
        raise UserFault(f"The clusters go from {ids.min()} to {ids.max()} and there are matches for {len(matched)}.")
    if several_answers == "union":
        matched, several_answers = np.asarray(matched.any(axis=1))[:, None], "max"
    beliefs = [math.fsum(weights[column[ids].astype(np.bool_)]) for column in matched.T]
    return _over_answers(beliefs, several_answers)


def gold_matches(
    entails: ArrayLike, contradicts: ArrayLike, rule: Literal["loose", "bidirectional"] = "loose"
) -> NDArray[np.bool_]:
    """Which clusters match which right answers, by the clusters' first members.

    entails, contradicts: [2, clusters, a] bool; index 0: first member towards answer, index 1: answer towards first
    member. rule: "loose": at least one direction entails and no direction contradicts (the authors' code);
    "bidirectional": both directions entail (equation 8). `semantic_clusters` has the same rules.
    Returns [clusters, a].
    Raises `UserFault`, a ValueError, for an unknown rule and for arrays that do not fit this description.
    """
    entailed, contradicted = np.asarray(entails), np.asarray(contradicts)
    if entailed.ndim != 3 or len(entailed) != 2 or entailed.shape != contradicted.shape:
        raise UserFault(
            f"entails has shape {entailed.shape}, contradicts {contradicted.shape}: give both as [2, clusters, a]."
        )
    if not (np.isin(entailed, [0, 1]).all() and np.isin(contradicted, [0, 1]).all()):
        raise UserFault("entails and contradicts must be true or false: compare probabilities with a threshold first.")
    if rule == "bidirectional":
        return np.asarray(entailed.astype(np.bool_).all(axis=0))
    if rule != "loose":
        raise UserFault(f'There is no rule "{rule}" for matches: choose "loose" or "bidirectional".')
    return np.asarray(entailed.astype(np.bool_).any(axis=0) & ~contradicted.astype(np.bool_).any(axis=0))


def _log_likelihood(log_probs: ArrayLike, position: int, likelihood: str) -> float:
    logs = checked_log_probs(log_probs, f"Response {position}")
    if not logs.size:
        return -math.inf
    total = float(logs.sum())
    return total / logs.size if likelihood == "mean" else total


def _weights(likelihoods: ArrayLike) -> NDArray[np.float64]:
    weights = np.asarray(likelihoods, dtype=np.float64)
    if weights.ndim != 1 or not weights.size:
        raise UserFault(f"The likelihoods have shape {weights.shape}: give one for each response, as [n].")
    if not np.isfinite(weights).all() or weights.min() < 0 or not weights.max() > 0:
        raise UserFault("The likelihoods are not all finite and at least 0, or all are 0: see response_weights.")
    return _normalised(weights / weights.max())


def _normalised(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(weights / math.fsum(weights))


def _probabilities(judged: ArrayLike, n: int, name: str) -> NDArray[np.float64]:
    probabilities = np.asarray(judged, dtype=np.float64)
    if probabilities.ndim != 2 or len(probabilities) != n or not probabilities.size:
        raise UserFault(
            f"{name} has shape {probabilities.shape} and there are {n} responses: give [n, a], one row each."
        )
    known = np.nan_to_num(probabilities, nan=0.0)
    if known.min() < -TOLERANCE or known.max() > 1 + TOLERANCE:
        raise UserFault(f"{name} goes from {known.min():.6g} to {known.max():.6g}: give probabilities, from 0 to 1.")
    return np.clip(known, 0, 1)


def _over_answers(beliefs: Sequence[float], several_answers: str) -> float:
    if several_answers == "union":
        raise UserFault(
            'several_answers="union" needs the hard rule: the soft rule has no clusters; use "max" or "mean".'
        )
    if several_answers not in {"max", "mean"}:
        raise UserFault(
            f'There is no rule "{several_answers}" for several right answers: choose "max", "mean", or, with the hard '
            'rule, "union".'
        )
    # rounding must not leave the range
    return min(1.0, max(beliefs) if several_answers == "max" else math.fsum(beliefs) / len(beliefs))
