"""A text's sentences, as exact slices of it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise

import sentencex

LANGUAGE = "en"
"""Whose abbreviations are known; full stops of other scripts are seen too."""

_RUN = re.compile(r"\s{2,}")
_SPACE = re.compile(r"[^\S \n]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def sentences(text: str) -> list[tuple[int, int]]:
    """Where the sentences of a text start and end, in characters: in order, without gaps, from its start to its end.

    White space belongs to the sentence before it, at the beginning of the text to the first one. An empty text has no
    sentences; one of nothing but white space is one sentence.
    """
    # what the library gives may begin with white space, or be nothing else, as blank lines are
    bodies = ((text[start:end].lstrip(), end) for start, end in pairwise([*_starts(text), len(text)]))
    starts = [end - len(body) for body, end in bodies if body]
    return list(pairwise(sorted({0, *starts[1:], len(text)})))


def _starts(text: str) -> Iterable[int]:
    try:
        return [found["start_index"] for found in sentencex.get_sentence_boundaries(LANGUAGE, _plain(text))]
    except BaseException as fault:
        # a panic of the library is no Exception: one odd text must not take the process with it
        if type(fault).__name__ != "PanicException":
            raise
        return [0]


def _plain(text: str) -> str:
    """The text, character for character, as the library can read it.

    It takes "\\n\\n" alone for the end of a paragraph, loses its place after white space outside ASCII, and refuses
    halves of surrogate pairs.
    """
    text = _RUN.sub(lambda run: "\n" * len(run[0]) if run[0].count("\n") > 1 else run[0], text)
    return _SURROGATE.sub("?", _SPACE.sub(" ", text))
