"""The pages of the papers have a row for each section, table and figure, and name what dubito has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from dubito.evals.datasets import KINDS
from dubito.graphs.context_from_text import context_for
from dubito.graphs.registry import graph_named, graph_names
from dubito.tests.unit.test_docs import is_command

ROOT = Path(__file__).parents[2]


FILE = r"[\w/]+\.(?:py|jinja)"


class Paper(NamedTuple):
    """graphs: whose settings a row may name alone; sections: the innermost; tables, figures: how many."""

    graphs: tuple[str, ...]
    sections: str
    tables: int
    figures: int


PAPERS = {
    "dense_rag": Paper(
        ("dense_rag", "dense"),
        "1 2 3 4.1 4.2 5.1 5.2 6.1 6.2.1 6.3 6.4.1 6.4.2 7 A B.1 B.2 B.3 B.4 C D E.1 E.2 E.3 F G H.1 I J K L",
        12,
        6,
    ),
    "seper": Paper(
        ("seper",),
        "1 2 3.1 3.2 3.3 3.4 4.1.1 4.1.2 4.2 5.1 5.2 5.3 5.4 5.5 6 7 A.1 A.2.1 B.1 B.2 B.3 B.4 C.1 C.2 "
        "D.1 D.2 D.3 D.4 D.5 D.6",
        13,
        7,
    ),
    "df_rag": Paper(
        ("df_rag",),
        "1 2.1 2.2 2.3 3.1 3.2 3.3 3.4 3.5 4.1 4.2 4.3 5.1 5.2 5.3 5.4 5.5 5.6 6 A.1 A.2 A.3 B.1 B.2 B.3 C.1 C.2 C.3",
        6,
        12,
    ),
    "sunar": Paper(("sunar", "neighbourhood"), "", 0, 0),  # of its tables, the summary names Table 4 alone
    "seakr": Paper(
        ("seakr",),
        "1 2.1 2.2 3.1 3.2 3.3 3.4 4.1.1 4.1.2 4.1.3 4.2.1 4.2.2 5.1 5.2 5.3 5.4 6 A B C.1 C.2 C.3 D.1 D.2 D.3 D.4",
        9,
        7,
    ),
}


def rows(paper: str) -> list[tuple[str, str]]:
    """The two cells of each row of the paper's table, without its head."""
    page = (ROOT / "docs" / "papers" / f"{paper}.md").read_text(encoding="utf-8")
    section = page.partition("\n## Section by section\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [(left.strip(), right.strip()) for left, right in (line.strip("|").split("|") for line in lines)]


def numbered(word: str, text: str) -> set[int]:
    """The numbers after a word: "Tables 5 and 6" are 5 and 6, "Figures 8 to 12" are 8, 9, 10, 11 and 12."""
    found = set()
    for first, joint, last in re.findall(rf"{word}s? (\d+)(?: (to|and) (\d+))?", text):
        found |= {int(first)} | (set(range(int(first), int(last) + 1)) if joint == "to" else {int(last or first)})
    return found


def sections_of(items: list[str]) -> set[str]:
    """The sections that first cells name: "B.1 to B.3" are B.1, B.2 and B.3."""
    others = r"\(eq\. [^)]*\)|lines? [\d-]+|(Table|Figure|Algorithm)s? \d+((, | and | to )\d+)*"
    text = "\n".join(re.sub(others, "", item) for item in items)
    found = set(re.findall(r"(?<![\w.])(?:\d|[A-L])(?:\.\d)*(?![\w.])", text))
    for part, first, last in re.findall(r"(\w)\.(\d) to \1\.(\d)", text):
        found |= {f"{part}.{number}" for number in range(int(first), int(last) + 1)}
    return found


def exists(name: str, row: str, graphs: tuple[str, ...]) -> bool:
    """Is this a command, a file, a graph, a kind of dataset, a setting, a key of an output, or in a file of the row?"""
    if name.startswith("dubito "):
        return is_command(name)
    if re.fullmatch(FILE, name):
        return (ROOT / name).is_file()
    if "=" in name:
        graph, colon, settings = name.partition(":")
        named, settings = ([graph], settings) if colon and "=" not in graph else (graphs[:1], name)
        context_for(graph_named(named[0]), {}, settings.split(","))  # raises for an unknown setting or a wrong value
        return True
    if name in {*graph_names(), *KINDS}:
        return True
    schemas: list[Any] = [graph_named(graph) for graph in graphs]
    keys = {key for graph in schemas for key in graph.get_output_jsonschema()["properties"]}
    inputs = {key for graph in schemas for key in graph.get_input_jsonschema()["properties"]}
    fields = {field for graph in schemas for field in graph.builder.context_schema.model_fields}
    code = "\n".join((ROOT / file).read_text(encoding="utf-8") for file in re.findall(f"`({FILE})`", row))
    defined = rf"^ *(async )?(def|class) {re.escape(name)}\b|^ *{re.escape(name)}(:| =)"
    return name in keys | inputs | fields or bool(re.search(defined, code, re.MULTILINE))


@pytest.mark.parametrize("paper", PAPERS)
def test_every_section_table_and_figure_has_a_row(paper: str) -> None:
    items = [item for item, _ in rows(paper)]
    text = "\n".join(items)
    assert sections_of(items) >= set(PAPERS[paper].sections.split())
    assert numbered("Table", text) >= set(range(1, PAPERS[paper].tables + 1))
    assert numbered("Figure", text) >= set(range(1, PAPERS[paper].figures + 1))
    assert len(items) == len(set(items)) > 30


@pytest.mark.parametrize("paper", PAPERS)
def test_no_row_is_empty_and_every_name_exists(paper: str) -> None:
    for item, row in rows(paper):
        assert item, row
        assert row.endswith("."), item
        for name in re.findall(r"`([^`]+)`", row):
            assert exists(name, row, PAPERS[paper].graphs), f"{item}: {name}"


@pytest.mark.parametrize("paper", PAPERS)
def test_the_rows_lead_to_the_code(paper: str) -> None:
    functions = [name for _, row in rows(paper) for name in re.findall(rf"`{FILE}` `(\w+)`", row)]
    assert len(set(functions)) > 8


@pytest.mark.parametrize(
    "name", ["dubito eval --no-such", "nodes/none.py", "prompts/none.jinja", "no_such_setting", "df_rag_2"]
)
def test_a_name_that_is_not_there_is_found_out(name: str) -> None:
    assert not exists(name, f"`{name}`", ("df_rag",))


def test_a_function_is_looked_for_in_the_files_of_its_row() -> None:
    assert exists("chosen_level", "`nodes/choose_lambda.py` `chosen_level`", ("df_rag",))
    assert not exists("chosen_level", "`nodes/plan.py` `chosen_level`", ("df_rag",))
