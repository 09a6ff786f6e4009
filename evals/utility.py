"""The metrics with which SePer's paper compares ΔSePer (Dai et al., section 4.1.2, table 2), of the same samples."""

import math
from collections.abc import Callable
from statistics import fmean

import numpy as np

from ..state.seper import Belief
from ..uncertainty import length_normalised_entropy, multi_perplexity, semantic_entropy, seper_soft
from .answers import answer_scores
from .questions import GoldQuestion
from .seper import SePerResult

UNCERTAINTIES = ("perplexity", "entropy", "semantic_entropy")
"""The metrics that fall when evidence helps."""


Similarity = Callable[[str], float]
"""A similarity of a response to the right answers, such as BERTScore, by the response's text."""


def utilities(result: SePerResult, question: GoldQuestion, similarity: Similarity | None = None) -> dict[str, float]:
    """The utility of a piece of evidence by each metric: its value with the evidence minus its value without.

    Of an uncertainty it is the value without minus the value with, so that more is better everywhere. See
    `belief_metrics`; a metric that one side lacks is left out.
    """
    after = belief_metrics(result.with_context, question, similarity)
    before = belief_metrics(result.without_context, question, similarity)
    return {
        name: before[name] - after[name] if name in UNCERTAINTIES else after[name] - before[name]
        for name in after
        if name in before
    }


def belief_metrics(belief: Belief, question: GoldQuestion, similarity: Similarity | None = None) -> dict[str, float]:
    """The metrics of one side's n responses; the paper does not say how it makes one number of them.

    exact_match, rouge_l, bleu: the mean over the responses (see `answers`); also of similarity, if one is given.
    perplexity: the mean of exp(−mean log p). entropy: the mean of −mean log p, nats per token (the authors' code).
    seper_soft: the soft rule, the maximum over the right answers. With the hard rule's clusters also semantic_entropy,
    nats, over the clusters' weights, and seper_hard, SePer by the measurement's own settings. Responses without tokens,
    or with a token of probability 0, have no perplexity and entropy; if there are no others, both are left out.
    """
    responses = belief["responses"]
    scores = [answer_scores(response["text"], question) for response in responses]
    found = {name: fmean(score[name] for score in scores) for name in ("exact_match", "rouge_l", "bleu")}
    if similarity is not None:
        found["similarity"] = fmean(similarity(response["text"]) for response in responses)
    means = [
        [response["log_probability"] / response["tokens"]]
        for response in responses
        if response["log_probability"] is not None
    ]
    if means:
        found |= {"perplexity": multi_perplexity(means), "entropy": length_normalised_entropy(means)}
    weights = [response["weight"] for response in responses]
    entails = np.array([response["entails"] for response in responses], dtype=np.float64)
    entailed = np.array([response["entailed"] for response in responses], dtype=np.float64)
    found["seper_soft"] = seper_soft(weights, entails, entailed if entailed.size else None)
    if belief["clusters"]:
        clusters = [response["cluster"] for response in responses if response["cluster"] is not None]
        logs = [math.log(weight) if weight else -math.inf for weight in weights]
        found |= {"semantic_entropy": semantic_entropy(clusters, logs), "seper_hard": belief["seper"]}
    return found
