"""Numbers in the form that a report shows."""

import json
from collections.abc import Sequence
from itertools import count

from ...presenters.words import counted
from ..scores import NAMES
from .summary import Pair


def called(metric: str) -> str:
    """The name of a metric for people."""
    return NAMES.get(metric, metric)


def number(value: float | None, digits: int = 3) -> str:
    """'0.512', '−0.512'; '-' if unknown."""
    return "-" if value is None else f"{value:.{digits}f}".replace("-", "−")


def signed(value: float, digits: int = 3) -> str:
    """'+0.120', '−0.120', '0.000'."""
    return f"{value:+.{digits}f}".replace("-", "−") if round(value, digits) else number(0.0, digits)


def chance(p: float) -> str:
    """'0.031', '<0.001'."""
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def too_few(pairs: Sequence[Pair]) -> str:
    """A sentence if even the clearest difference of these tested pairs could not be significant; else an empty text.

    Of n questions that all differ in one direction the permutation test's p is 2 / 2ⁿ, and Holm's correction multiplies
    the least p by the number of pairs.
    """
    if not pairs:
        return ""
    n = max(pair.n for pair in pairs)
    enough = next(more for more in count(1) if len(pairs) * 2 ** (1 - more) < 0.05)
    if n >= enough:
        return ""
    least = min(1.0, len(pairs) * 2 ** (1 - n))
    return f" With {counted(n, 'question')} p cannot fall below {least:.2f}: ask at least {enough}."


def amount(value: float) -> str:
    """'1,234', '12.5', '0.25'."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def plain(value: object) -> str:
    """A setting's value as text."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
