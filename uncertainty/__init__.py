"""Formulas of uncertainty: NumPy arrays in, a float or an array out. They call no model."""

from .conformal import conformal_threshold, coverage
from .energy import energy
from .gram import eigen_score
from .likelihood import length_normalised_entropy, multi_perplexity, perplexity
from .semantic import degree_entropy, degree_terms, semantic_clusters, semantic_entropy
from .seper import gold_matches, response_weights, seper_hard, seper_soft

__all__ = [
    "conformal_threshold",
    "coverage",
    "degree_entropy",
    "degree_terms",
    "eigen_score",
    "energy",
    "gold_matches",
    "length_normalised_entropy",
    "multi_perplexity",
    "perplexity",
    "response_weights",
    "semantic_clusters",
    "semantic_entropy",
    "seper_hard",
    "seper_soft",
]
