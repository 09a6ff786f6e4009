"""The chunkers by name.

`words:N` cuts windows of N words (DF-RAG, section 4.1: 100, 200 or 300). `tokens:SIZE/OVERLAP` splits recursively at
paragraphs, lines, words and characters, counted in an encoder's tokens (DENSE-RAG: 512/64). `semantic:TAU/TMAX` joins
neighbouring sentences of similar meaning (DENSE-RAG: 0.6/512); see `semantic_chunks`.
"""

import re

from ..errors import UserFault
from ..models.interfaces import Encoder
from .chunking import Chunker, CountTokens, TokenWindows, WordWindows

SEMANTIC = "semantic:"
"""Prefix of the names of semantic chunkers."""

CHUNKER_NAMES = (
    "words:100, words:200, words:300 (any number of words), tokens:512/64 (size/overlap in tokens), "
    "semantic:0.6/512 (smallest cosine of neighbouring sentences/most tokens)"
)

SMALLEST = 16
"""Smallest chunk size in tokens: every single character has fewer."""


async def chunker_for(name: str, encoder: Encoder) -> Chunker:
    """The chunker of that name; `tokens:` and `semantic:` count with the encoder's own tokenizer."""
    counts = name.strip().startswith(("tokens:", SEMANTIC))
    return open_chunker(name, await encoder.token_counter() if counts else None, encoder)


def open_chunker(name: str, count: CountTokens | None = None, encoder: Encoder | None = None) -> Chunker:
    """The chunker of that name.

    count: a text's number of tokens without special tokens, for `tokens:` and `semantic:`; encoder: for `semantic:`.
    Raises `UserFault` for an unknown name, an impossible size, and a missing `count` or `encoder`.
    """
    if words := re.fullmatch(r"\s*words:(\d{1,9})\s*", name, re.ASCII):
        if size := int(words[1]):
            return WordWindows(size)
    elif tokens := re.fullmatch(r"\s*tokens:(\d{1,9})/(\d{1,9})\s*", name, re.ASCII):
        size, overlap = int(tokens[1]), int(tokens[2])
        if size < SMALLEST or overlap >= size:
            raise UserFault(
                f"'{name}' is not a token chunker: the size must be at least {SMALLEST} tokens and the overlap less "
                "than the size, as in tokens:512/64."
            )
        return TokenWindows(size, overlap, _needed(count, name))
    elif semantic := re.fullmatch(r"\s*semantic:(-?\d{1,3}(?:\.\d{1,9})?)/(\d{1,9})\s*", name, re.ASCII):
        tau, most = float(semantic[1]), int(semantic[2])
        if not -1 <= tau <= 1 or most < SMALLEST:
            raise UserFault(
                f"'{name}' is not a semantic chunker: the cosine must be between -1 and 1 and the size at least "
                f"{SMALLEST} tokens, as in semantic:0.6/512."
            )
        if encoder is None:
            raise UserFault(
                f"The chunker '{name}' compares sentences, so it needs an encoder: give one, or use words:100."
            )
        from .semantic_chunks import SemanticChunks  # noqa: PLC0415 - loaded when first needed

        return SemanticChunks(tau, most, _needed(count, name), encoder)
    raise UserFault(f"There is no chunker named '{name}': use one of {CHUNKER_NAMES}.")


def _needed(count: CountTokens | None, name: str) -> CountTokens:
    if count is None:
        raise UserFault(
            f"The chunker '{name}' counts tokens, and this encoder has no tokenizer to count with: use words:100, or "
            "an encoder that runs on this machine."
        )
    return count
