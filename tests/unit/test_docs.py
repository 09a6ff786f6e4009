"""The documentation's links lead to files, its reference names what the package has, and its pages are short."""

from __future__ import annotations

import re
import tomllib
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import typer
from dubito.cli import app
from dubito.graphs import reviewed
from dubito.graphs.registry import graph_named, graph_names
from dubito.state.records import add_new, extend, merge
from dubito.tests.documented import is_report

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]), ids=lambda p: p.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", text):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_page_has_its_place_in_the_navigation() -> None:
    _, _, navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")
    listed = set(re.findall(r"\S+\.md$", navigation, re.MULTILINE))
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    assert sorted(pages - listed) == [], "add them to nav in mkdocs.yml"


def test_the_reference_names_what_the_package_has() -> None:
    pages = (ROOT / "docs" / "reference").rglob("*.md")
    names = [
        name for page in pages for name in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert len(names) > 100
    assert [name for name in names if not exists(name)] == []


def exists(name: str) -> bool:
    """Is this a module, or a name in a module?"""
    folder, _, last = name.rpartition(".")
    return hasattr(import_module(folder), last) or find_spec(name) is not None


def is_command(words: str) -> bool:
    """Are these words a command of dubito, with options that it has?"""
    command: Any = typer.main.get_command(app)
    for word in words.split()[1:]:
        if word.startswith("-"):
            if word not in {option for param in command.params for option in param.opts}:
                return False
        elif hasattr(command, "get_command"):
            command = command.get_command(None, word)
    return command is not None


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: page.stem)
def test_a_page_is_short(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert is_report(page) or words(text) <= 1500


def words(text: str) -> int:
    """The words of a page without what is generated, code, and the targets of links."""
    text = re.sub(r"<!-- (figure|settings|backends).*?<!-- end -->", "", text, flags=re.DOTALL)
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return len(re.findall(r"[^\s|]*\w[^\s|]*", text))


def test_the_house_has_every_floor() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    floors = re.findall(r"dubito\.(\w+)", " ".join(contracts[0]["layers"]))
    house = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## The house")[2].partition("\n## ")[0]
    rooms = {name.removesuffix(".py").rstrip("/") for name in re.findall(r"`([\w/.]+)`", house)}
    assert [floor for floor in floors if floor not in rooms] == []


def test_the_page_about_threads_names_every_list_and_dict_that_an_edit_adds_to() -> None:
    page = (ROOT / "docs" / "agents.md").read_text(encoding="utf-8")
    named = page.partition("- An edit adds to lists that grow")[2].partition("\n- ")[0]
    schemas = [graph.builder.state_schema for graph in [*map(graph_named, graph_names()), reviewed.dense_rag]]
    grow = {
        key
        for schema in schemas
        for key, hint in get_type_hints(schema, include_extras=True).items()
        if any(mark in (extend, add_new, merge) for mark in getattr(hint, "__metadata__", ()))
    }
    assert sorted(key for key in grow if f"`{key}`" not in named) == []


def test_words_are_those_that_a_reader_reads() -> None:
    page = "# Two words\n\n```sh\ndubito ask\n```\n\n<!-- settings cot -->\n| not | read |\n<!-- end -->\n\n"
    assert words(page + "| a | [link](page.md) | - |\n|---|---|---|\n") == 4
