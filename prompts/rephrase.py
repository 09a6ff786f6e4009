"""The rephrasing prompt (DENSE section 4.1): a chunk's text in, the same meaning in other sentences out."""

import re

from ..errors import ContractFault
from ..state.messages import Message
from . import render


def messages(text: str) -> list[Message]:
    """Ask for a rephrasing of one chunk."""
    return render("rephrase", text=text)


def parse(reply: str, text: str) -> str:
    """The rephrasing. Raises `ContractFault` if it is empty, is a refusal, or has the same words as the text."""
    rephrasing = _TAG.sub("", reply).strip()
    if not rephrasing:
        raise ContractFault("it is empty", reply)
    if _words(rephrasing) == _words(text):
        raise ContractFault("it is the text itself, not a rephrasing", reply)
    if _REFUSAL.match(rephrasing) and not _REFUSAL.match(text.strip()):
        raise ContractFault("it refuses", reply)
    return rephrasing


_TAG = re.compile(r"</?\s*passage\s*>", re.IGNORECASE)
_REFUSAL = re.compile(
    r"(i['’]?m|i am) (very |really )?sorry\b|sorry, (but )?i\b|i apologi[sz]e\b|as an? (ai|(large )?language model)\b"
    r"|(unfortunately,? )?i (can ?not|can['’]t|am (not able|unable) to|will not|won['’]t) "
    r"(help|assist|rewrite|rephrase|reword|paraphrase|provide|do|fulfil|comply|complete|process|generate)",
    re.IGNORECASE,
)


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())
