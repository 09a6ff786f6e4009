"""What may be chosen by people whom a server answers: what dubito brings, and what whoever started it named."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from ..errors import UserFault, either
from ..settings import settings
from .resources import check_corpus, open_chat_model

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from ..state.context import BaseContext

BUILT_IN: Mapping[str, Sequence[str]] = {
    "corpus": ("sample",),
    "llm": ("embedded",),
    "encoder": ("embedded",),
    "graph_encoder": ("embedded",),
    "judge": ("embedded", "llm"),
    "reranker": ("embedded", "likelihood"),
    "first_stage": ("bm25", "dense", "hybrid"),
    "calibration": ("",),
}
"""The settings that can name a file, a folder or a server, with what needs none."""

FREE = frozenset({"chunker", "rechunker", "threshold"})
"""Settings of text that cannot."""


class Forbidden(UserFault):
    """A setting names what is not on offer."""


@dataclass(frozen=True)
class Offer:
    """Of each setting of `BUILT_IN` the values on offer, those that were named first."""

    values: Mapping[str, Sequence[str]]
    named: frozenset[str]
    """The settings that something was named for; the first of it is what a form begins with."""
    more: str
    """Who can add to it, and how: a clause in which {name} and {value} stand for a setting."""

    def check(self, context: BaseContext) -> None:
        """Raise `Forbidden` for a setting that names something else, its preset's values included.

        A setting of text that is not known here may only be what it is without being set.
        """
        for name, field in type(context).model_fields.items():
            value = getattr(context, name)
            if not isinstance(value, str) or not is_text(field) or name in FREE:
                continue
            allowed = self.values.get(name, (str(field.default),))
            if value not in allowed:
                choice = either([one or "none" for one in allowed])
                more = self.more.format(name=name, value=value)
                raise Forbidden(f"{name} '{value}' is not on offer here: choose {choice}, or {more}.")

    def allows(self, context: BaseContext) -> bool:
        """Would `check` let it pass?"""
        try:
            self.check(context)
        except Forbidden:
            return False
        return True


async def check_allowed(context: BaseContext) -> None:
    """Raise `Forbidden` for a setting that names what DUBITO_ALLOW does not; where that is not set, all is allowed."""
    if settings().allow is not None:
        offer = await asyncio.to_thread(of_this_process)  # which looks whether the corpora are there
        offer.check(context)


@lru_cache(maxsize=1)
def of_this_process() -> Offer:
    """What DUBITO_ALLOW names, read once."""
    try:
        given = shlex.split(settings().allow or "")
    except ValueError as fault:
        raise UserFault(f"DUBITO_ALLOW cannot be read ({fault}): close its quotation marks.") from fault
    return offered(given, "DUBITO_ALLOW", "have {name}={value} added to DUBITO_ALLOW where the server is started")


def offered(given: Iterable[str], where: str, more: str) -> Offer:
    """The offer of a list of SETTING=VALUE, beside what needs none.

    where: what the list is called, for messages; more: see `Offer`. Raises `UserFault` for a corpus that is not there,
    a chat model of no known kind and a setting that can name no file, folder or server.
    """
    named: dict[str, list[str]] = {name: [] for name in BUILT_IN}
    for one in given:
        name, sign, value = one.partition("=")
        if name not in named or not sign or not value:
            raise UserFault(
                f"{where} takes setting=value, such as judge=nli:my-cross-encoder, for {either(list(named))}, and got "
                f"'{one}'."
            )
        named[name].append(value)
    for corpus in named["corpus"]:
        check_corpus(corpus)
    for model in named["llm"]:
        open_chat_model(model)
    values = {name: tuple(dict.fromkeys([*some, *BUILT_IN[name]])) for name, some in named.items()}
    return Offer(values, frozenset(name for name, some in named.items() if some), more)


def is_text(field: FieldInfo) -> bool:
    """Can the setting be any text, not one of a few words?"""
    return field.annotation is str
