"""What the documentation shows is what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from dubito.graphs import df_rag, vanilla_rag
from dubito.state.context import BaseContext
from dubito.state.df_rag import DFRagContext

ROOT = Path(__file__).parents[2]


def settings_table(context: type[BaseContext]) -> str:
    """The rows of a settings table, from the context's own descriptions."""
    rows = []
    for name, field in context.model_fields.items():
        default = getattr(context(), name)
        rows.append(f"| `{name}` | `{default}` | {field.description} |")
    return "\n".join(rows)


def test_df_rag_page_shows_the_compiled_graph_and_its_settings() -> None:
    page = (ROOT / "docs" / "df_rag.md").read_text(encoding="utf-8")
    assert df_rag.graph.get_graph().draw_mermaid().strip() in page
    assert settings_table(DFRagContext) in page


@pytest.mark.parametrize("module", [df_rag, vanilla_rag])
def test_drawn_graphs_are_those_of_the_code(module: object) -> None:
    graph = module.graph  # type: ignore[attr-defined]
    drawn = (ROOT / "docs" / "graphs" / f"{graph.name}.mmd").read_text(encoding="utf-8")
    assert drawn.strip() == graph.get_graph().draw_mermaid().strip()


@pytest.mark.parametrize("page", sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]), ids=lambda p: p.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", text):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
