"""What a shell offers when Tab is pressed behind a graph's name or `--set`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import typer

from ..graphs.registry import graph_named, graph_names

if TYPE_CHECKING:
    from ..state.context import BaseContext

DEFAULT = "df_rag"
"""The graph that is asked where none is named."""


def graphs(incomplete: str) -> list[str]:
    """The graphs whose names begin so."""
    return [name for name in graph_names() if name.startswith(incomplete)]


def settings(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """The graph's settings that begin so, with what they are called; behind `name=` the values that are words."""
    name = ctx.params.get("graph") or DEFAULT
    if name not in graph_names():
        return []
    context = cast("type[BaseContext]", graph_named(name).builder.context_schema)
    return [found for found in _settings(context) if found[0].startswith(incomplete)]


def _settings(context: type[BaseContext]) -> Iterator[tuple[str, str]]:
    for name, about in context.model_json_schema()["properties"].items():
        yield f"{name}=", about["title"]
        words = ["true", "false"] if about.get("type") == "boolean" else about.get("enum", ())
        for word in words:
            yield f"{name}={word}", about["title"]
