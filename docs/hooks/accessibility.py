"""Mends what the theme leaves unnamed for screen readers."""

from __future__ import annotations

from typing import Any

SEARCH = 'data-md-component="search" role="dialog"'


def on_post_page(output: str, **_: Any) -> str:  # noqa: ANN401 - mkdocs' own signature
    """Name the dialog of the search."""
    return output.replace(SEARCH, f'{SEARCH} aria-label="Search"')
