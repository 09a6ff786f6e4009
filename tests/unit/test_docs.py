"""The documentation's links lead to files, and its tables from a paper to the code name what the code has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer
from dubito.cli import app
from dubito.graphs.registry import graph_named

ROOT = Path(__file__).parents[2]
PAPERS = ("dense_rag", "df_rag", "seakr", "seper", "sunar")


@pytest.mark.parametrize("page", sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]), ids=lambda p: p.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", text):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


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


def references(page: str) -> Iterator[tuple[str, list[str]]]:
    """Each reference in the table "The paper in the code", with its quoted names: files, functions, settings."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    table = text.partition("## The paper in the code\n")[2].partition("\n## ")[0]
    for code in re.findall(r"^\| .+ \| (.+) \|$", table, re.MULTILINE)[1:]:
        for reference in code.split(";"):
            yield reference.strip(), re.findall(r"`([^`]+)`", reference)


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


@pytest.mark.parametrize("page", PAPERS)
def test_the_paper_s_words_lead_to_files_functions_and_settings(page: str) -> None:
    named = list(references(page))
    assert len(named) > 10
    settings = graph_named(page).builder.context_schema
    assert settings is not None
    for reference, names in named:
        assert names, reference
        files = [name for name in names if name.endswith((".py", ".jinja"))]
        code = "\n".join((ROOT / file).read_text(encoding="utf-8") for file in files)
        for name in set(names) - set(files):
            if name.startswith("dubito "):
                assert is_command(name), reference
            elif reference.startswith("setting"):
                assert name in settings.model_fields, reference
            else:
                assert re.search(rf"^ *(async )?(def|class) {name}\b|^ *{name}(:| =)", code, re.MULTILINE), reference
