"""Where SUNAR's documents come from: the first stage and the document graph that the context names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..models.resources import Resources
from ..state.neighbourhood import NeighbourhoodContext

if TYPE_CHECKING:
    from ..retrieval.first_stage import FirstStage
    from ..retrieval.surroundings import Surroundings


async def first_stage_of(context: NeighbourhoodContext, resources: Resources) -> FirstStage:
    """The first stage."""
    return await resources.first_stage(
        context.first_stage, context.corpus, context.chunker, context.encoder, context.on_bad_record
    )


async def graph_of(context: NeighbourhoodContext, resources: Resources) -> Surroundings:
    """The document graph."""
    return await resources.document_graph(
        context.corpus,
        context.chunker,
        context.encoder,
        graph_encoder=context.graph_encoder,
        neighbours=context.graph_neighbours,
        on_error=context.on_bad_record,
    )
