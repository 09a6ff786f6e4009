"""Detects answers that abstain."""

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
"""Openings that are ignored."""

_SOURCE = r"(?:(?:given|provided|available|retrieved) )?(?:passages?|context|documents?|texts?|sources?|information)"
_CANNOT = r"(?:cannot|can not|can't|could not|couldn't)"
_NOT = r"(?:do|does|did)(?: not|n't)"
_ASKED = r"(?:who|whom|whose|what|when|where|which|why|how|if|whether)"
_END = rf"(?: exactly)?(?=$|[.,;:]| (?:{_ASKED}|(?:from|in|by) the {_SOURCE})\b)"
_TOO_LITTLE = r"(?:not enough|no|insufficient) (?:information|context)"

_ALL = re.compile(
    r"unknown|unanswerable|undetermined|unclear|none|n/a|no answer|no idea|not (?:known|answerable|available|clear)"
    r"|nothing (?:was|is|could be) found"
    r"|(?:nobody|no one) knows"
)
"""Whole answers that abstain."""

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
    r"|(?:it|this|that|the answer) (?:is|was|remains) not (?:given|mentioned|specified|stated|provided)\b"
    # "it was unknown to science until 1938" answers
    rf"|(?:it|this|that|the answer) (?:is|was|remains) (?:unknown|unclear|not known|not clear){_END}"
    rf"|(?:it|this|that|the answer) {_CANNOT} be (?:answered|determined|found|known)\b"
    r"|not (?:known|found|given|mentioned|specified|stated|provided) (?:in|by|from) the\b"
    rf"|{_CANNOT} (?:be )?(?:answered?|determined?)\b"
)
"""Beginnings of longer answers that abstain, unless a word of `_GUESS` follows."""

_GUESS = re.compile(
    r"\b(?:but|however|although|though|nevertheless|probably|perhaps|maybe|i (?:think|believe|guess))\b"
)


def abstains(answer: str) -> bool:
    """Does an answer say that it does not know, without a guess? (docs/metrics.md)

    Three kinds of answers abstain: an empty answer; an answer that is only a phrase such as "unknown", "none" or "n/a";
    and an answer that begins with a phrase such as "I don't know" or "the passages do not say", if no word such as
    "but", "however" or "perhaps" follows. Case, opening apologies and surrounding punctuation are ignored.
    """
    text = " ".join(answer.lower().replace("’", "'").split()).strip(_EDGES)
    text = _OPENINGS.sub("", text, count=1) if _OPENINGS.match(text) else text
    if not text or _ALL.fullmatch(text):
        return True
    beginning = _BEGINNING.match(text)
    return beginning is not None and not _GUESS.search(text, beginning.end())
