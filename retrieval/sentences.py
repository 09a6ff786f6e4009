"""Splitting a text into sentences that are exact slices of it."""

import re
from collections.abc import Iterable
from itertools import pairwise

import sentencex

LANGUAGE = "en"
"""The language of known abbreviations; full stops of other scripts are recognised too."""

_RUN = re.compile(r"\s{2,}")
_SPACE = re.compile(r"[^\S \n]")
_PIECE = re.compile(r".{1,10000}(?:\n{2,}|\Z)|.{1,10000}\s|.{1,10000}", re.DOTALL)
"""Whole paragraphs, up to about 10,000 characters; a longer paragraph is cut between two words."""
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def sentences(text: str) -> list[tuple[int, int]]:
    """Start and end of each sentence in characters: in order and without gaps, over the whole text.

    White space belongs to the sentence before it; leading white space belongs to the first sentence. An empty text has
    no sentences; a text of white space only is one sentence.
    """
    # a sentence from the library may begin with white space, or be only white space (a blank line)
    bodies = ((text[start:end].lstrip(), end) for start, end in pairwise([*_starts(text), len(text)]))
    starts = [end - len(body) for body, end in bodies if body]
    return list(pairwise(sorted({0, *starts[1:], len(text)})))


def _starts(text: str) -> Iterable[int]:
    # the library's time grows with the square of a text that opens many quotations
    plain = _plain(text)
    return [
        piece.start() + start
        for piece in _PIECE.finditer(plain)
        for start in _starts_in(piece[0])
        if start
        or plain[max(0, piece.start() - 2) : piece.start()]
        in {"", "\n\n"}  # where a paragraph was cut no sentence begins
    ]


def _starts_in(piece: str) -> Iterable[int]:
    try:
        return [sentence["start_index"] for sentence in sentencex.get_sentence_boundaries(LANGUAGE, piece)]
    except BaseException as fault:
        # a panic of the library is not an Exception: one odd text must not end the process
        if type(fault).__name__ != "PanicException":
            raise
        return [0]


def _plain(text: str) -> str:
    """The text, changed character by character so that the library reads it correctly.

    The library ends a paragraph only at "\\n\\n", loses its position after white space outside ASCII, and refuses lone
    surrogates.
    """
    text = _RUN.sub(lambda run: "\n" * len(run[0]) if run[0].count("\n") > 1 else run[0], text)
    return _SURROGATE.sub("?", _SPACE.sub(" ", text))
