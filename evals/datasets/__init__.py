"""Questions with gold answers from the datasets that papers report on, by name."""

from .kinds import KINDS
from .loading import Dataset, load_dataset
from .pooling import pooled, sample, write_corpus

__all__ = ["KINDS", "Dataset", "load_dataset", "pooled", "sample", "write_corpus"]
