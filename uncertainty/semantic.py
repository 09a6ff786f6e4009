"""Uncertainty of n answers to one question, computed from the entailment between them."""

import math
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import UserFault

TOLERANCE = 1e-6
"""The rounding error of float32 that is accepted in a link, and between a link and its mirror image."""


def degree_entropy(link: ArrayLike) -> float:
    """Degree-based semantic entropy of n answers (DENSE, eq. 6): −(1/n) Σ_i log(D_i/n), D_i = Σ_j link[i,j].

    link: [n, n], symmetric, 1 on the diagonal, entries in [0, 1]. In DENSE an entry is the mean entailment of both
    directions, so 0, 0.5 or 1; probabilities are accepted too. Rounding errors up to 1e-6 are corrected.
    Returns nats in [0, log n]: 0 if all answers are linked, log n if no two are. If the links are 0 or 1 and form
    groups, the result is the discrete `semantic_entropy` of these groups.
    Raises `UserFault`, a ValueError, if link does not fit this description.
    """
    terms = degree_terms(link)
    # rounded, n terms of log(n)/n can exceed log n
    return min(math.fsum(terms), math.log(len(terms)))


def degree_terms(link: ArrayLike) -> NDArray[np.float64]:
    """The term of each answer in eq. 6, −(1/n) log(D_i/n), in nats; the terms add up to `degree_entropy(link)`.

    Returns [n], each in [0, log(n)/n]: the higher a term, the fewer answers agree with its answer.
    """
    degrees = _checked_link(link).sum(axis=1)
    n = len(degrees)
    # −log(D/n) would be −0 if all agree
    return np.asarray(np.log(n / degrees) / n)


def semantic_clusters(
    entails: ArrayLike,
    rule: Literal["bidirectional", "loose"] = "bidirectional",
    *,
    contradicts: ArrayLike | None = None,
    founder: Literal["first", "last"] = "first",
) -> list[int]:
    """Group n answers by meaning (Kuhn et al. 2023, "Semantic Uncertainty", algorithm 1).

    Answers are taken in order. Each joins a cluster whose *first member*, its founder, it is equivalent to; if there
    is no such cluster, it starts a new one. A model's judgements of equivalence need not be transitive: two members of
    a cluster may differ, and the order of the answers may matter.

    entails: [n, n] bool, whether answer i entails answer j; the diagonal is not read.
    rule: when two answers are equivalent.
        "bidirectional": each entails the other.
        "loose": neither contradicts the other, and at least one entails the other (the default in the code of
            Farquhar et al., Nature 2024; SePer's hard clusters).
    contradicts: [n, n] bool, whether answer i contradicts answer j; only "loose" reads it, and needs it.
    founder: which cluster an answer joins if it is equivalent to several founders: the "first" one's (Kuhn et al.), or
        the "last" one's (SePer's authors' code). The founders are the same.

    Returns n cluster ids, numbered from 0 in order of appearance.
    Raises `UserFault`, a ValueError, for an unknown rule or founder and for arrays that do not fit this description.
    """
    if founder not in {"first", "last"}:
        raise UserFault(f'There is no founder "{founder}" to join: choose "first" or "last".')
    alike = _equivalent(_checked_relation(entails, "entails"), rule, contradicts)
    founders: list[int] = []
    clusters: list[int] = []
    for answer in range(len(alike)):
        joined = [cluster for cluster, own in enumerate(founders) if alike[own, answer]]
        clusters.append(joined[0 if founder == "first" else -1] if joined else len(founders))
        if not joined:
            founders.append(answer)
    return clusters


def semantic_entropy(clusters: ArrayLike, log_likelihoods: ArrayLike | None = None) -> float:
    """Entropy over the meanings of n answers, −Σ_c p_c log p_c (Farquhar et al., Nature 2024).

    clusters: [n] cluster ids, any integers.
    log_likelihoods: [n], nats, of whole answers or per token. Only their differences matter; −inf is probability 0.

    Without log-likelihoods p_c is the share of the answers in cluster c (discrete semantic entropy, for models that
    give no probabilities). With them p_c = Σ_{i in c} exp(ll_i) / Σ_i exp(ll_i); an answer sampled twice counts twice.
    Kuhn et al. 2023 and DENSE's eq. 11 estimate the same entropy by the unweighted mean of −log p_c over the clusters.
    We do not: that mean gives a rare meaning the weight of a common one and can exceed log n. If all clusters have
    the same p_c, both agree.

    Returns nats in [0, log of the number of clusters]: 0 for one cluster, log n for n equally likely singletons.
    Raises `UserFault`, a ValueError, if an argument does not fit this description or every log-likelihood is −inf.
    """
    ids = np.asarray(clusters)
    if ids.ndim != 1 or not ids.size or not np.issubdtype(ids.dtype, np.integer):
        raise UserFault(
            f"The clusters are an array of {ids.dtype} of shape {ids.shape}: give one integer for each answer, as [n]."
        )
    _, members = np.unique(ids, return_inverse=True)
    masses = np.bincount(members, weights=_weights(log_likelihoods, len(ids)))
    shares = masses / masses.sum()
    shares = shares[shares > 0]  # after the division, which can round to 0
    # keep rounding within the range; a single cluster would give −0
    return max(0.0, min(math.fsum(-shares * np.log(shares)), math.log(len(shares))))


def _equivalent(entails: NDArray[np.bool_], rule: str, contradicts: ArrayLike | None) -> NDArray[np.bool_]:
    if rule == "bidirectional":
        return entails & entails.T
    if rule != "loose":
        raise UserFault(f'There is no clustering rule "{rule}": choose "bidirectional" or "loose".')
    if contradicts is None:
        raise UserFault('The rule "loose" needs to know which answers contradict each other: give contradicts, [n, n].')
    against = _checked_relation(contradicts, "contradicts")
    if against.shape != entails.shape:
        raise UserFault(f"entails has shape {entails.shape} but contradicts {against.shape}: judge the same answers.")
    return (entails | entails.T) & ~(against | against.T)


def _weights(log_likelihoods: ArrayLike | None, n: int) -> NDArray[np.float64]:
    """Likelihoods of n answers, scaled so that the largest is 1; all 1 if log_likelihoods is None."""
    if log_likelihoods is None:
        return np.ones(n)
    logs = np.asarray(log_likelihoods, dtype=np.float64)
    if logs.shape != (n,):
        raise UserFault(f"The log-likelihoods have shape {logs.shape} but there are {n} answers: give one for each.")
    if np.isnan(logs).any() or np.isposinf(logs).any():
        raise UserFault("A log-likelihood is NaN or +inf: leave out the answers whose likelihood is unknown.")
    if np.isneginf(logs).all():
        raise UserFault("Every log-likelihood is −inf: leave out log_likelihoods to count the answers instead.")
    return np.asarray(np.exp(logs - logs.max()))


def _checked_link(link: ArrayLike) -> NDArray[np.float64]:
    links = np.asarray(link, dtype=np.float64)
    if links.ndim != 2 or links.shape[0] != links.shape[1] or not links.size:
        raise UserFault(f"The links have shape {links.shape}: give one row and one column for each answer, as [n, n].")
    if not np.isfinite(links).all():
        raise UserFault("The links hold a number that is not finite: judge that pair of answers again.")
    if links.min() < -TOLERANCE or links.max() > 1 + TOLERANCE:
        raise UserFault(f"The links go from {links.min():.6g} to {links.max():.6g}: give numbers from 0 to 1.")
    if (np.abs(links.diagonal() - 1) > TOLERANCE).any():
        raise UserFault("An answer's link to itself is not 1: set the diagonal of the links to 1.")
    if (np.abs(links - links.T) > TOLERANCE).any():
        raise UserFault("The links are not symmetric: link two answers by the mean of both directions.")
    links = np.clip((links + links.T) / 2, 0, 1)
    np.fill_diagonal(links, 1)
    return links


def _checked_relation(relation: ArrayLike, name: str) -> NDArray[np.bool_]:
    pairs = np.asarray(relation)
    if pairs.ndim != 2 or pairs.shape[0] != pairs.shape[1] or not pairs.size:
        raise UserFault(f"{name} has shape {pairs.shape}: give one row and one column for each answer, as [n, n].")
    if not np.isin(pairs, [0, 1]).all():  # a probability would be read as true
        raise UserFault(f"{name} holds more than true and false: compare probabilities to a threshold first.")
    return pairs.astype(np.bool_)
