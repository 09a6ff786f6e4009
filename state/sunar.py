"""State and context of `sunar`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from typing_extensions import TypedDict

from .flow import Answered, Flow
from .neighbourhood import Ending, NeighbourhoodContext, Scored
from .records import Chunk, extend


class Hop(TypedDict):
    """One step of the reasoning path: what was looked up, what was found, and how.

    evidence_ids: the documents the answer was made from, best first; scored: every document that was scored for it.
    """

    question: str
    answer: str
    evidence_ids: list[str]
    scored: list[Scored]
    stopped: Ending


class SunarState(Flow, total=False):
    """What flows through SUNAR.

    query: the sub-question to look up next, null when there is none; hops: what was looked up so far;
    library: every hop's best documents by id; sequential_answer: what the decomposition arrives at;
    meta_evidence: the hops' best documents, ranked for the question itself; changed: whether reading them again gave
    another answer. The rest comes from the last look-up.
    """

    query: str | None
    hops: Annotated[list[Hop], extend]
    library: dict[str, Chunk]
    sequential_answer: str
    meta_evidence: list[Chunk]
    changed: bool
    scored: list[Scored]
    stopped: Ending


class SunarOutput(Answered):
    """The answer, the path that led to it, and whether reading all evidence again changed it."""

    hops: list[Hop]
    sequential_answer: str
    changed: bool


class SunarContext(NeighbourhoodContext):
    """Settings of SUNAR (section 3), and of its variants: penalty 'none' is -ASU, meta_evidence off is -MER."""

    max_hops: int = Field(
        default=6, ge=1, le=100, title="Sub-questions", description="How many sub-questions are asked at most."
    )
    meta_evidence: bool = Field(
        default=True,
        title="Meta evidence (MER)",
        description="Read the best evidence of all sub-questions again before the final answer.",
    )
    documents_per_hop: int = Field(
        default=2,
        ge=1,
        le=100,
        title="Documents a sub-question",
        description="How many documents of each sub-question go into the meta evidence.",
    )
    meta_documents: int = Field(
        default=10, ge=1, le=1000, title="Meta evidence's size", description="How many of those are read in the end."
    )
