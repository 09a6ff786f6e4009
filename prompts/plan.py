"""The Planner's prompt (DF-RAG section 3.4): question in, ordered steps out."""

from __future__ import annotations

import re

from ..errors import ContractFault
from ..state.messages import Message
from . import bare, render

MOST_STEPS = 8
"""The paper's plans have fewer than three steps on average (section 5.4); more is a model repeating itself."""

_STEP = re.compile(r"^[ \t*_#>-]*(?:step[ \t]*)?\d{1,2}[ \t*_]*[).:](?!\d)(?P<step>.*)$", re.IGNORECASE | re.MULTILINE)


def messages(question: str) -> list[Message]:
    """Ask for the plan of a question."""
    return render("plan", question=question)


def parse(reply: str) -> list[str]:
    """The steps of a reply, in order, repeated ones once, at most `MOST_STEPS`; `ContractFault` if there is none."""
    found = (bare(match["step"]) for match in _STEP.finditer(reply))
    steps = list(dict.fromkeys(step for step in found if step))
    if not steps:
        raise ContractFault("it has no numbered line such as '1) Find ...'", reply)
    return steps[:MOST_STEPS]
