"""HTML from templates; `templates/blocks.jinja` draws blocks."""

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from ..presenters.words import figure, title_of
from .sanitize import sanitize


def environment(*folders: tuple[str, str]) -> Environment:
    """Templates whose values are sanitized and escaped; a missing value is an error.

    folders: pairs of a package and its folder of templates; the first folder that has a template is used.
    """
    made = Environment(
        loader=ChoiceLoader([PackageLoader(package, folder) for package, folder in folders]),
        autoescape=True,
        undefined=StrictUndefined,
        # the markup of templates is of type Markup, and stays as it is
        finalize=lambda value: sanitize(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"figure": figure, "title_of": title_of}
    return made
