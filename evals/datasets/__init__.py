"""The datasets of the papers, by name: questions with gold answers and paragraphs."""

from .kinds import KINDS
from .loading import Dataset, load_dataset
from .pooling import pooled, sample, write_corpus

__all__ = ["KINDS", "Dataset", "load_dataset", "pooled", "sample", "write_corpus"]
