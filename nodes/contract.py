"""Asking for a reply that keeps a prompt's contract: twice at most, the second time with the error named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from ..errors import ContractFault
from ..models.interfaces import ChatModel, Message, Sampling

T = TypeVar("T")


async def ask(llm: ChatModel, messages: Sequence[Message], sampling: Sampling, parse: Callable[[str], T]) -> T:
    """Complete and parse; a reply that breaks the contract is asked again once, then `ContractFault` leaves."""
    reply = (await llm.complete(messages, replace(sampling, n=1))).text
    try:
        return parse(reply)
    except ContractFault as fault:
        again: list[Message] = [
            *messages,
            {"role": "assistant", "content": reply or "(nothing)"},
            {"role": "user", "content": f"This reply cannot be used: {fault.problem}. Reply again in the asked form."},
        ]
    return parse((await llm.complete(again, replace(sampling, n=1))).text)
