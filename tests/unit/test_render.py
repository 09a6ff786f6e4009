"""Blocks drawn: one golden file a renderer (`UPDATE_GOLDEN=1 pytest tests/unit/test_render.py` writes them anew)."""

from __future__ import annotations

import io
import os
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dubito.graphs.vanilla_rag import graph as vanilla_rag
from dubito.presenters.blocks import Bar, Bars, Block, Cell, Dot, Flow, Fold, Gauge, Pairs, Row, Table, Words, num
from dubito.presenters.words import source_of
from dubito.render import answer
from dubito.render.html import environment
from dubito.render.sanitize import sanitize
from dubito.render.terminal import MOST_ROWS, drawn
from dubito.state.records import address_of
from dubito.state.vanilla_rag import VanillaRagContext
from dubito.tests.recorded import parsed
from rich.console import Console

GOLDEN = Path(__file__).parents[1] / "golden"

HOSTILE = "\x1b[31m<b>[red]half\ud800\u202e</b>"

BLOCKS: list[Block] = [
    Words("A paragraph of plain words."),
    Words("A warning.", "warn"),
    Gauge(30, 1200),
    Pairs([("1)", "Find the founder"), ("2)", HOSTILE)], "Plan"),
    Pairs([("Who founded it?", "Ada"), ("Where was she born?", "Lancaster")], "Path", arrow=True),
    Table(
        ["chunk", "score", ""],
        [
            Row([Cell("The Lune"), num(0.875, level=0.875), Cell("kept", tone="good")], marked=True),
            Row([Cell(HOSTILE), num(-12.5, level=0.0), Cell("dropped", tone="bad", tip="not needed")]),
        ],
        "Chunks",
        "A note below the table.",
    ),
    Table(
        ["", "r0", "r1", "r2"],
        [
            Row([Cell("r0"), *(Cell(f"{value:g}", value) for value in (1.0, 0.5, 0.0))]),
            Row([Cell("r1"), *(Cell(f"{value:g}", value) for value in (0.5, 1.0, 0.0))]),
            Row([Cell("r2"), *(Cell(f"{value:g}", value) for value in (0.0, 0.0, 1.0))]),
        ],
        "Links",
        matrix=True,
    ),
    Bars("DSE", [Bar("first", 0.45, "0.450"), Bar("second", 0.1, "0.100"), Bar("third", None, "?")], 0.2, "threshold"),
    Bars("U", [Bar("step 1", -7.0, "-7"), Bar("step 2", -5.0, "-5")], -6.0, "δ = -6", "Higher is less sure."),
    Fold("More", [Words("inside the fold")]),
    Flow(
        "Explored",
        [
            ("batch 1", [Dot("a", None, "Salt", "Salt: 0.5", 0.5, strong=False, leads=False)]),
            (
                "batch 2",
                [
                    Dot("b", "a", "Lune", "Lune: 1", 1.0, strong=True, leads=True),
                    Dot("c", "not drawn", "Wyre", "Wyre: 0", 0.0, strong=False, leads=False),
                ],
            ),
        ],
        "Bold: evidence.",
    ),
]


def on_terminal(blocks: list[Block], width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    for part in drawn(blocks):
        console.print(part)
    assert isinstance(console.file, io.StringIO)
    return "".join(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines())


def on_page(blocks: list[Block]) -> str:
    template = environment().from_string(
        '{% from "blocks.jinja" import show with context %}{% for block in blocks %}{{ show(block) }}{% endfor %}'
    )
    return "".join(f"{line}\n" for line in template.render(blocks=blocks).splitlines() if line.strip())


@pytest.mark.parametrize(("draw", "name"), [(on_terminal, "blocks.txt"), (on_page, "blocks.html")])
def test_every_block_is_drawn(draw, name):
    found, golden = draw(BLOCKS), GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(found, encoding="utf-8")
    assert found == golden.read_text(encoding="utf-8")


def test_a_narrow_terminal_cuts_words_and_never_figures():
    rows = [Row([Cell("a very long title of a chunk " * 3), num(0.123456, "0.123")])]
    lines = on_terminal([Table(["chunk", "score"], rows)], width=30).splitlines()
    assert max(map(len, lines)) <= 30
    assert lines[1].endswith("0.123")


@pytest.mark.parametrize("width", [48, 60, 100])
def test_headings_are_broken_before_the_name_of_a_row_or_a_figure_is_cut(width):
    names = ["system", "prompt tokens", "completion tokens", "cached calls", "their seconds"]
    cells = ["vanilla_rag", "1,200", "0.467 (0.30)", "0%", "12.5"]
    table = Table(names, [Row([Cell(cells[0]), *(Cell(text, number=True) for text in cells[1:])])])
    *heading, row = on_terminal([table], width).splitlines()
    assert re.split(r"\s{2,}", row.strip()) == cells
    assert len(heading) == (1 if width == 100 else 2), heading


@pytest.mark.parametrize(("width", "words"), [(120, 60), (80, 48), (64, 36), (56, 36), (40, 22)])
def test_long_words_are_cut_before_headings_and_stay_readable(width, words):
    cells = [Cell("x" * 60), num(1.39, "1.39"), num(0.5, "0.5"), num(1669, "1,669")]
    *heading, row = on_terminal(
        [Table(["answer", "uncertainty", "threshold", "tokens"], [Row(cells)])], width
    ).splitlines()
    assert row.split()[1:] == ["1.39", "0.5", "1,669"]
    assert len(row.split()[0]) == words
    assert (heading[0].split() == ["answer", "uncertainty", "threshold", "tokens"]) is (width > 64)


@pytest.mark.parametrize(("width", "lines"), [(120, 1), (60, 1), (16, 4)])
def test_a_heading_is_broken_only_where_its_column_is_too_narrow(width, lines):
    table = Table(["λ", "chunks of a set"], [Row([Cell("0.1"), Cell("The Salt Road; " * 5)])])
    *heading, _ = on_terminal([table], width).splitlines()
    assert len(heading) == lines, heading


def test_a_long_table_leaves_out_minor_rows_first():
    rows = [Row([Cell(f"row {i}")], minor=i % 2 == 0) for i in range(MOST_ROWS + 9)]
    lines = on_terminal([Table(["name"], rows)]).splitlines()
    assert len(lines) == 1 + MOST_ROWS + 1
    assert {f"row {i}" for i in range(1, MOST_ROWS + 9, 2)} <= {line.strip() for line in lines}
    assert lines[-1].strip() == "and 9 more"


def test_a_matrix_that_is_too_wide_is_counted():
    rows = [Row([Cell("r"), *[Cell("1", 1.0)] * 50]) for _ in range(50)]
    assert on_terminal([Table([""] * 51, rows, matrix=True)], width=40) == "50 rows, too many to draw here\n"


@pytest.mark.alone
def test_a_page_draws_a_table_in_time_linear_in_its_rows():
    def seconds(count: int) -> float:
        rows = [Row([Cell(f"words of row {i} " * 3), num(i / 7), Cell("more words here")]) for i in range(count)]
        begun = time.process_time()  # other processes do not count
        on_page([Table(["text", "number", "more"], rows)])
        return time.process_time() - begun

    seconds(10)
    assert seconds(8000) < 8 * 4 * seconds(1000)


PLACES: list[tuple[dict[str, Any], str, str]] = [
    ({"page": 3, "url": "https://a.example/x"}, "page 3, https://a.example/x", "https://a.example/x"),
    ({"source": "http://b.example"}, "http://b.example", "http://b.example"),
    ({"page": 0}, "page 0", ""),
    ({"page": 3, "heading": "The\n course"}, 'page 3, section "The course"', ""),
    ({"heading": "a" * 90}, f'section "{"a" * 77}..."', ""),
    ({"heading": 3}, "", ""),
    ({"url": "javascript:alert(1)"}, "", ""),
    ({"url": 'https://a.example/" onclick="x'}, "", ""),
    ({"url": "notes.txt", "source": "https://c.example"}, "https://c.example", "https://c.example"),
    ({"page": "<b>"}, "", ""),
    ({}, "", ""),
]


@pytest.mark.parametrize(("metadata", "told", "address"), PLACES)
def test_where_a_chunk_comes_from_is_told_and_only_a_web_address_is_a_link(metadata, told, address):
    chunk = {"id": "c", "title": "T", "text": "x", "metadata": metadata}
    assert (source_of(chunk), address_of(chunk)) == (told, address)
    page = parsed(str(environment().get_template("blocks.jinja").module.chunks([chunk])).encode())  # type: ignore[attr-defined]
    assert [link.attributes["href"] for link in page.every("a")] == ([address] if address else [])
    assert told in page.text


def test_the_source_stands_beside_the_title_of_the_evidence():
    chunk = {"id": "c", "title": "T", "text": "x", "metadata": {"page": 2, "url": "https://a.example"}}
    run: Any = SimpleNamespace(
        graph=vanilla_rag, output={"evidence": [chunk]}, context=VanillaRagContext(), seconds=1.0
    )
    written = io.StringIO()
    Console(file=written, width=80).print(*answer._below(run))
    assert "T  page 2, https://a.example" in written.getvalue()


def test_text_is_made_harmless():
    assert sanitize("a\x1b[31mb\x00c\u202ed\ud800e\n\tf") == "abcde\n\tf"
