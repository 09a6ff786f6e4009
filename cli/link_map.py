"""The links between the answers drawn as a small map, which can be read without colours too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from .screen import counted
from .steps import rows

MOST_DRAWN = 41
"""Answers up to which all links are drawn."""

MOST_LISTED = 20
"""Answers that are listed where there are too many to draw."""

BAR = 8
"""Columns of the longest bar."""

FORMS = ((2, 12), (1, 12), (1, 1))
"""Columns of a link, and those to stay free for the words beside the map; the first for which there is room is used."""

_MARKS = {False: "·▒█", True: ".+#"}
"""For no link, one direction and both: in Unicode, and where only ASCII can be shown."""

_STYLES = ("red", "yellow", "cyan")
_WORDS = ("neither", "one way only", "entail each other")


@dataclass(frozen=True)
class Row:
    """An answer: its links with all answers, each 0 (none), 1 (one direction) or 2 (both); its share of the DSE.

    share: from 0 to 1, the 1 being the most that an answer can have; None for none to be shown; figure: the share in
    nats, as text; words: what stands beside it.
    """

    label: str
    levels: Sequence[int]
    share: float | None
    figure: str
    words: Text


class LinkMap:
    """As wide as there is room: two columns a link or one; else the answers of the largest shares alone."""

    def __init__(self, answers: Sequence[Row]) -> None:
        """One row for each answer, [n], with n links each."""
        self._answers = answers

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw."""
        ascii_only, n = options.ascii_only, len(self._answers)
        taken = len(f"r_{n}") + 2 + 2 + len("0.00 ") + BAR + 2
        width = next((w for w, words in FORMS if n <= MOST_DRAWN and taken + w * n + words <= options.max_width), 0)
        table = rows("", *(["links"] if width else []), "share of DSE", "")
        for column in table.columns[:-1]:
            column.no_wrap = True
        for one in self._answers if width else self._largest():
            links = [_links(one.levels, width, ascii_only=ascii_only)] if width else []
            table.add_row(Text(one.label, "dim"), *links, _bar(one, ascii_only=ascii_only), one.words)
        yield table
        if width:
            yield _legend(width, ascii_only=ascii_only)
        else:
            yield Text(f"the largest shares of {counted(n, 'answer')}, too many to draw their links here", "dim")

    def _largest(self) -> list[Row]:
        listed = [one for one in self._answers if one.share is not None]
        return sorted(listed, key=lambda one: -(one.share or 0))[:MOST_LISTED]


def _links(levels: Sequence[int], width: int, *, ascii_only: bool) -> Text:
    return Text().join([Text(_MARKS[ascii_only][level] * width, _STYLES[level]) for level in levels])


def _bar(one: Row, *, ascii_only: bool) -> Text:
    if one.share is None:
        return Text()
    length = max(round(min(one.share, 1.0) * BAR), one.share > 0)
    return Text.assemble((one.figure, ""), " ", (("=" if ascii_only else "━") * length, "magenta"))


def _legend(width: int, *, ascii_only: bool) -> Table:
    line = Table.grid(padding=(0, 3, 0, 0))
    marks = _MARKS[ascii_only]
    line.add_row(
        *(Text.assemble((marks[level] * width, _STYLES[level]), (f" {_WORDS[level]}", "dim")) for level in (2, 1, 0))
    )
    return line
