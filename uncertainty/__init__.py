"""Formulas that say how uncertain a model is: NumPy in, a float out. No model is asked here."""

from .conformal import conformal_threshold, coverage
from .likelihood import length_normalised_entropy, perplexity
from .semantic import degree_entropy, degree_terms, semantic_clusters, semantic_entropy

__all__ = [
    "conformal_threshold",
    "coverage",
    "degree_entropy",
    "degree_terms",
    "length_normalised_entropy",
    "perplexity",
    "semantic_clusters",
    "semantic_entropy",
]
