"""Numbers in the form that a report shows."""

import json

from ..scores import NAMES


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


def amount(value: float) -> str:
    """'1,234', '12.5', '0.25'."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def plain(value: object) -> str:
    """A setting's value as text."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
