"""Chooses the settings that are `auto`, once the chat model is open and has shown what it can do."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from ..errors import ModelFault, ModelUnavailable
from ..models.weights import can_encode
from ..state.context import BaseContext

if TYPE_CHECKING:
    from ..state.capability import Means
    from .resources import Resources

C = TypeVar("C", bound=BaseContext)


async def fitted(context: C, resources: Resources) -> C:
    """The settings with a value for each `auto`.

    A model on a server is asked first whether it is there; then for what the settings use and it only claims (see
    `Checkable`). Both happen once a model. Raises `ModelUnavailable` for a server that does not answer.
    """
    llm = await resources.llm(context)
    try:
        await llm.check(frozenset())
        encoder = await _encoder(context, resources)
        while True:
            chosen = context.fitted(llm.capabilities | encoder)
            if not await llm.check(chosen.uses() & llm.capabilities):
                return chosen
    except ModelFault as fault:
        raise ModelUnavailable(fault.endpoint, fault.attempts or 1, fault.reason) from None


async def _encoder(context: BaseContext, resources: Resources) -> frozenset[Means]:
    name = getattr(context, "encoder", "")
    can = resources.has_encoder or await asyncio.to_thread(can_encode, name)
    return frozenset({"encoder"}) if can else frozenset()
