"""What the documentation shows is what the code does."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from dubito.graphs import (
    cot,
    dense,
    dense_rag,
    df_rag,
    flare,
    ircot,
    iter_retgen,
    neighbourhood,
    seakr,
    seper,
    sunar,
)
from dubito.graphs.registry import graph_names
from dubito.state.baselines import FlareContext, IRCoTContext, IterRetgenContext
from dubito.state.context import BaseContext
from dubito.state.dense_rag import DenseRagContext
from dubito.state.df_rag import DFRagContext
from dubito.state.reasoning import ReasoningContext
from dubito.state.seakr import SeaKRContext
from dubito.state.seper import SePerContext
from dubito.state.sunar import SunarContext

ROOT = Path(__file__).parents[2]


def settings_table(context: type[BaseContext]) -> str:
    """The rows of a settings table, from the context's own descriptions."""
    rows = []
    for name, field in context.model_fields.items():
        default = getattr(context(), name)
        rows.append(f"| `{name}` | `{default}` | {field.description} |")
    return "\n".join(rows)


@pytest.mark.parametrize(
    ("name", "modules", "context"),
    [
        ("df_rag", [df_rag], DFRagContext),
        ("dense_rag", [dense, dense_rag], DenseRagContext),
        ("sunar", [neighbourhood, sunar], SunarContext),
        ("seakr", [seakr], SeaKRContext),
        ("seper", [seper], SePerContext),
        ("baselines", [cot], ReasoningContext),
        ("baselines", [ircot], IRCoTContext),
        ("baselines", [flare], FlareContext),
        ("baselines", [iter_retgen], IterRetgenContext),
    ],
)
def test_a_techniques_page_shows_its_graphs_and_its_settings(
    name: str, modules: list[Any], context: type[BaseContext]
) -> None:
    page = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    for module in modules:
        assert module.graph.get_graph().draw_mermaid().strip() in page
    assert settings_table(context) in page


@pytest.mark.parametrize("name", graph_names())
def test_drawn_graphs_are_those_of_the_code(name: str) -> None:
    graph: Any = import_module(f"dubito.graphs.{name}").graph
    drawn = (ROOT / "docs" / "graphs" / f"{graph.name}.mmd").read_text(encoding="utf-8")
    assert drawn.strip() == graph.get_graph(xray=True).draw_mermaid().strip()


@pytest.mark.parametrize("page", sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]), ids=lambda p: p.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", text):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
