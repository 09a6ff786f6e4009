"""Words that say nothing of what a text is about."""

from __future__ import annotations

import logging
from functools import cache


@cache
def stop_words() -> frozenset[str]:
    """English ones in lower case, 179 of them: NLTK's list as bm25s has it."""
    from bm25s.stopwords import STOPWORDS_EN_PLUS  # noqa: PLC0415 - it takes a second, for those who search

    logging.getLogger("bm25s").setLevel(logging.WARNING)  # it sets itself to DEBUG
    return frozenset(STOPWORDS_EN_PLUS)
