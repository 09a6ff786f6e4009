"""Corpora, chunking, indexes and diversity-aware selection."""
