"""Shell completion (Tab) of a graph's name and of the settings behind `--set`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from ..graphs.registry import DEFAULT_GRAPH, context_type, graph_named, graph_names

if TYPE_CHECKING:
    from ..state.context import BaseContext


GRAPH_OF_SETTING = {"retrieval_threshold": "seakr", "penalty": "neighbourhood"}
"""The settings with a calibration of their own, and the graph that is asked."""


def graphs(incomplete: str) -> list[str]:
    """The names of graphs that begin with the typed text."""
    return [name for name in graph_names() if name.startswith(incomplete)]


def settings(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """The completions of a setting, each with the setting's title: `name=`, and `name=word` for its known values."""
    # `seper` and `calibrate df_rag` are named like their graphs, `calibrate retrieval_threshold` like SeaKR's setting
    command = GRAPH_OF_SETTING.get(str(ctx.info_name), ctx.info_name)
    name = ctx.params.get("graph") or (command if command in graph_names() else DEFAULT_GRAPH)
    if name not in graph_names():
        return []
    context = context_type(graph_named(name))
    return [(text, title) for text, title in _assignments(context) if text.startswith(incomplete)]


def _assignments(context: type[BaseContext]) -> Iterator[tuple[str, str]]:
    for name, schema in context.model_json_schema()["properties"].items():
        words = ["true", "false"] if schema.get("type") == "boolean" else schema.get("enum", schema.get("built_in", ()))
        for value in ("", *words):
            yield f"{name}={value}", schema["title"]
