"""What a technique's panel is made of; `templates/blocks.jinja` says how each looks on the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

Tone = Literal["", "dim", "warn", "certain", "necessary", "unnecessary"]
"""A colour, always beside words that say the same."""


@dataclass(frozen=True)
class Cell:
    """A table's cell. level: from 0 to 1, how strongly it is shaded; tip: what stands there when it is pointed at."""

    text: str
    level: float | None = None
    tone: Tone = ""
    tip: str = ""
    number: bool = False


@dataclass(frozen=True)
class Row:
    """A table's row; `marked` is the one that was chosen."""

    cells: Sequence[Cell]
    marked: bool = False


WIDEST_BESIDE, LONGEST_BESIDE = 44, 18
"""Characters: of columns together that stand beside one another on a phone, of words that may stand in one there."""

LONGEST_NAMED = 120
"""Characters of a text that stands beside the name of its column on a phone."""


@dataclass(frozen=True)
class Table:
    """Rows under headings. matrix: cells are small squares, the first of each row its name."""

    columns: Sequence[str]
    rows: Sequence[Row]
    title: str = ""
    note: str = ""
    matrix: bool = False
    kind: ClassVar[str] = "table"

    def is_numeric(self, column: int) -> bool:
        """Does a column, from 0, hold numbers?"""
        return any(row.cells[column].number for row in self.rows if len(row.cells) > column)

    def is_long(self, column: int) -> bool:
        """Does a column hold texts that are to stand below its name where cells are stacked?"""
        return any(len(row.cells[column].text) > LONGEST_NAMED for row in self.rows if len(row.cells) > column)

    @property
    def stacks(self) -> bool:
        """On a phone, do a row's cells stand below one another? Words do that are too wide for it; figures do not."""
        if self.matrix:
            return False
        cells = [cell for row in self.rows for cell in row.cells]
        if all(cell.number or len(cell.text) <= LONGEST_BESIDE for cell in cells):
            return False
        columns = zip(*([Cell(name) for name in self.columns], *(row.cells for row in self.rows)), strict=False)
        return sum(max(len(cell.text) for cell in column) for column in columns) > WIDEST_BESIDE


@dataclass(frozen=True)
class Bar:
    """A figure beside its name; value: None for one that is not known, and has no bar."""

    label: str
    value: float | None
    text: str


@dataclass(frozen=True)
class Bars:
    """Figures as bars, with a line where a limit is, such as a threshold that each is held against.

    Bars begin at 0, or where figures are negative a little below the lowest.
    """

    title: str
    bars: Sequence[Bar]
    limit: float | None = None
    limit_name: str = ""
    note: str = ""
    kind: ClassVar[str] = "bars"

    def place(self, value: float) -> float:
        """Where a value lies, in per cent of the width."""
        known = [bar.value for bar in self.bars if bar.value is not None]
        low, high = min(0.0, *known, self.limit or 0.0), max(0.0, *known, self.limit or 0.0)
        if low < 0:
            high = max([*known, low if self.limit is None else self.limit])
            low -= (high - low) * 0.05 or 1.0
        return (value - low) / ((high - low) * 1.05 or 1.0) * 100


@dataclass(frozen=True)
class Pairs:
    """Two texts a line, the second the more important; `arrow`: the first leads to the second."""

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
class Dot:
    """A document in a `Flow`: its place in pixels; level: its score, 0 to 1; square: no neighbour; strong: counts."""

    x: float
    y: float
    label: str
    tip: str
    level: float
    square: bool
    strong: bool


@dataclass(frozen=True)
class Line:
    """A link of two dots, as the path of an SVG."""

    path: str
    strong: bool


@dataclass(frozen=True)
class Flow:
    """Columns of documents, and what led to which; sizes in pixels."""

    title: str
    columns: Sequence[tuple[float, str]]
    dots: Sequence[Dot]
    lines: Sequence[Line]
    width: float
    height: float
    note: str = ""
    kind: ClassVar[str] = "flow"


@dataclass(frozen=True)
class Fold:
    """Blocks below a line that opens and closes them."""

    title: str
    blocks: Sequence[Block]
    open: bool = False
    kind: ClassVar[str] = "fold"


Block = Table | Bars | Pairs | Words | Flow | Fold


def num(value: float, text: str = "", level: float | None = None) -> Cell:
    """A cell with a number, two digits unless said otherwise."""
    return Cell(text or figure(value), level, number=True)


def figure(value: float) -> str:
    """Whole numbers as they are, others with three significant digits below 1 and two after the point above."""
    if float(value).is_integer():
        return f"{value:g}"
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:#.3g}"


def scaled(value: float, low: float, high: float) -> float:
    """Where a value lies from the lowest to the highest, 0 to 1; the middle where all are the same."""
    return 0.5 if high <= low else (value - low) / (high - low)
