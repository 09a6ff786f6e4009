"""Every prompt is a template; the Python file of its name fills it in and parses the reply.

The prompts without a parser are filled in by `unparsed`.

All data in a prompt (see `prompt_templates`), whether a document, a question or what a model said before, is defused:
it can neither end a passage nor forge a chat turn. The part that varies most comes last, so that a server's prefix
cache can serve the rest.
"""

import re
from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, cast

from ..prompt_templates import PROMPTS, own_template, passages, turns_of
from ..state.messages import Message
from ..state.records import Chunk

own_prompts: ContextVar[Mapping[str, str]] = ContextVar("own_prompts", default=MappingProxyType({}))
"""The running graph's own templates, by the names of the prompts that they replace."""


def render(name: str, **inputs: object) -> list[Message]:
    """The messages of prompt `name` for the given inputs, which are defused. A missing input raises an error."""
    own = own_prompts.get().get(name)
    template = PROMPTS[name].template if own is None else own_template(name, own)
    turns = turns_of(template, {key: _defused(value) for key, value in inputs.items()}, name)
    return [{"role": cast("Any", role), "content": text} for role, text in turns]


def passage(chunk: Chunk) -> str:
    """A chunk as a prompt's list of passages shows it, numbered with four digits. For counting its tokens."""
    text: str = cast("Any", passages.module).passage(1000, _defused(chunk))
    return text


def defuse(text: str) -> str:
    """Break the marks in a text that could close or open a passage or a chat turn.

    A zero-width space after the opening bracket is invisible, and a tokenizer no longer sees a control token.
    """
    return break_chat_marks(_PASSAGE.sub(_BROKEN, text))


def break_chat_marks(text: str) -> str:
    """Break the marks that chat templates, tool calls and thoughts are written with (see `defuse`)."""
    return _CHAT_MARK.sub(_BROKEN, text)


_BROKEN = "\\g<0>\u200b"

_PASSAGE = re.compile(r"<(?=\s*/?\s*passage\b)", re.IGNORECASE)

_CHAT_MARK = re.compile(
    r"""
    <(?=/?[|｜])                                     # ChatML, Llama 3 and 4, Phi, GLM, Command, Harmony, DeepSeek, Kimi
    | <(?=\\\|)                                      # a mark whose bar is escaped
    | ｜(?=(?-i:[A-Z]+)｜)                            # DeepSeek: ｜DSML｜
    | <(?=/?[a-z0-9]+(?:_[a-z0-9]+)+/?>)             # <start_of_turn>, <fim_prefix>, <META_START>, <image_soft_token>
    | <(?=/?(?:s|[be]os|sos|eo[adhmpt]|eoss|sop|pad|unk|mask|cls|sep|meta|blank|(?-i:PRE|MID|SUF))/?>)
    | <(?=/?(?:reponame|filename|img|imgpad|global-img|slice|sound|call|escape)/?>)
    | <(?=/?(?:unused|special|extra|ent)\d*>)
    | <(?=</?SYS>>)                                  # Llama 2
    | <(?=/?(?:think|thinking|thought|reasoning|answer|assistant|user|system|instruct|query)\b)
    | <(?=/?(?:tools?|function|invoke|param|parameter|response|result|image|audio|video|vision)\b)
    | <(?=/?(?:tool|function|arg|dots|longcat|start|end|im|extra|reserved|token|prompt)s?_\w)
    | <(?=/?(?:dsml:|[a-z0-9]{1,12}[:|][a-z_|]))     # DeepSeek, MiniMax, Seed, PLaMo: <dsml:, <minimax:tool_call>
    | <(?=/?\w{1,40}[|｜]>)                           # Gemma: <turn|>
    | <(?=\#\#[A-Z])
    | \[(?=/?(?:INST|THINK|ARGS|PREFIX|SUFFIX|MIDDLE|IMG|AUDIO|TRANSCRIBE|REF|BOS|EOS|CLS|SEP|PAD|UNK|MASK2?|gMASK)\])
    | \[(?=/?(?-i:[A-Z]+(?:_[A-Z0-9]+)+)\])          # Mistral: [TOOL_CALLS], [REFERENCE_DOC_1]
    | \[(?=(?:control_|unused)\d+\])
    | \[(?=\|)                                       # EXAONE: [|user|]
    | \](?=~!?[a-z]+[\[\]]) | \[(?=[a-z]~\[)         # MiniMax: ]~b] and [e~[
    | \](?=<\][a-z]+\[>\[)                            # MiniMax M3: ]<]minimax[>[
    """,
    re.IGNORECASE | re.VERBOSE,
)


def _defused(data: object) -> object:
    """Data with all its texts defused, those of lists and records too."""
    if isinstance(data, str):
        return defuse(data)
    if isinstance(data, Mapping):
        return {key: _defused(value) for key, value in data.items()}
    return [_defused(item) for item in data] if isinstance(data, list | tuple) else data


def bare(text: str, extra: str = "") -> str:
    """A text on one line, without surrounding white space, marks of bold type and the characters in `extra`."""
    return " ".join(text.split()).strip(" *_" + extra)
