"""When an answer says that there is none."""

from __future__ import annotations

import re
import string

_EDGES = string.punctuation + string.whitespace + "“”‘’«»…–—"

_OPENINGS = re.compile(
    r"(?:(?:so )?(?:the )?(?:final )?answer(?: is)?:\W*"
    r"|(?:i'm |i am )?sorry\W+(?:but )?"
    r"|i apologi[sz]e\W+(?:but )?"
    r"|unfortunately\W+"
    r"|as an ai(?: language)?(?: model)?\W+"
    r"|(?:based on|according to|from|in) the (?:given |provided |retrieved )?(?:passages?|context|documents?|text)\W+"
    r")+"
)
"""What may come before the rest."""

_SOURCE = r"(?:(?:given|provided|available|retrieved) )?(?:passages?|context|documents?|texts?|sources?|information)"
_CANNOT = r"(?:cannot|can not|can't|could not|couldn't)"
_NOT = r"(?:do|does|did)(?: not|n't)"
_TOO_LITTLE = r"(?:not enough|no|insufficient) (?:information|context)"

_ALL = re.compile(
    r"unknown|unanswerable|undetermined|unclear|none|n/a|no answer|no idea|not (?:known|answerable|available|clear)"
    r"|(?:it|the answer) is unknown"
    r"|nothing (?:was|is|could be) found"
)
"""All of an answer that abstains."""

_BEGINNING = re.compile(
    rf"(?:i|we) {_NOT} (?:know|have (?:any |enough |sufficient |the )?(?:specific )?(?:information|access|idea))\b"
    rf"|(?:i|we) (?:still )?{_CANNOT} (?:answer|determine|find|say|tell)\b"
    r"|(?:i am|i'm|we are|we're) (?:not (?:sure|certain|able to)|unable to)\b"
    rf"|(?:there (?:is|was)|there's) {_TOO_LITTLE}\b"
    rf"|{_TOO_LITTLE}\b"
    rf"|the {_SOURCE} {_NOT} \w+"
    rf"|the {_SOURCE} (?:is|are) (?:not enough|not sufficient|insufficient)\b"
    r"|(?:none of the|no) (?:passages?|documents?) (?:say|state|mention|give|contain|provide|tell)s?\b"
    rf"|(?:the|this|that) question (?:{_CANNOT} be answered|is (?:unanswerable|not answerable))"
    r"|(?:it|the answer) (?:is|was) (?:unclear|not (?:known|clear|given|mentioned|specified|stated|provided))\b"
    rf"|(?:it|the answer) {_CANNOT} be (?:answered|determined|found)\b"
    r"|not (?:known|found|given|mentioned|specified|stated|provided) (?:in|by|from) the\b"
    r"|(?:cannot|can't) (?:be )?(?:answered?|determined?)\b"
)
"""How an answer that abstains begins, if it goes on; `_GUESS` then is not in it."""

_GUESS = re.compile(
    r"\b(?:but|however|although|though|nevertheless|probably|perhaps|maybe|i (?:think|believe|guess))\b"
)


def abstains(answer: str) -> bool:
    """Whether an answer says that it does not know, and does not go on to guess (the rule: docs/metrics.md).

    So do an empty one, one that is nothing but a form such as "unknown", "unanswerable", "none" or "n/a", and one that
    begins with a form such as "I don't know", "not enough information" or "the passages do not say" and has no word
    such as "but", "however" or "perhaps" behind it. Case, apologies before it and punctuation around it do not matter.
    """
    said = " ".join(answer.lower().replace("’", "'").split()).strip(_EDGES)
    said = _OPENINGS.sub("", said, count=1) if _OPENINGS.match(said) else said
    if not said or _ALL.fullmatch(said):
        return True
    begins = _BEGINNING.match(said)
    return begins is not None and not _GUESS.search(said, begins.end())
