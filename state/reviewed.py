"""State of a graph in which a person reviews uncertain answers."""

from typing import Annotated, Any, Literal

from typing_extensions import TypedDict

from .flow import Answered, Flow
from .records import Chunk, extend

Action = Literal["accept", "answer", "stop"]
"""accept: give the answer as it is. answer: answer again from other chunks. stop: give no answer."""


class Decision(TypedDict, total=False):
    """A person's decision; chunks: texts, or records with a text, for the action answer."""

    action: Action
    chunks: list[str | Chunk]


class ReviewedState(Flow, total=False):
    """The state of a reviewed graph.

    chunks: the chunks that a person gave for the next answer, null for retrieved chunks;
    certain, dse: figures of the latest answer, as in DENSE; decisions: all decisions in order.
    """

    chunks: list[str | Chunk] | None
    certain: bool
    dse: float
    decisions: Annotated[list[Decision], extend]


class ReviewedOutput(Answered):
    """The answer, how uncertain it is, and the decisions of a person."""

    certain: bool
    dse: float
    decisions: list[dict[str, Any]]
