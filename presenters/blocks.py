"""Blocks: what a presenter shows, as data. `render/terminal.py` and `render/html.py` draw them.

Their texts may hold anything that a model or a document says; the renderers make them harmless.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

from .words import NO_ANSWER, figure

Tone = Literal["", "dim", "strong", "good", "warn", "bad"]
"""How a text stands out; its words say the same."""


@dataclass(frozen=True)
class Cell:
    """A table's cell.

    level: from 0 to 1, how strongly it is shaded, null for no shade; tip: the page shows it on pointing; number: it is
    aligned to the right and never cut.
    """

    text: str
    level: float | None = None
    tone: Tone = ""
    tip: str = ""
    number: bool = False


@dataclass(frozen=True)
class Row:
    """A table's row. marked: it was chosen; minor: the terminal leaves it out first if the table is long."""

    cells: Sequence[Cell]
    marked: bool = False
    minor: bool = False


WIDEST_BESIDE, LONGEST_BESIDE = 44, 18
"""Characters: a phone shows columns side by side up to this width together, cells of words up to this length."""


@dataclass(frozen=True)
class Table:
    """Rows under headings. matrix: cells are small squares with levels, the first cell of a row is its name."""

    columns: Sequence[str]
    rows: Sequence[Row]
    title: str = ""
    note: str = ""
    matrix: bool = False
    kind: ClassVar[str] = "table"

    @cached_property
    def numeric(self) -> Sequence[bool]:
        """For each column: does it hold numbers?"""
        return [any(cell.number for cell in column) for column in self._cells]

    @cached_property
    def stacks(self) -> bool:
        """On a phone, do the cells of a row stand below one another? Wide words do; figures do not."""
        cells = [cell for column in self._cells for cell in column]
        if self.matrix or all(cell.number or len(cell.text) <= LONGEST_BESIDE for cell in cells):
            return False
        widths = [
            max([len(name), *(len(cell.text) for cell in column)])
            for name, column in zip(self.columns, self._cells, strict=True)
        ]
        return sum(widths) > WIDEST_BESIDE

    @cached_property
    def _cells(self) -> Sequence[Sequence[Cell]]:
        """The cells by column."""
        return [[row.cells[i] for row in self.rows if len(row.cells) > i] for i in range(len(self.columns))]


@dataclass(frozen=True)
class Bar:
    """A figure beside its name. value: null if it is not known, it then has no bar; text: the figure in words."""

    label: str
    value: float | None
    text: str


@dataclass(frozen=True)
class Bars:
    """Figures as bars, with a line at a limit, such as a threshold.

    Bars begin at 0; if a figure is negative, they begin a little below the lowest.
    """

    title: str
    bars: Sequence[Bar]
    limit: float | None = None
    limit_name: str = ""
    note: str = ""
    kind: ClassVar[str] = "bars"

    def place(self, value: float) -> float:
        """The place of a value in per cent of the width."""
        known = [bar.value for bar in self.bars if bar.value is not None]
        low, high = min(0.0, *known, self.limit or 0.0), max(0.0, *known, self.limit or 0.0)
        if low < 0:
            high = max([*known, low if self.limit is None else self.limit])
            low -= (high - low) * 0.05 or 1.0
        return (value - low) / ((high - low) * 1.05 or 1.0) * 100


@dataclass(frozen=True)
class Pairs:
    """Two texts a line, the second the more important. arrow: the first leads to the second; lines are numbered."""

    pairs: Sequence[tuple[str, str]]
    title: str = ""
    arrow: bool = False
    kind: ClassVar[str] = "pairs"


@dataclass(frozen=True)
class Words:
    """A paragraph."""

    text: str
    tone: Tone = ""
    kind: ClassVar[str] = "words"


@dataclass(frozen=True)
class Cited:
    """An answer in parts. Each has a text, and the place in the evidence of the passage that it names, from 1, or null.

    The page links these parts to the passages, which stand below.
    """

    parts: Sequence[tuple[str, int | None]]
    kind: ClassVar[str] = "cited"

    @property
    def text(self) -> str:
        """The whole answer."""
        return "".join(text for text, _ in self.parts)


@dataclass(frozen=True)
class Gauge:
    """How far a long preparation is: `done` of `total` things."""

    done: int
    total: int
    things: str = "chunks"
    kind: ClassVar[str] = "gauge"


@dataclass(frozen=True)
class Dot:
    """A document in a `Flow`.

    parent: the id of the document that it is a neighbour of, null if there is none; level: its score, 0 to 1; strong:
    it stands out; leads: the line from its parent does.
    """

    id: str
    parent: str | None
    label: str
    tip: str
    level: float
    strong: bool
    leads: bool


@dataclass(frozen=True)
class Flow:
    """Columns of documents under headings, with a line from each parent. The terminal does not draw it."""

    title: str
    columns: Sequence[tuple[str, Sequence[Dot]]]
    note: str = ""
    kind: ClassVar[str] = "flow"


@dataclass(frozen=True)
class Fold:
    """Blocks below a line that opens and closes them on the page."""

    title: str
    blocks: Sequence["Block"]
    open: bool = False
    kind: ClassVar[str] = "fold"


Block = Table | Bars | Pairs | Words | Cited | Gauge | Flow | Fold


def answer_cell(answer: str, tone: Tone = "") -> Cell:
    """An answer or a response; an empty one is named as such."""
    return Cell(answer, tone=tone) if answer.strip() else Cell(NO_ANSWER, tone="dim")


def num(value: float, text: str = "", level: float | None = None) -> Cell:
    """A cell with a number, two digits unless said otherwise."""
    return Cell(text or figure(value), level, number=True)


def scaled(value: float, low: float, high: float) -> float:
    """The place of a value between the lowest and the highest, 0 to 1; 0.5 if they are equal."""
    return 0.5 if high <= low else (value - low) / (high - low)
