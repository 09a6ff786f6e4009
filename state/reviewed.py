"""State of a graph whose uncertain answers are shown to a person."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from typing_extensions import TypedDict

from .flow import Answered
from .records import Chunk, Usage, add_new, add_usage, extend

Action = Literal["accept", "answer", "stop"]
"""accept: the answer as it is. answer: once more, from other chunks. stop: no answer."""


class Decision(TypedDict, total=False):
    """What a person decides; chunks: texts, or records with a text, for the action answer."""

    action: Action
    chunks: list[str | Chunk]


class ReviewedState(TypedDict, total=False):
    """A question, the latest answer with its evidence and how far it can be relied on, and what a person decided.

    chunks: what the answer is to be made from next, null for a retrieval; dse, certain: of the latest answer, as in
    DENSE; decisions: in their order.
    """

    question: str
    chunks: list[str | Chunk] | None
    answer: str
    evidence: list[Chunk]
    certain: bool
    dse: float
    decisions: Annotated[list[Decision], extend]
    usage: Annotated[Usage, add_usage]
    warnings: Annotated[list[str], add_new]


class ReviewedOutput(Answered):
    """The answer, how far it can be relied on, and what a person decided on the way."""

    certain: bool
    dse: float
    decisions: list[dict[str, Any]]
