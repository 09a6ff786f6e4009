"""When two answers are the same but for how they are written."""

import re
import unicodedata

_ARTICLES = frozenset({"a", "an", "the"})

_OF_NUMBERS = re.compile(r"(?<=\d)[^\w\s,](?=\d)|(?<!\w)[-−](?=[.]?\d)")
"""Marks without which a number is another one: 3.5, 1/2, 10:30, -4. A comma only makes it easier to read."""


def normalised(text: str) -> str:
    """An answer without letter case, punctuation, English articles and white space that say nothing.

    Answers that come out equal are the same answer. Punctuation is what Unicode calls so (C++ keeps its plus signs, $5
    its dollar); it stays in numbers, but for commas. Where nothing is left, the text as it stands, stripped: "!!!" is
    not "???".
    """
    folded = unicodedata.normalize("NFC", text).casefold()
    kept = {match.start() for match in _OF_NUMBERS.finditer(folded)}
    plain = "".join(
        mark for i, mark in enumerate(folded) if i in kept or not unicodedata.category(mark).startswith("P")
    )
    words = [word for word in plain.split() if word not in _ARTICLES]
    return " ".join(words) or text.strip()
