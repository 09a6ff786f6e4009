"""The graphs by name."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .. import __all__ as exported
from ..errors import UserFault, closest, either

if TYPE_CHECKING:
    from langgraph.graph.state import CompiledStateGraph

    from ..models.resources import Resources

    Graph = CompiledStateGraph[Any, Any, Any, Any]


def graph_names() -> list[str]:
    """The graphs there are."""
    return [name for name in exported if not name.startswith("_")]


def graph_named(name: str, resources: Resources | None = None) -> Graph:
    """The compiled graph of that name, over resources of the caller's own if given; `UserFault` for an unknown one."""
    if name not in graph_names():
        raise UserFault(f"There is no graph named '{name}': use {either(graph_names())}{closest(name, graph_names())}.")
    module = import_module(f".{name}", __package__)
    graph: Graph = module.graph if resources is None else module.build(resources).compile(name=name)
    return graph
