"""What may be chosen on the page: what dubito brings, and what the person who started it named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import UserFault, either
from ...models.resources import QDRANT, corpus_path, open_chat_model

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from ...state.context import BaseContext

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
    """The settings that something was named for; the first of it is what the form begins with."""

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
                raise Forbidden(
                    f"{name} '{value}' is not on offer on this page: choose {choice}, or have it added by "
                    f"--allow {name}={value} when dubito ui is started."
                )

    def allows(self, context: BaseContext) -> bool:
        """Would `check` let it pass?"""
        try:
            self.check(context)
        except Forbidden:
            return False
        return True


def offered(corpora: Sequence[str], llm: str | None, others: Iterable[str]) -> Offer:
    """The offer of a command line: `--corpus`, `--llm` and `--allow SETTING=VALUE`.

    Raises `UserFault` for a corpus that is not there, a chat model of no known kind and a setting that is none of
    these.
    """
    named: dict[str, list[str]] = {name: [] for name in BUILT_IN}
    named["corpus"] += corpora
    named["llm"] += [llm] if llm else []
    for one in others:
        name, sign, value = one.partition("=")
        if name not in named or not sign or not value:
            raise UserFault(
                f"--allow takes setting=value, such as --allow judge=nli:my-cross-encoder, for {either(list(named))}, "
                f"and got '{one}'."
            )
        named[name].append(value)
    for corpus in named["corpus"]:
        if not corpus.startswith(QDRANT) and not corpus_path(corpus).exists():
            raise UserFault(f"There is no corpus at '{corpus}': give an index folder, or a corpus file or folder.")
    for model in named["llm"]:
        open_chat_model(model)
    values = {name: tuple(dict.fromkeys([*more, *BUILT_IN[name]])) for name, more in named.items()}
    return Offer(values, frozenset(name for name, more in named.items() if more))


def is_text(field: FieldInfo) -> bool:
    """Can the setting be any text, not one of a few words?"""
    return field.annotation is str
