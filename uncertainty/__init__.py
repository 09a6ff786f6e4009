"""Formulas of uncertainty: NumPy arrays in, a float or an array out. They call no model."""

from .conformal import conformal_threshold
from .energy import energy
from .gram import eigen_score
from .likelihood import length_normalised_entropy, multi_perplexity, perplexity
from .risk_control import (
    Certified,
    CertifiedCascade,
    binomial_p,
    certified_cascade,
    certified_threshold,
    conformal_risk_threshold,
    least_certified_risk,
    looks_alike,
    questions_needed,
    risk_interval,
)
from .semantic import degree_entropy, degree_terms, semantic_clusters, semantic_entropy
from .seper import gold_matches, response_weights, seper_hard, seper_soft

__all__ = [
    "Certified",
    "CertifiedCascade",
    "binomial_p",
    "certified_cascade",
    "certified_threshold",
    "conformal_risk_threshold",
    "conformal_threshold",
    "degree_entropy",
    "degree_terms",
    "eigen_score",
    "energy",
    "gold_matches",
    "least_certified_risk",
    "length_normalised_entropy",
    "looks_alike",
    "multi_perplexity",
    "perplexity",
    "questions_needed",
    "response_weights",
    "risk_interval",
    "semantic_clusters",
    "semantic_entropy",
    "seper_hard",
    "seper_soft",
]
