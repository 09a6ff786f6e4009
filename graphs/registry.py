"""The techniques by name. The folder is the list: a module beside this one that defines `build` and `graph` is one."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..errors import UserFault, closest, either
from . import __path__ as folders

if TYPE_CHECKING:
    from langgraph.graph.state import CompiledStateGraph

    from ..resources.resources import Resources
    from ..state.context import BaseContext

    Graph = CompiledStateGraph[Any, Any, Any, Any]

DEFAULT_GRAPH = "df_rag"
"""The graph that the command line and the page use if no graph is named."""

CHAT = "_chat"
"""The end of the name of a graph's chat form."""

DEFINES_A_GRAPH = re.compile(r"^graph\b[^\n]* = ", re.MULTILINE)

# the text is searched, since importing every technique takes seconds; here and not in a function, since reading a file
# on an event loop would block it
_NAMES = sorted(
    file.stem
    for folder in folders
    for file in Path(folder).glob("*.py")
    if DEFINES_A_GRAPH.search(file.read_text(encoding="utf-8"))
)


def graph_names() -> list[str]:
    """The names of all graphs, sorted."""
    return list(_NAMES)


def graph_named(name: str, resources: Resources | None = None) -> Graph:
    """The compiled graph of that name, with the caller's own resources if given; `UserFault` for an unknown name."""
    if name not in _NAMES:
        raise UserFault(f"There is no graph named '{name}': use {either(_NAMES)}{closest(name, _NAMES)}.")
    module = import_module(f".{name}", __package__)
    graph: Graph = module.graph if resources is None else module.build(resources).compile(name=name)
    return graph


def technique_of_chat(name: str) -> str:
    """The graph whose chat form has that name; empty for any other name."""
    technique = name.removesuffix(CHAT)
    return technique if technique != name and technique in _NAMES else ""


def context_type(graph: Graph) -> type[BaseContext]:
    """The type of a graph's settings."""
    return cast("type[BaseContext]", graph.builder.context_schema)


def takes_a_plain_question(graph: Graph) -> bool:
    """Is a question enough for a run? SePer also needs the right answers."""
    return bool(graph.get_input_jsonschema().get("required") == ["question"])


def takes_answers(graph: Graph) -> bool:
    """Does the graph's input have right answers?"""
    return "answers" in graph.get_input_jsonschema()["properties"]
