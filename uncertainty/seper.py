"""How much of its belief a model puts on the right answer: SePer (Dai et al., ICLR 2025)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import UserFault

TOLERANCE = 1e-6  # what rounding may add to a probability, or to the logarithm of one


def response_weights(
    log_probs: Sequence[ArrayLike], likelihood: Literal["mean", "sum"] = "mean"
) -> NDArray[np.float64]:
    """The weights of n responses that were sampled from one prompt: their likelihoods ℓ, brought to the sum 1.

    log_probs: n arrays [T_i], the natural log-probability of each of a response's tokens, the end-of-turn token among
    them where it is known; at most 0 (up to 1e-6 more counts as 0), −inf for a token that cannot be.
    likelihood: "mean": ℓ_i = exp(mean log p), so that long responses weigh no less than short ones (the authors' code);
    "sum": the plain product of equation 7.
    Returns [n], each in [0, 1], of sum 1. A response without tokens, or with one of probability 0, weighs nothing.
    Where none weighs anything, all weigh the same: each was drawn once.
    Raises `UserFault`, a ValueError, for no responses, NaN, a log-probability above 0 and an unknown `likelihood`.
    """
    if likelihood not in {"mean", "sum"}:
        raise UserFault(f'There is no likelihood "{likelihood}": choose "mean" or "sum".')
    if not len(log_probs):
        raise UserFault("There is no response to weigh: sample at least one.")
    logs = np.array([_log_likelihood(one, i, likelihood) for i, one in enumerate(log_probs)])
    if np.isneginf(logs).all():
        return np.full(len(logs), 1 / len(logs))
    # of a long response the product itself may be too small for a float
    return _normalised(np.exp(logs - logs.max()))


def seper_soft(
    likelihoods: ArrayLike,
    forward: ArrayLike,
    backward: ArrayLike | None = None,
    golds: Literal["max", "mean"] = "max",
) -> float:
    """The belief in the right answer, each response counted as far as it entails it (SePer_S, algorithm 1).

    SePer(a) = Σ_i ℓ_i k_i(a); the kernel k_i(a) is P(response i ⊨ answer a) or, with `backward`, the greater of both
    directions ("either", the authors' code).
    likelihoods: [n], of any sum above 0, for they are brought to 1; forward, backward: [n, a], probabilities of
    response ⊨ answer and of answer ⊨ response; NaN where the judge could not say, which counts as 0.
    golds: of several right answers the belief in the best one (the authors' code), or the mean (equation 10).
    Returns a number in [0, 1].
    Raises `UserFault`, a ValueError, where an argument does not fit this description.
    """
    weights = _weights(likelihoods)
    kernel = _probabilities(forward, len(weights), "forward")
    if backward is not None:
        other = _probabilities(backward, len(weights), "backward")
        if other.shape != kernel.shape:
            raise UserFault(f"forward has shape {kernel.shape} but backward {other.shape}: judge the same answers.")
        kernel = np.maximum(kernel, other)
    return _of_golds([math.fsum(weights * column) for column in kernel.T], golds)


def seper_hard(
    likelihoods: ArrayLike, clusters: ArrayLike, matches: ArrayLike, golds: Literal["max", "mean"] = "max"
) -> float:
    """The belief in the right answer, all of it in the clusters that mean the answer (SePer_H, equations 6 and 8).

    SePer(a) = the sum of ℓ_i over the responses in clusters whose first member matches a.
    likelihoods: [n], of any sum above 0, for they are brought to 1; clusters: [n] ids from 0, as `semantic_clusters`
    gives them; matches: [clusters] bool, or [clusters, a] for several right answers; see `gold_matches`.
    golds: of several right answers the belief in the best one (the authors' code), or the mean (equation 10).
    Returns a number in [0, 1].
    Raises `UserFault`, a ValueError, where an argument does not fit this description.
    """
    weights = _weights(likelihoods)
    ids = np.asarray(clusters)
    if ids.shape != weights.shape or not np.issubdtype(ids.dtype, np.integer):
        raise UserFault(f"The clusters have shape {ids.shape} and there are {len(weights)} responses: give an id each.")
    found = np.asarray(matches)
    found = found[:, None] if found.ndim == 1 else found
    if found.ndim != 2 or not found.size or not np.isin(found, [0, 1]).all():
        raise UserFault(f"The matches have shape {found.shape}: give true or false for each cluster, and each answer.")
    if ids.min() < 0 or ids.max() >= len(found):
        raise UserFault(f"The clusters go from {ids.min()} to {ids.max()} and there are matches for {len(found)}.")
    return _of_golds([math.fsum(weights[column[ids].astype(np.bool_)]) for column in found.T], golds)


def gold_matches(
    entails: ArrayLike, contradicts: ArrayLike, rule: Literal["loose", "bidirectional"] = "loose"
) -> NDArray[np.bool_]:
    """Which clusters mean which right answers, from what is judged of their first members.

    entails, contradicts: [2, clusters, a] bool; [0] of the first member towards the answer, [1] the other way round.
    rule: "loose": no direction contradicts and not both are neutral, that is, at least one entails (the authors' code);
    "bidirectional": each entails the other (equation 8). The same two as of `semantic_clusters`.
    Returns [clusters, a].
    Raises `UserFault`, a ValueError, for an unknown rule and arrays that do not fit this description.
    """
    said, against = np.asarray(entails), np.asarray(contradicts)
    if said.ndim != 3 or len(said) != 2 or said.shape != against.shape:
        raise UserFault(f"entails has shape {said.shape}, contradicts {against.shape}: give both as [2, clusters, a].")
    if not (np.isin(said, [0, 1]).all() and np.isin(against, [0, 1]).all()):
        raise UserFault("What entails or contradicts is more than true and false: compare probabilities first.")
    if rule == "bidirectional":
        return np.asarray(said.astype(np.bool_).all(axis=0))
    if rule != "loose":
        raise UserFault(f'There is no rule "{rule}" for matches: choose "loose" or "bidirectional".')
    return np.asarray(said.astype(np.bool_).any(axis=0) & ~against.astype(np.bool_).any(axis=0))


def _log_likelihood(log_probs: ArrayLike, place: int, likelihood: str) -> float:
    logs = np.asarray(log_probs, dtype=np.float64)
    if logs.ndim != 1:
        raise UserFault(f"Response {place}'s log-probabilities have shape {logs.shape}: give one a token, as [T].")
    if np.isnan(logs).any():
        raise UserFault(f"Response {place} has a token whose log-probability is NaN or missing: leave it out.")
    if not logs.size:
        return -math.inf
    if logs.max() > TOLERANCE:
        raise UserFault(
            f"Response {place} has a token of log-probability {logs.max():.6g}: give natural logarithms, which are at "
            "most 0."
        )
    total = float(np.minimum(logs, 0).sum())
    return total / logs.size if likelihood == "mean" else total


def _weights(likelihoods: ArrayLike) -> NDArray[np.float64]:
    given = np.asarray(likelihoods, dtype=np.float64)
    if given.ndim != 1 or not given.size:
        raise UserFault(f"The likelihoods have shape {given.shape}: give one for each response, as [n].")
    if not np.isfinite(given).all() or given.min() < 0 or not given.max() > 0:
        raise UserFault("The likelihoods are not all finite and at least 0, or all are 0: see response_weights.")
    return _normalised(given / given.max())


def _normalised(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(weights / math.fsum(weights))


def _probabilities(judged: ArrayLike, n: int, name: str) -> NDArray[np.float64]:
    found = np.asarray(judged, dtype=np.float64)
    if found.ndim != 2 or len(found) != n or not found.size:
        raise UserFault(f"{name} has shape {found.shape} and there are {n} responses: give [n, a], a row for each.")
    known = np.nan_to_num(found, nan=0.0)
    if known.min() < -TOLERANCE or known.max() > 1 + TOLERANCE:
        raise UserFault(f"{name} goes from {known.min():.6g} to {known.max():.6g}: give probabilities, from 0 to 1.")
    return np.clip(known, 0, 1)


def _of_golds(beliefs: Sequence[float], golds: str) -> float:
    if golds not in {"max", "mean"}:
        raise UserFault(f'There is no way "{golds}" with several right answers: choose "max" or "mean".')
    # rounding must not leave the range
    return min(1.0, max(beliefs) if golds == "max" else math.fsum(beliefs) / len(beliefs))
