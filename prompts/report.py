"""The Evaluator's prompt (DF-RAG section 3.4): plan and one chunk set in, a score and a short answer per step out."""

import re
from collections.abc import Sequence

from ..errors import ContractFault
from ..state.messages import Message
from ..state.records import Chunk
from . import bare, render

MAX_SCORE = 5

_LINE = re.compile(
    r"^[ \t*_#>-]*(?:step[ \t]*)?(?P<step>\d{1,2})[ \t*_]*[).:][ \t*_]*score\b(?P<verdict>.*)$",
    re.IGNORECASE | re.MULTILINE,
)
_SCORE = re.compile(rf"([0-{MAX_SCORE}])(?:\.0|\s*/\s*{MAX_SCORE})?")
_SEPARATOR = re.compile(
    r"\||[.,;–—-]?[ \t*_]{0,9}(?<![^\W_])(?=(?:short[ \t]{1,9})?(?:explanation|answer)[ \t*_]{0,9}[:=])", re.IGNORECASE
)
"""What stands between score and answer: a bar, or the label alone as in the paper's own form (figure 10)."""
_LABEL = re.compile(r"\A[\s*_]*(?:short[ \t]+)?(?:explanation|answer)[\s*_]*[:=]", re.IGNORECASE)
_NO_ANSWER = {"", "none", "none.", "n/a", "unknown"}


def messages(plan: Sequence[str], chunks: Sequence[Chunk], *, examples: bool = True) -> list[Message]:
    """Ask for the report on one chunk set. examples: with the worked examples (few-shot), or without (zero-shot)."""
    turns = render("report", plan=plan, chunks=chunks)
    return turns if examples else [turns[0], turns[-1]]


def pattern(steps: int) -> str:
    """A regular expression of reports with one line for each step; `parse` reads more.

    An answer has at most 200 characters: a model that goes on would not reach the last step.
    """
    line = rf"\) score: [0-{MAX_SCORE}] \| answer: [^\n]{{1,200}}"
    return r"\n".join(f"{step}{line}" for step in range(1, steps + 1))


def parse(reply: str, steps: int) -> tuple[list[int], list[str]]:
    """A score in 0..5 and a short answer for each step. The answer is empty if the passages do not give it.

    The last complete block of lines counts: what comes before may be quoted from a passage. Raises `ContractFault` if
    a step has no line, or its line has no whole number from 0 to 5.
    """
    lines = _last_block(reply, steps)
    scores, answers = [], []
    for step in range(1, steps + 1):
        if step not in lines:
            raise ContractFault(f"it has no line '{step}) score: ... | answer: ...'", reply)
        score, *rest = _SEPARATOR.split(lines[step], maxsplit=1)
        scores.append(_score(step, bare(score, ":=").removesuffix("."), reply))
        answer = bare(_LABEL.sub("", "".join(rest), count=1))
        answers.append("" if answer.lower() in _NO_ANSWER else answer)
    return scores, answers


def _last_block(reply: str, steps: int) -> dict[int, str]:
    """The verdicts by step of the last block with every step; without one, the last verdict of each step."""
    blocks: list[dict[int, str]] = [{}]
    for match in _LINE.finditer(reply):
        step = int(match["step"])
        if step <= max(blocks[-1], default=0):
            blocks.append({})
        blocks[-1][step] = match["verdict"]
    complete = [block for block in blocks if block.keys() >= set(range(1, steps + 1))]
    return complete[-1] if complete else {step: verdict for block in blocks for step, verdict in block.items()}


def _score(step: int, text: str, reply: str) -> int:
    if not (match := _SCORE.fullmatch(text)):
        raise ContractFault(
            f"the score of step {step} is '{text[:40]}', not a whole number from 0 to {MAX_SCORE}", reply
        )
    return int(match[1])
