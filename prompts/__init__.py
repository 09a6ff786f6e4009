"""Every prompt is a template; the Python file of its name fills it in and parses the reply.

The prompts without a parser are filled in by `unparsed`.

A template is a chat with one block per turn, named for its role: `system`, fixed text; `user_example` and
`assistant_example`, if the prompt has an example; `user`, which holds the data. Documents are data: passages are
delimited, and marks that could end a passage or forge a chat turn are broken, so a document cannot give instructions.
The part that varies most comes last, so that a server's prefix cache can serve the rest.
"""

import re
from typing import Any, Literal, cast

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from ..state.messages import Message
from ..state.records import Chunk

ROLES: dict[str, Literal["system", "user", "assistant"]] = {
    "system": "system",
    "user": "user",
    "assistant": "assistant",
}


def render(name: str, **inputs: object) -> list[Message]:
    """The messages of prompt `name` for the given inputs. A missing input raises an error."""
    template = _TEMPLATES[f"{name}.jinja"]
    context = template.new_context(inputs)
    return [
        {"role": ROLES[block.partition("_")[0]], "content": "".join(turn(context)).strip()}
        for block, turn in template.blocks.items()
    ]


def passage(chunk: Chunk) -> str:
    """A chunk as a prompt's list of passages shows it, numbered with four digits. For counting its tokens."""
    text: str = cast("Any", _TEMPLATES["passages.jinja"].module).passage(1000, chunk)
    return text


def defuse(text: str) -> str:
    """Break the marks in a document's text that could close a passage or open a chat turn.

    A zero-width space after the opening bracket is invisible, and a tokenizer no longer sees a control token.
    """
    return _MARK.sub("\\g<0>\u200b", str(text))  # str() of a missing input raises an error that names the input


_MARK = re.compile(
    r"<(?=\s*/?\s*passage\b|[|｜]|/?s>|(?:start|end)_of_turn>|</?SYS>>)|\[(?=/?INST\])",
    re.IGNORECASE,
)
# passages; chat turns of ChatML and Llama 3, DeepSeek, Llama 2 and Mistral, Gemma


def bare(text: str, extra: str = "") -> str:
    """A text on one line, without surrounding white space, marks of bold type and the characters in `extra`."""
    return " ".join(text.split()).strip(" *_" + extra)


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
# loaded at import, because reading files at first use would block the event loop of the node that needs them
