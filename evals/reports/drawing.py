"""The look of a report's plots: SVG in the colours of the page, and PNG files."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...presenters.words import shortened
from ...render.sanitize import sanitize
from ...traces.files import write_file, writing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#1b1f25"
"""The colour of text and lines. On the page it becomes the text colour, so nothing else may use it."""

COLOURS = ("#2f7fc1", "#d9772b", "#3f9e5a", "#c2504f", "#8a6fc0", "#8c6d5a", "#cf79b1", "#7f8790", "#a3a33c", "#3fa9b5")
LONGEST_LABEL = 40

# systems take their colours from the cycle; its dashes tell them apart when the colours repeat
_STYLE: dict[Any, Any] = {
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.prop_cycle": f"cycler(linestyle=['-', '--', ':']) * cycler(color={list(COLOURS)})",
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
    """A plot. name: of its file, unique in the report; note: what it shows, which also stands for the image."""

    name: str
    dataset: str
    title: str
    note: str
    draw: Callable[[], Figure]


@dataclass(frozen=True)
class Drawn:
    """A drawn plot. svg: an element for a page; png: the content of a file."""

    plot: Plot
    svg: str
    png: bytes


def can_draw() -> bool:
    """Is matplotlib installed?"""
    return find_spec("matplotlib") is not None


def drawn(plot: Plot) -> Drawn:
    """Draw a plot, as SVG and as PNG."""
    from matplotlib import rc_context  # noqa: PLC0415 - an extra

    with rc_context(_STYLE):
        figure = plot.draw()
        svg, png = io.StringIO(), io.BytesIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(svg, format="svg", transparent=True, metadata=nothing)
        figure.savefig(png, format="png", dpi=130, facecolor="white")
    return Drawn(plot, _element(svg.getvalue(), plot), png.getvalue())


def save(drawings: Sequence[Drawn], folder: Path) -> None:
    """Write the PNG files; `UserFault` if they cannot be written."""
    for drawing in drawings:
        with writing(folder, "folder of plots"):
            folder.mkdir(parents=True, exist_ok=True)
        write_file(folder / f"{drawing.plot.name}.png", drawing.png, "plot")


def panels(count: int = 1, width: float = 6.2, height: float = 3.5) -> tuple[Figure, list[Axes]]:
    """A figure with `count` panels, two in a row; width, height: of a panel in inches."""
    from matplotlib.figure import Figure as NewFigure  # noqa: PLC0415 - an extra

    columns = min(count, 2)
    rows = -(-count // columns)
    figure = NewFigure(figsize=(width * columns, height * rows), layout="constrained")
    return figure, [figure.add_subplot(rows, columns, place) for place in range(1, count + 1)]


def legend(figure: Figure) -> None:
    """Put the legend of the first panel below the figure."""
    longest = max(len(label) for label in figure.axes[0].get_legend_handles_labels()[1])
    figure.legend(loc="outside lower center", ncols=1 if longest > LONGEST_LABEL else 2)


def label_of(text: str) -> str:
    """A system's label, safe and short enough for a figure."""
    label = shortened(str(sanitize(text)), LONGEST_LABEL)
    return f" {label}" if label.startswith("_") else label  # a legend leaves out labels that begin with _


def _element(svg: str, plot: Plot) -> str:
    """The SVG as an element of a page: without its XML head, in the page's text colour."""
    body = svg[svg.index("<svg") :].replace(INK, "currentColor")
    return body.replace("<svg ", f'<svg role="img" aria-label="{plot.title}" ', 1)
