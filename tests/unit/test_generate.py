"""The files that `make generate` writes from the code."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from dubito.docs import generate
from dubito.errors import UserFault
from dubito.graphs.registry import context_type, graph_named, graph_names, takes_a_plain_question
from dubito.presenters.presenter import Presenter, presenter_of

PAGE = """# A page

<!-- figure cot -->

REPLACED

<!-- end -->

text

<!-- settings cot -->
<!-- end -->

more text

<!-- settings shared -->
REPLACED
<!-- end -->
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A root whose generated files are up to date."""
    for name in ("__init__.py", "pyproject.toml", "mkdocs.yml"):
        shutil.copy(generate.ROOT / name, tmp_path / name)
    (tmp_path / "docs" / "graphs").mkdir(parents=True)
    (tmp_path / "docs" / "reference" / "graphs").mkdir(parents=True)
    (tmp_path / "docs" / "page.md").write_text(PAGE, encoding="utf-8")
    generate.write(tmp_path)
    return tmp_path


def test_a_file_that_differs_from_the_code_is_out_of_date(repository: Path) -> None:
    assert list(generate.stale(repository)) == []
    page = repository / "docs" / "page.md"
    page.write_text(page.read_text(encoding="utf-8").replace("`max_steps`", "`steps`"), encoding="utf-8")
    for name in ("__init__.py", "langgraph.json", "mkdocs.yml"):
        file = repository / name
        file.write_text(file.read_text(encoding="utf-8").replace("flare", "glare"), encoding="utf-8")
    (repository / "docs" / "graphs" / "cot.mmd").unlink()
    (repository / "docs" / "graphs" / "gone.mmd").touch()
    (repository / "docs" / "reference" / "graphs" / "gone.md").touch()
    out_of_date = {file.name for file in generate.stale(repository)}
    assert out_of_date == {"page.md", "__init__.py", "langgraph.json", "mkdocs.yml", "cot.mmd", "gone.mmd", "gone.md"}
    generate.write(repository)
    assert list(generate.stale(repository)) == []


def test_a_page_keeps_its_own_text_around_the_generated(repository: Path) -> None:
    page = (repository / "docs" / "page.md").read_text(encoding="utf-8")
    assert page.startswith("# A page\n\n<!-- figure cot -->\n\n```mermaid\n")
    assert "\n\n<!-- end -->\n\ntext\n\n<!-- settings cot -->\n\n| setting | default | meaning |" in page
    assert "| `max_steps` | `10` |" in page
    assert "\n\n<!-- end -->\n\nmore text\n\n<!-- settings shared -->\n\n| setting |" in page
    assert "REPLACED" not in page


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("<!-- figure cot -->\n\nkept\n\n<!-- settings cot -->\n<!-- end -->\n", "page.md has '<!-- figure cot -->'"),
        ("<!-- figure cot -->\n<!-- end -->\n\n<!-- settings cot -->\n\nkept\n", "page.md has '<!-- settings cot -->'"),
        ("<!-- setting cot -->\n\nkept\n\n<!-- end -->\n", "page.md has '<!-- end -->'"),
        ("<!-- figure cott -->\n\nkept\n\n<!-- end -->\n", "<!-- figure cott --> names no graph"),
    ],
    ids=["inside another", "never ended", "misspelt", "of no graph"],
)
def test_a_marker_that_has_no_place_is_refused_and_nothing_is_written(
    repository: Path, text: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = repository / "docs" / "page.md"
    page.write_text(text, encoding="utf-8")
    monkeypatch.setattr(generate, "ROOT", repository)
    for arguments in ([], ["--check"]):
        monkeypatch.setattr("sys.argv", ["generate.py", *arguments])
        with pytest.raises(SystemExit, match=named):
            generate.main()
    assert page.read_text(encoding="utf-8") == text


def test_a_graph_that_nobody_describes_is_refused(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without = {"cot": Presenter("cot")}
    monkeypatch.setattr(generate, "presenter_of", lambda name: without.get(name) or presenter_of(name))
    with pytest.raises(UserFault, match=r"'cot' has no presenter.* define .presenter. .*presenters/cot\.py"):
        list(generate.stale(repository))


@pytest.mark.parametrize(
    ("whole", "part", "lacks", "has"),
    [("dense_rag", "dense", "max_chunks", "task"), ("sunar", "neighbourhood", "max_hops", "budget")],
)
def test_a_graph_with_a_part_says_which_settings_the_part_lacks(whole: str, part: str, lacks: str, has: str) -> None:
    sentence = generate.settings(graph_named(whole)).partition(
        f"The graph `{part}`, a part of it, has all of these but "
    )[2]
    assert (f"`{lacks}`" in sentence, f"`{has}`" in sentence) == (True, False)
    assert "a part of it" not in generate.settings(graph_named("escalate")), "its rungs have settings of their own"


def test_a_graph_s_table_has_its_own_settings_and_the_shared_ones_stand_once(repository: Path) -> None:
    page = (repository / "docs" / "page.md").read_text(encoding="utf-8")
    own, _, shared = page.partition("<!-- settings cot -->")[2].partition("<!-- settings shared -->")
    assert re.findall(r"^\| `(\w+)` ", own, re.M) == ["max_steps", "max_step_tokens"]
    assert "`cot` also has the [shared settings](settings.md#shared-settings) `llm`, `preset`, " in own
    rows = [line.strip("|").split(" | ") for line in shared.splitlines() if line.startswith("| `")]
    of = {(name.strip(" `"), meaning): (default, graphs_of(graphs)) for name, default, graphs, meaning in rows}
    assert [graphs for (name, _), (_, graphs) in of.items() if name == "llm"] == [set(graph_names())]
    ((default, graphs),) = [row for (name, _), row in of.items() if name == "chunker"]
    assert graphs == having("chunker")
    assert "`tokens:128/16` in `dense`, `dense_rag`" in default
    one, other = [graphs for (name, _), (_, graphs) in of.items() if name == "reranker"]  # one name, two meanings
    assert (one | other, one & other) == (having("reranker"), set())
    assert any("dense" in graphs and "sunar" not in graphs for graphs in (one, other))
    assert len(rows) == len({tuple(row) for row in rows})


def graphs_of(cell: str) -> set[str]:
    """The graphs that a cell of the table names."""
    named = set(re.findall(r"`(\w+)`", cell))
    return set(graph_names()) - named if cell.startswith("all") else named


def having(setting: str) -> set[str]:
    return {name for name in graph_names() if setting in context_type(graph_named(name)).model_fields}


def test_the_reference_has_a_page_of_every_graph(repository: Path) -> None:
    pages = repository / "docs" / "reference" / "graphs"
    assert {page.stem for page in pages.iterdir()} == set(graph_names())
    assert all(f"reference/graphs/{name}.md\n" in (repository / "mkdocs.yml").read_text() for name in graph_names())
    sunar = (pages / "sunar.md").read_text(encoding="utf-8")
    assert "[Question](../state.md#dubito.state.flow.Question)" in sunar
    assert "::: dubito.state.sunar.SunarOutput\n\n::: dubito.state.sunar.Hop\n" in sunar
    assert "[ReasoningOutput](cot.md#dubito.state.reasoning.ReasoningOutput)" in (pages / "ircot.md").read_text()


def test_the_server_has_every_graph_and_its_other_forms(repository: Path) -> None:
    entries = json.loads((repository / "langgraph.json").read_text(encoding="utf-8"))["graphs"]
    chats = [f"{name}_chat" for name in graph_names() if takes_a_plain_question(graph_named(name))]
    assert list(entries) == sorted([*graph_names(), *chats, "dense_rag_reviewed"])
    assert entries["sunar_chat"]["path"] == "dubito.graphs.chat:sunar"
    assert all(entry["description"] for entry in entries.values())


def test_the_page_about_studio_shows_what_the_server_gives() -> None:
    lines = generate.studio(graph_named("df_rag")).splitlines()
    assert "| Corpus | `sample` | a text |" in lines
    assert "| Chunks (k) | `5` | a whole number from 1 to 1,000 |" in lines
    assert "| Evaluator | `auto` | one of `auto`, `report`, `choice`, `likelihood` |" in lines
    assert "| `plan` | Longest plan, Longest answer, Thinking | plan |" in lines
    assert "\tplan --> select_lambdas;" in lines
