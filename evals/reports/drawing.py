"""How the figures of a report look: as SVG for the page, which takes on its colours, and as PNG files."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import UserFault
from ...traces.harmless import harmless
from .words import shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NEEDS_MATPLOTLIB = 'The plots are left out: they need a package: pip install "dubito[plots]".'

INK = "#1b1f25"
"""Of text and lines; on the page it is the colour of the text around the figure, and nothing else may have it."""

COLOURS = ("#2f7fc1", "#d9772b", "#3f9e5a", "#c2504f", "#8a6fc0", "#8c6d5a", "#cf79b1", "#7f8790", "#a3a33c", "#3fa9b5")
LONGEST_LABEL = 40

_STYLE: dict[Any, Any] = {
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 10,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 9,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "svg.fonttype": "none",
    "svg.hashsalt": "dubito",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": INK,
    "ytick.color": INK,
}


@dataclass(frozen=True)
class Plot:
    """A figure. name: of its file, unique in the report; note: what is to be seen, for people who cannot see it too."""

    name: str
    dataset: str
    title: str
    note: str
    draw: Callable[[], Figure]


@dataclass(frozen=True)
class Drawn:
    """A figure that was drawn. svg: an element to put into a page; png: the file's content."""

    plot: Plot
    svg: str
    png: bytes


def can_draw() -> bool:
    """Is matplotlib there?"""
    return find_spec("matplotlib") is not None


def drawn(plot: Plot) -> Drawn:
    """The figure, twice."""
    with _style():
        figure = plot.draw()
        svg, png = io.StringIO(), io.BytesIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(svg, format="svg", transparent=True, metadata=nothing)
        figure.savefig(png, format="png", dpi=130, facecolor="white")
    return Drawn(plot, _element(svg.getvalue(), plot), png.getvalue())


def save(found: Sequence[Drawn], folder: Path) -> None:
    """Write the PNG files; raises `UserFault` where they cannot be written."""
    try:
        for one in found:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{one.plot.name}.png").write_bytes(one.png)
    except OSError as fault:
        raise UserFault(f"The plots cannot be written to '{folder}' ({fault.strerror}): give another --md.") from fault


def one_panel() -> tuple[Figure, Axes]:
    """A figure of one part."""
    figure, axes = panels(1, 6.2, 3.5)
    return figure, axes[0]


def panels(count: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """A figure of so many parts, two in a row, each of that size in inches."""
    from matplotlib.figure import Figure as NewFigure  # noqa: PLC0415 - an extra

    columns = min(count, 2)
    rows = -(-count // columns)
    figure = NewFigure(figsize=(width * columns, height * rows), layout="constrained")
    return figure, [figure.add_subplot(rows, columns, place) for place in range(1, count + 1)]


@contextmanager
def _style() -> Iterator[None]:
    from matplotlib import rc_context  # noqa: PLC0415 - an extra

    with rc_context(_STYLE):
        yield


def legend(figure: Figure) -> None:
    """Name what the first part of a figure shows, below it."""
    longest = max(len(one) for one in figure.axes[0].get_legend_handles_labels()[1])
    figure.legend(loc="outside lower center", ncols=1 if longest > LONGEST_LABEL else 2)


def label_of(text: str) -> str:
    """A system's name, fit for a figure."""
    label = shortened(str(harmless(text)), LONGEST_LABEL)
    return f" {label}" if label.startswith("_") else label  # or the legend would pass it over


def colour(number: int) -> str:
    """Of the system of that number."""
    return COLOURS[number % len(COLOURS)]


def dash(number: int) -> str:
    """The line of the system of that number, as there are more systems than colours."""
    return ("-", "--", ":")[number // len(COLOURS) % 3]


def _element(svg: str, plot: Plot) -> str:
    """The SVG as part of a page: without its head, in the colours of what is around it."""
    body = svg[svg.index("<svg") :].replace(INK, "currentColor")
    return body.replace("<svg ", f'<svg role="img" aria-label="{plot.title}" ', 1)
