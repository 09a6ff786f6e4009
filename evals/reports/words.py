"""How numbers and the texts of others are written in a report."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from ...traces.harmless import harmless
from ..scores import NAMES

_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>|#~$])")


def shortened(text: str, length: int) -> str:
    """At most `length` characters, the last one then an ellipsis."""
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"


def markdown(text: str) -> str:
    """Text that means nothing to Markdown, in one line."""
    line = " ".join(str(harmless(text)).split())
    return _MARKDOWN.sub(r"\\\1", line).replace("&", "&amp;")


def code(text: str) -> str:
    """Text as a block of code in Markdown."""
    content = str(harmless(text))
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", content)), 3)
    return f"{fence}sh\n{content}\n{fence}"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1) -> str:
    """A Markdown table of cells that are fit for it; texts: how many columns are no numbers, the first ones."""
    rules = ["---"] * texts + ["---:"] * (len(heads) - texts)
    return "\n".join(f"| {' | '.join(row)} |" for row in [heads, rules, *rows])


def called(metric: str) -> str:
    """A metric's name for people."""
    return NAMES.get(metric, metric)


def number(value: float | None, digits: int = 3) -> str:
    """'0.512', '−0.512'; '-' for what is not known."""
    return "-" if value is None else f"{value:.{digits}f}".replace("-", "−")


def signed(value: float | None, digits: int = 3) -> str:
    """'+0.120', '−0.120', '0.000'."""
    if value is None or round(value, digits) == 0:
        return number(None if value is None else 0.0, digits)
    return f"{value:+.{digits}f}".replace("-", "−")


def chance(p: float) -> str:
    """'0.031', '<0.001'."""
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def amount(value: float) -> str:
    """'1,234', '12.5', '0.25': three digits are enough for a mean cost."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def share(value: float | None) -> str:
    """'12%'."""
    return "-" if value is None else f"{value:.0%}"


def counted(count: int, thing: str) -> str:
    """'1 question', '2 questions'."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def plain(value: object) -> str:
    """A setting's value as text."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
