"""The page's templates, beside those of a trace's page, whose colours and panels it shares."""

from __future__ import annotations

from functools import cache

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from ...traces.harmless import harmless
from ..viewer.blocks import figure
from ..viewer.facts import title_of


def render(template: str, **values: object) -> str:
    """A template with values; all text is escaped."""
    return _environment().get_template(template).render(**values)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=ChoiceLoader([PackageLoader("dubito.cli.ui", "pages"), PackageLoader("dubito.cli.viewer", "templates")]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=harmless,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"figure": figure, "title_of": title_of}
    return environment
