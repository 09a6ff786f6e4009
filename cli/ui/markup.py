"""What the terminal shows, as HTML: tables stay tables, so that they fit a small screen and can be read aloud."""

from __future__ import annotations

import io

from markupsafe import Markup, escape
from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.style import Style
from rich.table import Column, Table
from rich.text import Text

from ...traces.harmless import harmless

_CONSOLE = Console(file=io.StringIO(), width=100, color_system="standard", force_terminal=False, legacy_windows=False)
"""For what only knows how to draw itself, and for the styles' names."""

_TONES = {"green": "good", "yellow": "warn", "red": "bad", "cyan": "tone", "magenta": "tone"}


def markup(shown: RenderableType) -> Markup:
    """The HTML of what a renderer gives; all text is escaped."""
    if isinstance(shown, str | Text):
        return _text(Text(shown) if isinstance(shown, str) else shown)
    if isinstance(shown, Table):
        return _table(shown)
    if isinstance(shown, Group):
        return Markup("").join(_block(one) for one in shown.renderables)
    if isinstance(shown, ProgressBar):
        return Markup('<progress max="{}" value="{}"></progress>').format(shown.total, shown.completed)
    # a drawing of its own, which is made of these
    parts = shown.__rich_console__(_CONSOLE, _CONSOLE.options)  # type: ignore[union-attr]
    return Markup('<div class="drawn">{}</div>').format(Markup("").join(_block(one) for one in parts))  # type: ignore[arg-type]


def _block(shown: RenderableType) -> Markup:
    if isinstance(shown, Text):
        return Markup("<p>{}</p>").format(_text(shown)) if shown.plain.strip() else Markup("")
    return markup(shown)


def _text(text: Text) -> Markup:
    said = Markup("")
    plain = _CONSOLE.get_style(text.style)  # which rich leaves to others where no part has a style of its own
    for words, style, _ in text.render(_CONSOLE):
        names = " ".join(_names(style or plain))
        escaped = escape(harmless(words))
        said += Markup('<span class="{}">{}</span>').format(names, escaped) if names else escaped
    return said


def _names(style: Style) -> list[str]:
    names = [name for name, wanted in (("strong", style.bold), ("dim", style.dim)) if wanted]
    colour = style.color.name if style.color else ""
    return [*names, *([_TONES[colour]] if colour in _TONES else [])]


def _table(table: Table) -> Markup:
    heads = Markup("").join(_cell(column.header, column, heading=True) for column in table.columns)
    head = Markup("<thead><tr>{}</tr></thead>").format(heads) if table.show_header and _has_heads(table) else Markup("")
    rows = zip(*(column.cells for column in table.columns), strict=True)
    body = Markup("").join(
        Markup("<tr>{}</tr>").format(
            Markup("").join(_cell(one, column) for one, column in zip(row, table.columns, strict=True))
        )
        for row in rows
    )
    name = "data" if head else "grid"
    return Markup('<div class="scroll"><table class="{}">{}<tbody>{}</tbody></table></div>').format(name, head, body)


def _has_heads(table: Table) -> bool:
    return any(str(column.header).strip() for column in table.columns)


def _cell(shown: RenderableType, column: Column, *, heading: bool = False) -> Markup:
    names = [*(["n"] if column.justify == "right" else []), *(["line"] if column.no_wrap else [])]
    name = Markup(' class="{}"').format(" ".join(names)) if names else Markup("")
    form = Markup('<th scope="col"{}>{}</th>') if heading else Markup("<td{}>{}</td>")
    return form.format(name, markup(shown))
