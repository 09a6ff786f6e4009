"""Corpora, chunking, indexes and diversity-aware selection."""

from .gmmr import gmmr_sweep, mmr_centroid_sweep, mmr_sweep

__all__ = ["gmmr_sweep", "mmr_centroid_sweep", "mmr_sweep"]
