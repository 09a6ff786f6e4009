"""The keys every graph has: what comes in, what goes out, what the shared nodes read and write."""

from __future__ import annotations

from typing import Annotated, Any

from typing_extensions import TypedDict

from .records import Chunk, Usage, add_new, add_usage, newest


class Question(TypedDict):
    """What every graph takes."""

    question: str


class Answered(TypedDict):
    """What every graph gives, beside its technique's own figures."""

    answer: str
    evidence: list[Chunk]
    usage: Usage
    warnings: list[str]


class Flow(TypedDict, total=False):
    """The keys that travel through every graph.

    evidence: the chunks the answer is made from, most similar to the question first.
    warnings: what went wrong and was worked around, one sentence each.
    settings: what the last step ran with, in graphs whose routing depends on it: who edits a thread's state gives none.
    """

    question: str
    answer: str
    evidence: list[Chunk]
    usage: Annotated[Usage, add_usage]
    warnings: Annotated[list[str], add_new]
    settings: Annotated[dict[str, Any], newest]


class Grounded(TypedDict, total=False):
    """What the generator reads."""

    question: str
    evidence: list[Chunk]
    incremental_context: list[str]
