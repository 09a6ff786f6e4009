"""Steps and blocks on a terminal, by rich."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table as RichTable
from rich.text import Text

from ..presenters.blocks import Bars, Block, Cell, Cited, Flow, Fold, Gauge, Pairs, Row, Table, Tone, Words
from ..presenters.presenter import summary_of
from ..presenters.words import counted, duration
from ..traces.steps import Step
from .facts import cost_of
from .sanitize import one_line, sanitize
from .screen import show

INDENT = 4
"""Columns in front of the further lines of a step."""

NAME = 10
"""Columns of a step's name; the words after a longer name begin further to the right."""

SHORTEST_SHOWN = 0.05
"""Seconds; a shorter step has no time beside its name."""

MOST_ROWS = 21
"""Rows of a table that are shown; of a longer table minor rows are left out first, and counted."""

COLUMN_GAP = 2
"""Spaces between two columns of a table."""

FEWEST = 12
"""Characters of a cell of words that stay on the narrowest screen."""

READABLE = 36
"""Characters of a cell of words that stay before a heading is cut."""

BAR = 24
"""Columns of a full bar."""

STYLES: dict[Tone, str] = {"": "", "dim": "dim", "strong": "bold", "good": "green", "warn": "yellow", "bad": "red"}

_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"

_SQUARES = {False: "·▒█", True: ".+#"}
"""A square of a matrix by its level (0, between, 1): in Unicode, and where only ASCII can be shown."""

_BAR_MARKS = {False: "█░│", True: "#.|"}


def step_block(step: Step, now: float | None = None) -> RenderableType | None:
    """A step as it is shown. now: the time if it runs; null is returned for a step that is hidden once it is done."""
    summary = summary_of(step)
    if summary.hidden and now is None:
        return None
    heading = _heading(step, summary.words, now)
    below = drawn(summary.blocks)
    return heading if not below else Group(heading, Padding(Group(*below), (0, 0, 0, INDENT)))


def show_blocks(console: Console, blocks: Sequence[Block]) -> None:
    """Print blocks."""
    show(console, Group(*drawn(blocks)))


def _heading(step: Step, words: str, now: float | None) -> _Heading:
    seconds = (step.until if now is None else now) - step.start
    facts = [duration(seconds)] if seconds >= SHORTEST_SHOWN else []
    if calls := cost_of(step.calls).calls:
        facts.append(counted(calls, "model call"))
    if len(step.runs) > 1 and now is not None:
        facts.insert(0, f"{len(step.ended)} of {len(step.runs)} done")
    spinner = "" if now is None else _SPINNER[int(now * 10) % len(_SPINNER)]
    name = one_line(" / ".join([*step.path, step.node])).ljust(NAME)
    parts = [(spinner, "cyan"), (one_line(words), ""), ("failed" if step.errors else "", "bold red")]
    shown = [Text(part, style) for part, style in [(name, "bold"), *parts, (", ".join(facts), "dim")] if part]
    return _Heading(Text("  ").join(shown))


class _Heading:
    """Text whose lines are indented from the second on."""

    def __init__(self, text: Text) -> None:
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        first, *others = self._text.wrap(console, options.max_width - INDENT)
        yield first
        if others:
            yield Padding(Group(*others), (0, 0, 0, INDENT))


def drawn(blocks: Sequence[Block]) -> list[RenderableType]:
    """Blocks one below another; a `Flow` is for pages alone."""
    return [part for block in blocks for part in _draw(block)]


def _draw(block: Block) -> Iterator[RenderableType]:
    if isinstance(block, Flow):
        return
    if isinstance(block, Words):
        yield Text(one_line(block.text), STYLES[block.tone])
        return
    if isinstance(block, Cited):
        yield Text(sanitize(block.text).strip())
        return
    if isinstance(block, Gauge):
        bar = RichTable.grid(padding=(0, 2, 0, 0))
        total = max(block.total, 1)
        bar.add_row(
            ProgressBar(total=total, completed=block.done, width=30),
            f"{block.done:,} of {block.total:,} {block.things}",
        )
        yield bar
        return
    if block.title:
        yield Text(one_line(block.title), "dim")
    if isinstance(block, Fold):
        yield Padding(Group(*drawn(block.blocks)), (0, 0, 0, 2))
        return
    yield (
        _pairs(block)
        if isinstance(block, Pairs)
        else _Bars(block)
        if isinstance(block, Bars)
        else _Matrix(block)
        if block.matrix
        else _Table(block)
    )
    if not isinstance(block, Pairs) and block.note:
        yield Text(one_line(block.note), "dim")


def _pairs(block: Pairs) -> RenderableType:
    grid = RichTable.grid(padding=(0, 2 if block.arrow else 1, 0, 0))
    for number, (first, second) in enumerate(block.pairs, 1):
        if block.arrow:
            grid.add_row(Text(f"{number:>2}", "dim"), Text.assemble(one_line(first), " → ", (one_line(second), "bold")))
        else:
            grid.add_row(Text(one_line(first), "dim"), Text(one_line(second)))
    return grid


class _Table:
    """Rows with a heading. Where there is not room for all, headings are broken, then words or headings cut.

    Figures are never cut (see `narrowed`).
    """

    def __init__(self, block: Table) -> None:
        self._block = block

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        block, (shown, left_out) = self._block, _most(self._block.rows)
        words = [not numeric for numeric in block.numeric]
        longest = [
            max((cell_len(one_line(row.cells[place].text)) for row in shown), default=0) for place in range(len(words))
        ]
        more, first = f"and {left_out} more", words.index(True) if True in words else 0
        longest[first] = max(longest[first], len(more) if left_out else 0)
        room = options.max_width - COLUMN_GAP * (len(words) - 1)
        headings = [one_line(name) for name in block.columns]
        if sum(max(cell_len(name), most) for name, most in zip(headings, longest, strict=True)) > room:
            headings = [_broken(name, most) for name, most in zip(headings, longest, strict=True)]
        wanted = [max(most, *map(cell_len, name.split("\n"))) for name, most in zip(headings, longest, strict=True)]
        least = [min(most, FEWEST) if is_words else most for most, is_words in zip(longest, words, strict=True)]
        widths = narrowed(wanted, least, words, room)
        table = columns(*(_broken(name, width) for name, width in zip(headings, widths, strict=True)))
        for column, is_words, width in zip(table.columns, words, widths, strict=True):
            column.justify, column.width, column.no_wrap = "left" if is_words else "right", width, True
        for row in shown:
            table.add_row(*(_cell(cell, row.marked) for cell in row.cells))
        if left_out:
            table.add_row(*[""] * first, Text(more, "dim"))
        yield table


def _broken(heading: str, width: int) -> str:
    """A heading with a word a line, if one line is too narrow for it."""
    return heading if cell_len(heading) <= width else heading.replace(" ", "\n")


def narrowed(wanted: Sequence[int], least: Sequence[int], words: Sequence[bool], room: int) -> list[int]:
    """The widths of columns that have this room together; the widest give way before others.

    Words are cut to `READABLE` characters first, then the headings of figures, then words to the least.
    """
    widths = list(wanted)
    for of_words, kept in ((True, READABLE), (False, 0), (True, 0)):
        while sum(widths) > room:
            spare = [i for i in range(len(widths)) if words[i] is of_words and widths[i] > max(least[i], kept)]
            if not spare:
                break
            widths[max(spare, key=lambda i: widths[i])] -= 1
    return widths


def columns(*names: str) -> RichTable:
    """A table with these headings in a dim line; without a heading line if all names are empty."""
    table = RichTable(
        box=None, padding=(0, COLUMN_GAP, 0, 0), header_style="dim", pad_edge=False, show_header=any(names)
    )
    for name in names:
        table.add_column(Text("\n".join(one_line(line) for line in name.split("\n")), overflow="ellipsis"))
    return table


def _cell(cell: Cell, marked: bool) -> Text:
    style = STYLES[cell.tone] or ("bold" if marked else "")
    # words are cut where the room ends; figures never
    return Text(one_line(cell.text), style, no_wrap=True, overflow="fold" if cell.number else "ellipsis")


def _most(rows: Sequence[Row]) -> tuple[list[Row], int]:
    """At most `MOST_ROWS` in their order, minor ones left out first, and how many are left out."""
    chosen = sorted(range(len(rows)), key=lambda i: rows[i].minor)[:MOST_ROWS]
    return [rows[i] for i in sorted(chosen)], len(rows) - len(chosen)


class _Bars:
    """Bars with a line at the limit."""

    def __init__(self, block: Bars) -> None:
        self._block = block

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        grid = RichTable.grid(padding=(0, 2, 0, 0))
        for bar in self._block.bars:
            is_above = bar.value is not None and self._block.limit is not None and bar.value > self._block.limit
            drawing = Text(self._drawing(bar.value, _BAR_MARKS[options.ascii_only]), "yellow" if is_above else "green")
            grid.add_row(Text(one_line(bar.label)), drawing, Text(one_line(bar.text)))
        yield grid
        if self._block.limit is not None:
            yield Text(f"{_BAR_MARKS[options.ascii_only][2]} {one_line(self._block.limit_name)}", "dim")

    def _drawing(self, value: float | None, marks: str) -> str:
        filled = 0 if value is None else round(self._block.place(value) / 100 * BAR)
        cells = [marks[0] if cell < filled else marks[1] for cell in range(BAR)]
        if self._block.limit is not None:
            cells[min(round(self._block.place(self._block.limit) / 100 * BAR), BAR - 1)] = marks[2]
        return "".join(cells)


class _Matrix:
    """Small squares, two columns wide or one, as the room allows; a wider matrix is not drawn."""

    def __init__(self, block: Table) -> None:
        self._block = block

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = self._block.rows
        room = options.max_width - max((len(row.cells[0].text) for row in rows), default=0) - 2
        width = next((width for width in (2, 1) if width * len(rows) <= room), 0)
        if not width:
            yield Text(f"{counted(len(rows), 'row')}, too many to draw here", "dim")
            return
        squares, grid = _SQUARES[options.ascii_only], RichTable.grid(padding=(0, 2, 0, 0))
        for row in rows:
            drawing = Text()
            for cell in row.cells[1:]:
                position = 0 if not cell.level else 2 if cell.level >= 1 else 1
                drawing.append(squares[position] * width, ("red", "yellow", "cyan")[position])
            grid.add_row(Text(one_line(row.cells[0].text), "dim"), drawing)
        yield grid
        yield Text(f"{squares[2]} 1   {squares[1]} between   {squares[0]} 0", "dim")
