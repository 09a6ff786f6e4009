"""The Evaluator's prompt (DF-RAG section 3.4): plan and one chunk set in, a score and a short answer per step out."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..errors import ContractFault
from ..state.messages import Message
from ..state.records import Chunk
from . import render

HIGHEST = 5

_LINE = re.compile(
    r"^\W*(?:step\s*)?(?P<step>\d{1,2})\s*[).:]\s*\W*score\W*(?P<score>[^|\n]*?)\s*(?:\|\s*answer\s*:\s*(?P<answer>.*))?$",
    re.IGNORECASE | re.MULTILINE,
)
_NO_ANSWER = {"", "none", "none.", "n/a", "unknown"}


def messages(plan: Sequence[str], chunks: Sequence[Chunk]) -> list[Message]:
    """Ask for the report on one chunk set."""
    return render("report", plan=plan, chunks=chunks)


def parse(reply: str, steps: int) -> tuple[list[int], list[str]]:
    """Scores in 0..5 and short answers, one each per step; an answer the passages do not give is empty.

    Raises `ContractFault` when a step has no line, or a line no whole number from 0 to 5.
    """
    lines = {int(match["step"]): match for match in reversed(list(_LINE.finditer(reply)))}
    scores, answers = [], []
    for step in range(1, steps + 1):
        if step not in lines:
            raise ContractFault(f"it has no line '{step}) score: ... | answer: ...'", reply)
        scores.append(_score(step, lines[step]["score"], reply))
        answer = (lines[step]["answer"] or "").strip()
        answers.append("" if answer.lower() in _NO_ANSWER else answer)
    return scores, answers


def _score(step: int, text: str, reply: str) -> int:
    if not re.fullmatch(rf"[0-{HIGHEST}]", text):
        raise ContractFault(f"the score of step {step} is '{text}', not a whole number from 0 to {HIGHEST}", reply)
    return int(text)
