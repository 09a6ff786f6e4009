"""English stop words."""

import logging
from functools import cache


@cache
def stop_words() -> frozenset[str]:
    """179 English stop words in lower case: NLTK's list, from bm25s."""
    from bm25s.stopwords import STOPWORDS_EN_PLUS  # noqa: PLC0415 - a second of import

    logging.getLogger("bm25s").setLevel(logging.WARNING)  # it sets itself to DEBUG
    return frozenset(STOPWORDS_EN_PLUS)
