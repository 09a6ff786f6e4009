"""Keeps a docstring's line breaks after the end of a sentence or a clause."""

from __future__ import annotations

import re
from typing import Any

import griffe


class Lines(griffe.Extension):
    """For mkdocstrings, which reads docstrings as Markdown."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:  # noqa: ANN401 - griffe's own signature
        """Break the lines of one docstring."""
        if obj.docstring:
            obj.docstring.value = re.sub(r"(?<=[.;:])\n(?=\S)", "  \n", obj.docstring.value)
