"""The decomposition prompt (SUNAR section 3.1, after self-ask): the next sub-question, or the final answer."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from ..errors import ContractFault
from ..state.messages import Message
from ..state.sunar import Hop
from . import bare, render


class DecompositionStep(NamedTuple):
    """The next sub-question, or the final answer."""

    is_final: bool
    text: str


def messages(question: str, hops: Sequence[Hop], *, must_answer: bool = False) -> list[Message]:
    """Ask for the next step; must_answer: no further sub-question is possible."""
    return render("decompose", question=question, hops=hops, must_answer=must_answer)


def pattern(*, must_answer: bool = False) -> str:
    """A regular expression of one line in one of the two forms, or in that of the answer; `parse` reads more."""
    return rf"({'' if must_answer else 'Follow-up|'}Final answer): [^\s*_][^\n]*"


def parse(reply: str) -> DecompositionStep:
    """The first line with a follow-up, else the last line with a final answer.

    A line inside a quotation is neither. Raises `ContractFault` if there is no such line.
    """
    final = None
    for match in _LINE.finditer(reply):
        text = bare(match["text"])
        if not text:
            continue
        if "final" not in match["kind"].lower():
            # some models go on after their question: keep it up to its question mark
            return DecompositionStep(is_final=False, text=text[: text.find("?") + 1] or text)
        final = DecompositionStep(is_final=True, text=text)
    if final is None:
        raise ContractFault("it has no line 'Follow-up: ...' or 'Final answer: ...'", reply)
    return final


_LINE = re.compile(
    r"^[ \t*_#-]*(?P<kind>follow[ -]?up(?: question)?|(?:the |so the )?final answer(?: is)?)[ \t*_]*:(?P<text>.*)$",
    re.IGNORECASE | re.MULTILINE,
)
