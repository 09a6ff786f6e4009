"""The templates of the page; they share the style and the blocks of the trace page."""

from functools import cache

from jinja2 import Environment

from ..render.html import environment


def render(template: str, **values: object) -> str:
    """Fill a template with values; all text is escaped."""
    return _environment().get_template(template).render(**values)


@cache
def _environment() -> Environment:
    return environment(("dubito.ui", "pages"), ("dubito.render", "templates"))
