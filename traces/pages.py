"""Pages of HTML made from templates and the text of others."""

from __future__ import annotations

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from .harmless import harmless


def environment(*folders: tuple[str, str]) -> Environment:
    """Templates whose values are escaped and made harmless; one that is missing is an error.

    folders: packages with the folder in each that holds templates, the first one that has a template counts.
    """
    return Environment(
        loader=ChoiceLoader([PackageLoader(package, folder) for package, folder in folders]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=harmless,
        trim_blocks=True,
        lstrip_blocks=True,
    )
