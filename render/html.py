"""HTML from templates; `templates/blocks.jinja` draws blocks."""

from collections.abc import Sequence
from functools import cache

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from ..presenters.blocks import Row
from ..presenters.words import figure, source_of, title_of
from ..state.records import address_of
from .sanitize import sanitize


@cache
def environment(*folders: tuple[str, str]) -> Environment:
    """Templates whose values are sanitized and escaped; a missing value is an error.

    folders: pairs of a package and its folder of templates, besides the templates of this room.
    """
    searched = [PackageLoader(*folder) for folder in (*folders, ("dubito.render", "templates"))]
    made = Environment(
        loader=ChoiceLoader(searched),
        autoescape=True,
        undefined=StrictUndefined,
        # the markup of templates is of type Markup, and stays as it is
        finalize=lambda value: sanitize(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals["cells"] = cells
    made.filters |= {"figure": figure, "title_of": title_of, "source_of": source_of, "address_of": address_of}
    return made


def cells(row: Row, headings: Sequence[str] | None, matrix: bool) -> Markup:
    """The cells of a table's row. headings: of the columns, where a phone shows cells below each other.

    Not in a template, because tables have tens of thousands of cells.
    """
    parts = []
    for place, one in enumerate(row.cells):
        tag = "th scope=row" if matrix and not place else "td"
        classes = f"{'n ' * one.number}{one.tone}{' heat' * (one.level is not None)}"
        level = "" if one.level is None else f' style="--l:{one.level:.3f}"'
        of = "" if headings is None else f' data-of="{_text(headings[place])}"'
        tip = f' title="{_text(one.tip)}"' if one.tip else ""
        parts.append(f'<{tag} class="{classes}"{level}{of}{tip}>{_text(one.text)}</{tag[:2]}>')
    return Markup("".join(parts))  # noqa: S704 - its texts are escaped


def _text(text: str) -> str:
    return escape(sanitize(text))
