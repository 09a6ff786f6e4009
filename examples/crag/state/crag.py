"""State and context of `crag`."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field
from typing_extensions import TypedDict

from .flow import Answered, Flow
from .records import Chunk, merge
from .vanilla_rag import VanillaRagContext


class CragState(Flow, total=False):
    """What flows through CRAG. grades: by chunk id, whether the chunk helps to answer the question."""

    grades: Annotated[dict[str, bool], merge]


class GradeInput(TypedDict):
    """What one grading reads."""

    question: str
    chunk: Chunk


class CragOutput(Answered):
    """The answer, and the grade of every retrieved chunk."""

    grades: dict[str, bool]


class CragContext(VanillaRagContext):
    """Settings of CRAG, and of the retrieval that it grades. It writes marks as plain RAG does."""

    graph: ClassVar[str] = "crag"
    measures_itself: ClassVar[bool] = True
    most_irrelevant: float = Field(
        default=0.5,
        ge=0.0,
        le=1.0,
        title="Most irrelevant",
        description="The answer is called uncertain if a larger share of the retrieved chunks is irrelevant.",
    )
