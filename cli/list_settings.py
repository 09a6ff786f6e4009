"""`dubito settings`: every setting of a graph, its value, and where the value comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..graphs.registry import DEFAULT_GRAPH, graph_named
from ..render.sanitize import one_line
from ..render.screen import console, print_json, show, working
from .options import AsJson, Assignments, ConfigFile, GraphName

if TYPE_CHECKING:
    from collections.abc import Container

    from ..state.context import BaseContext

EXAMPLES = (
    "dubito settings df_rag",
    "dubito settings seakr --config paper.toml --set preset=paper",
    "DUBITO_K=8 dubito settings vanilla_rag --json",
)


def settings(
    graph: GraphName = DEFAULT_GRAPH,
    *,
    assignments: Assignments = None,
    config_file: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """List every setting of a graph: its value, where the value comes from, what it may be, what it means.

    Later ones win: the built-in default or the preset, the configuration file, the environment (DUBITO_K for the
    setting k), what a request or --set gives.
    """
    with working("loading", as_json=as_json):
        from ..graphs.context_from_text import context_for, given_values  # noqa: PLC0415 - keeps `--help` quick

        asked = graph_named(graph)
        context, typed = context_for(asked, {}, assignments or []), given_values(asked, {}, assignments or [])
        listed = [described(name, context, typed) for name in context.in_order()]
    if as_json:
        print_json({"graph": graph, "settings": listed})
        return
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for column in ("setting", "value", "from", "meaning"):
        table.add_column(column, overflow="fold", max_width=None if column == "meaning" else 24)
    for setting in listed:
        meaning = Text(setting["meaning"])
        if setting["allowed"] != "text":
            meaning.append(f" May be {setting['allowed']}.", "dim")
        if setting["without_effect"]:
            meaning.append(f" {setting['without_effect']}.", "yellow")
        style = "" if setting["source"] in {"default", "preset"} else "bold"
        value = one_line(str(setting["value"]).lower() if isinstance(setting["value"], bool) else str(setting["value"]))
        table.add_row(setting["name"], Text(value, style), Text(one_line(setting["place"])), meaning)
    show(console(), table)


def described(name: str, context: BaseContext, typed: Container[str]) -> dict[str, Any]:
    """A setting with its value. typed: the settings that the command names."""
    from ..state.context import PRESET  # noqa: PLC0415 - keeps `--help` quick
    from ..state.wrong_settings import allowed  # noqa: PLC0415

    field, found = type(context).model_fields[name], context.configured().get(name)
    cause = context.made_useless_by(name)
    if name in typed:
        source, place = "option", "--set"
    elif found and cause is None:
        source, place = found.source, found.place
    else:
        source, place = ("preset", f"preset {context.preset}") if field.default == PRESET else ("default", "default")
    return {
        "name": name,
        "value": getattr(context, name),
        "source": source,
        "place": place,
        "allowed": allowed(field),
        "meaning": field.description,
        "without_effect": f"No effect with {cause}={getattr(context, cause)}" if cause else "",
    }
