"""HTML from templates; `templates/blocks.jinja` draws blocks."""

from functools import cache

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from ..presenters.words import figure, title_of
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
    made.filters |= {"figure": figure, "title_of": title_of}
    return made
