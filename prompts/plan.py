"""The Planner's prompt (DF-RAG section 3.4): question in, ordered steps out."""

import re

from ..errors import ContractFault
from ..state.messages import Message
from . import bare, render


def pattern(most: int) -> str:
    """Matches plans of 1 to `most` numbered lines; `parse` reads more."""
    return r"(\n".join(rf"{step}\) [^\s*_][^\n]{{0,200}}" for step in range(1, most + 1)) + ")?" * (most - 1)


_STEP = re.compile(r"^[ \t*_#>-]*(?:step[ \t]*)?\d{1,2}[ \t*_]*[).:](?!\d)(?P<step>.*)$", re.IGNORECASE | re.MULTILINE)


def messages(question: str) -> list[Message]:
    """Ask for the plan of a question."""
    return render("plan", question=question)


def parse(reply: str) -> list[str]:
    """The distinct steps of a reply in their order; `ContractFault` if it has no step."""
    lines = (bare(match["step"]) for match in _STEP.finditer(reply))
    steps = list(dict.fromkeys(step for step in lines if step))
    if not steps:
        raise ContractFault("it has no numbered line such as '1) Find ...'", reply)
    return steps
