"""Every prompt as a file of its own; beside it the Python that fills it in and parses the reply.

A template has a `system` block, fixed text, and a `user` block, which holds the data. Documents are data: passages are
delimited, and marks that could end a passage or forge a chat turn are defused, so their text cannot give instructions.
What varies most comes last, so that a server's prefix cache serves the rest.
"""

from __future__ import annotations

import re
from functools import lru_cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from ..state.messages import Message


def render(name: str, **inputs: object) -> list[Message]:
    """The messages of prompt `name` for the given inputs; a missing input is an error, not an empty string."""
    template = _template(name)
    context = template.new_context(inputs)
    system, user = ("".join(template.blocks[block](context)).strip() for block in ("system", "user"))
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


def defuse(text: str) -> str:
    """Document text with the marks broken that could close a passage or open a chat turn.

    A zero-width space goes behind the opening `<`: a reader sees no difference, a tokenizer no control token.
    """
    return _MARK.sub("<\u200b", text)


_MARK = re.compile(r"<(?=/?\s*passage\b|\|)", re.IGNORECASE)


@lru_cache
def _template(name: str) -> Template:
    return _environment().get_template(f"{name}.jinja")


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("dubito", "prompts"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # noqa: S701 - prompts are plain text, not HTML
    )
    environment.filters["defuse"] = defuse
    return environment
