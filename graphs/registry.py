"""The graphs by name."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .. import __all__ as exported
from ..errors import UserFault, closest, either

if TYPE_CHECKING:
    from langgraph.graph.state import CompiledStateGraph

    Graph = CompiledStateGraph[Any, Any, Any, Any]


def graph_names() -> list[str]:
    """The graphs there are."""
    return [name for name in exported if not name.startswith("_")]


def graph_named(name: str) -> Graph:
    """The compiled graph of that name; `UserFault` for an unknown one."""
    if name not in graph_names():
        raise UserFault(f"There is no graph named '{name}': use {either(graph_names())}{closest(name, graph_names())}.")
    graph: Graph = import_module(f".{name}", __package__).graph
    return graph
