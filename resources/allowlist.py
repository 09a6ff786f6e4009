"""The allow-list of a server: the models, corpora and other resources that a request may name."""

import asyncio
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache

from ..errors import UserFault, either
from ..settings import settings
from ..state.context import BaseContext, all_contexts, marks_of
from .opening import check_corpus, open_chat_model


class Forbidden(UserFault):
    """A setting names a resource that is not allowed."""


@dataclass(frozen=True)
class AllowList:
    """The allowed values of each setting that names a resource: built-in, added and configured ones.

    added: by setting, the values that were added; how_to_add: how to add a value, a clause with {name} and {value}.
    """

    added: Mapping[str, Sequence[str]]
    how_to_add: str

    def values(self, name: str, schema: type[BaseContext]) -> Sequence[str]:
        """The allowed values of a setting, the operator's first. Text without a mark may only have its default."""
        field = schema.model_fields[name]
        marks = marks_of(field)
        built_in = marks["built_in"] if "resource" in marks else [str(field.default)]
        configured = [str(found.value) for setting, found in schema.configured().items() if setting == name]
        return list(dict.fromkeys([*configured, *self.added.get(name, ()), *built_in]))

    def check(self, context: BaseContext) -> None:
        """Raise `Forbidden` for a setting with a value that is not allowed; a preset's values are checked too.

        Of the graph's parts the settings of their own are checked.
        """
        self._check(context, type(context).model_fields)
        for part, names in context.parts():
            self._check(part, names)

    def _check(self, context: BaseContext, names: Iterable[str]) -> None:
        for name in names:
            field, value = type(context).model_fields[name], getattr(context, name)
            if field.annotation is not str or marks_of(field).get("resource", "unknown") is None:
                continue
            if value not in (allowed := self.values(name, type(context))):
                choice = either([one or "an empty text" for one in allowed])
                how = self.how_to_add.format(name=name, value=value)
                raise Forbidden(f"{name} '{value}' is not allowed here: use {choice}, or {how}.")

    def allows(self, context: BaseContext) -> bool:
        """Would `check` accept the context?"""
        try:
            self.check(context)
        except Forbidden:
            return False
        return True


of_this_run: ContextVar[AllowList | None] = ContextVar("of_this_run", default=None)
"""The allow-list of the page that started a run, which then counts in place of DUBITO_ALLOW."""


async def check_allowed(context: BaseContext) -> None:
    """Raise `Forbidden` for a resource that the run's list or DUBITO_ALLOW does not name; without a list, never."""
    allowed = of_this_run.get()
    if allowed is None and settings().allow not in {None, "*"}:
        allowed = await asyncio.to_thread(process_allow_list)  # in a thread: it looks for the corpora on disk
    if allowed is not None:
        allowed.check(context)


@lru_cache(maxsize=1)
def process_allow_list() -> AllowList:
    """The allow-list of the environment variable DUBITO_ALLOW, read once."""
    how_to_add = "have {name}={value} added to DUBITO_ALLOW where the server is started"
    return allow_list(configured_list(), "DUBITO_ALLOW", how_to_add)


def configured_list() -> Sequence[str]:
    """The SETTING=VALUE in DUBITO_ALLOW, which '*' has none of; raises `UserFault` if it cannot be read."""
    allow = settings().allow
    try:
        return [] if allow is None or allow == "*" else shlex.split(allow)
    except ValueError as fault:
        raise UserFault(f"DUBITO_ALLOW cannot be read ({fault}): close its quotation marks.") from fault


def allow_list(assignments: Iterable[str], source: str, how_to_add: str) -> AllowList:
    """The allow-list of a sequence of SETTING=VALUE.

    source: the name of the sequence, for messages; how_to_add: see `AllowList`. Raises `UserFault` for a corpus that
    does not exist, an unknown chat model, and a setting that names no resource.
    """
    kinds = _resource_settings()
    added: dict[str, list[str]] = {}
    for assignment in assignments:
        name, sign, value = assignment.partition("=")
        if name not in kinds or not sign or not value:
            raise UserFault(
                f"{source} takes setting=value, such as judge=nli:my-cross-encoder, for {either(list(kinds))}, and got "
                f"'{assignment}'."
            )
        added.setdefault(name, []).append(value)
        if kinds[name] == "corpus":
            check_corpus(value)
        elif kinds[name] == "chat model":
            open_chat_model(value)
    return AllowList(added, how_to_add)


def _resource_settings() -> dict[str, str]:
    """The settings of all techniques that name a resource, each with its kind."""
    fields = [entry for context in all_contexts() for entry in context.model_fields.items()]
    return dict(sorted((name, kind) for name, field in fields if (kind := marks_of(field).get("resource"))))
