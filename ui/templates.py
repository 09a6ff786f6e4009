"""The templates of the page; they share the style and the blocks of the trace page."""

from ..render.html import environment


def render(template: str, **values: object) -> str:
    """Fill a template with values; all text is escaped."""
    return environment(("dubito.ui", "pages")).get_template(template).render(**values)
