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


def parse(reply: str) -> DecompositionStep:
    """Read the first line that has one of the two forms; raises `ContractFault` if there is no such line."""
    for match in _LINE.finditer(reply):
        is_final, text = "final" in match["kind"].lower(), bare(match["text"])
        if text:
            # some models go on after their question: keep it up to its question mark
            return DecompositionStep(is_final, text if is_final else text[: text.find("?") + 1] or text)
    raise ContractFault("it has no line 'Follow-up: ...' or 'Final answer: ...'", reply)


_LINE = re.compile(
    r"^[ \t*_#>-]*(?P<kind>follow[ -]?up(?: question)?|(?:the |so the )?final answer(?: is)?)[ \t*_]*:(?P<text>.*)$",
    re.IGNORECASE | re.MULTILINE,
)
