"""The page's templates, beside those of a trace's page, whose colours and panels it shares."""

from __future__ import annotations

from functools import cache

from jinja2 import Environment

from ...traces.pages import environment
from ..viewer.blocks import figure
from ..viewer.facts import title_of


def render(template: str, **values: object) -> str:
    """A template with values; all text is escaped."""
    return _environment().get_template(template).render(**values)


@cache
def _environment() -> Environment:
    made = environment(("dubito.cli.ui", "pages"), ("dubito.cli.viewer", "templates"))
    made.filters |= {"figure": figure, "title_of": title_of}
    return made
