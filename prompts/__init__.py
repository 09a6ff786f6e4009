"""Every prompt as a file of its own; beside it the Python that fills it in and parses the reply.

A template is a chat, a block per turn named for its role: `system`, fixed text; `user_example` and `assistant_example`,
where one is given; `user`, which holds the data. Documents are data: passages are delimited, and marks that could end a
passage or forge a chat turn are defused, so their text cannot give instructions.
What varies most comes last, so that a server's prefix cache serves the rest.
"""

from __future__ import annotations

import re
from typing import Literal

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from ..state.messages import Message

ROLES: dict[str, Literal["system", "user", "assistant"]] = {
    "system": "system",
    "user": "user",
    "assistant": "assistant",
}


def render(name: str, **inputs: object) -> list[Message]:
    """The messages of prompt `name` for the given inputs; a missing input is an error, not an empty string."""
    template = _TEMPLATES[f"{name}.jinja"]
    context = template.new_context(inputs)
    return [
        {"role": ROLES[block.partition("_")[0]], "content": "".join(turn(context)).strip()}
        for block, turn in template.blocks.items()
    ]


def defuse(text: str) -> str:
    """Document text with the marks broken that could close a passage or open a chat turn.

    A zero-width space goes behind the opening bracket: a reader sees no difference, a tokenizer no control token.
    """
    return _MARK.sub("\\g<0>\u200b", str(text))  # of what is missing, str() tells the name


_MARK = re.compile(
    r"<(?=\s*/?\s*passage\b|[|｜]|/?s>|(?:start|end)_of_turn>|</?SYS>>)|\[(?=/?INST\])",
    re.IGNORECASE,
)
# of passages; of turns: ChatML and Llama 3, DeepSeek, Llama 2 and Mistral, Gemma


def bare(text: str, also: str = "") -> str:
    """A reply's text on one line, without the white space, the marks of bold and what is in `also` around it."""
    return " ".join(text.split()).strip(" *_" + also)


def _load() -> dict[str, Template]:
    environment = Environment(
        loader=PackageLoader("dubito", "prompts"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        autoescape=False,  # noqa: S701 - prompts are plain text, not HTML
    )
    environment.filters["defuse"] = defuse
    return {name: environment.get_template(name) for name in environment.list_templates(["jinja"])}


_TEMPLATES = _load()
# all of them at import: read when first needed, they would block the event loop of the node that needs them
