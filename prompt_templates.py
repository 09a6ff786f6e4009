"""The templates of the prompts: dubito's own, and those that a user puts in their place.

A template is a chat with one block per turn, named for its role: `system`, which shows no data; `user_example` and
`assistant_example`, if the prompt has an example; `user`, which holds the data. A comment at its top lists its inputs,
what the reply must be, the words without which the reply cannot be read, and the graph nodes that use it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import DictLoader, Environment, PackageLoader, StrictUndefined, Template, TemplateError, meta, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .errors import UserFault, closest

LONGEST = 100_000
"""Characters of a user's template."""

DEEPEST = 2
"""Loops inside each other in a user's template."""

_STYLE: dict[str, Any] = {"undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True, "autoescape": False}


@dataclass(frozen=True)
class Prompt:
    """A prompt as its template describes it.

    inputs: each with whether a user's template must use it. must_say: words that it must contain, since the reply is
    read by them. nodes: the graph nodes that use it.
    """

    name: str
    source: str
    template: Template
    inputs: Mapping[str, bool]
    output: str
    must_say: tuple[str, ...]
    nodes: tuple[str, ...]


def prompt(name: str) -> Prompt:
    """The prompt of that name; `UserFault` if there is none."""
    if name not in PROMPTS:
        raise UserFault(f"There is no prompt named '{name}'{closest(name, PROMPTS)}: use one of {', '.join(PROMPTS)}.")
    return PROMPTS[name]


def read_folder(folder: Path) -> dict[str, str]:
    """The templates in a folder, by the names of their prompts, checked; `UserFault` if one is wrong or unreadable."""
    try:
        texts = {file.stem: file.read_text(encoding="utf-8") for file in sorted(folder.glob("*.jinja"))}
    except (OSError, UnicodeDecodeError) as fault:
        raise UserFault(f"The prompts in '{folder}' cannot be read: {fault}.") from None
    if not texts:
        raise UserFault(f"'{folder}' has no prompts: write them there with `dubito prompts GRAPH --out {folder}`.")
    for name, text in texts.items():
        own_template(name, text)
    return texts


@lru_cache(maxsize=256)
def own_template(name: str, source: str) -> Template:
    """A user's template of a prompt, checked; `UserFault` says what is wrong, and in which line.

    It runs in a sandbox: it shows its inputs, loops over lists and asks conditions, and can do nothing else.
    """
    ours = prompt(name)
    if len(source) > LONGEST:
        raise UserFault(f"Your prompt '{name}' has {len(source):,} characters: shorten it to {LONGEST:,}.")
    try:
        tree = _SANDBOX.parse(source)
        _check(tree, name)
        used = meta.find_undeclared_variables(tree)
        for loop in tree.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, "a_list", [], [], None, None, lineno=loop.lineno)
        code = _SANDBOX.compile(tree, name)
    except (TemplateError, RecursionError, SyntaxError) as fault:
        number = getattr(fault, "lineno", None)
        line = "" if number is None else f"line {number}: "
        raise UserFault(f"Your prompt '{name}' is no jinja template: {line}{_words(fault)}.") from None
    for wrong in sorted(used - ours.inputs.keys()):
        raise UserFault(
            f"Your prompt '{name}' asks for '{wrong}'{closest(wrong, ours.inputs)}: its inputs are "
            f"{', '.join(ours.inputs) or 'none'}."
        )
    for missing in [one for one, is_required in ours.inputs.items() if is_required and one not in used]:
        raise UserFault(f"Your prompt '{name}' does not show {{{{ {missing} }}}}, which its reply depends on: add it.")
    text = _COMMENT.sub("", source).lower()
    for words in ours.must_say:
        if words.lower() not in text:
            raise UserFault(
                f"Your prompt '{name}' does not say '{words}', by which its reply is read: add these words."
            )
    template = Template.from_code(_SANDBOX, code, {})
    _check_turns(template, name)
    turns_of(template, {one: _SAMPLES.get(one, "x") for one in ours.inputs}, name)
    return template


def turns_of(template: Template, inputs: Mapping[str, object], name: str) -> list[tuple[str, str]]:
    """Role and text of each turn. `UserFault` for a user's template that fails."""
    context = template.new_context(dict(inputs))
    if template.environment is not _SANDBOX:
        return [(block.partition("_")[0], "".join(turn(context)).strip()) for block, turn in template.blocks.items()]
    try:
        return [(block.partition("_")[0], _bounded(turn(context), name)) for block, turn in template.blocks.items()]
    except (
        TemplateError,
        TypeError,
        ValueError,
        ArithmeticError,
        LookupError,
        AttributeError,
        RecursionError,
    ) as fault:
        raise UserFault(f"Your prompt '{name}' cannot be filled in: {_words(fault)}.") from None


LARGEST = 4_000_000
"""Characters of a turn that a user's template may make."""


def _bounded(pieces: Iterable[str], name: str) -> str:
    text, size = [], 0
    for piece in pieces:
        text.append(piece)
        size += len(piece)
        if size > LARGEST:
            raise UserFault(f"Your prompt '{name}' makes a turn of more than {LARGEST:,} characters: repeat less.")
    return "".join(text).strip()


_SAMPLES: dict[str, object] = {
    "chunks": [{"id": "c", "doc_id": "d", "title": "T", "text": "x"}],
    "chunk": {"id": "c", "doc_id": "d", "title": "T", "text": "x"},
    "hops": [{"question": "x", "answer": "x"}],
    "turns": [{"role": "user", "text": "x"}],
    **{name: ["x"] for name in ("plan", "notes", "rationales")},
}
"""Inputs to try a user's template with; all others are texts."""


_ALLOWED = (
    nodes.Template, nodes.Block, nodes.Output, nodes.TemplateData, nodes.For, nodes.If, nodes.Name, nodes.Getattr,
    nodes.Getitem, nodes.Const, nodes.Filter, nodes.Test, nodes.Compare, nodes.Operand, nodes.And, nodes.Or, nodes.Not,
    nodes.CondExpr, nodes.Concat, nodes.Assign, nodes.Import, nodes.Call,
)  # fmt: skip
_FILTERS = ("capitalize", "default", "first", "join", "last", "length", "lower", "title", "trim", "upper", "wordcount")
_TESTS = ("defined", "none", "odd", "even", "eq", "ne", "lt", "gt", "le", "ge", "in")
_CALLS = {("passages", "list"), ("passages", "passage"), ("loop", "cycle")}


def _check(tree: nodes.Template, name: str) -> None:
    for node in tree.body:
        is_space = isinstance(node, nodes.Output) and not "".join(
            one.data.strip() if isinstance(one, nodes.TemplateData) else "x" for one in node.nodes
        )
        if not isinstance(node, nodes.Block) and not is_space:
            _refuse(name, node, "stands outside of a block: put it into {% block system %} or {% block user %}")
    _check_below(tree, name, 0)


def _check_below(node: nodes.Node, name: str, depth: int) -> None:
    for child in node.iter_child_nodes():
        kind = type(child).__name__.lower()
        if not isinstance(child, _ALLOWED) or (isinstance(child, nodes.Block) and not isinstance(node, nodes.Template)):
            _refuse(name, child, f"has '{kind}', which a prompt cannot use")
        if isinstance(child, nodes.Call) and _called(child) not in _CALLS:
            _refuse(name, child, "has a call: a prompt can call passages.list(chunks) and nothing else")
        if isinstance(child, nodes.Import) and getattr(child.template, "value", None) != "passages.jinja":
            _refuse(name, child, "imports another file than passages.jinja")
        if isinstance(child, nodes.For) and depth >= DEEPEST:
            _refuse(name, child, f"has loops more than {DEEPEST} deep")
        _check_below(child, name, depth + isinstance(child, nodes.For))


def _called(call: nodes.Call) -> tuple[str, str] | None:
    target = call.node
    if isinstance(target, nodes.Getattr) and isinstance(target.node, nodes.Name):
        return target.node.name, target.attr
    return None


def _check_turns(template: Template, name: str) -> None:
    turns = list(template.blocks)
    roles = [turn.partition("_")[0] for turn in turns]
    if turns[:1] != ["system"] or turns[-1:] != ["user"] or roles[1:] != _alternating(len(roles) - 1):
        raise UserFault(
            f"Your prompt '{name}' has the blocks {', '.join(turns) or '(none)'}: it needs system first, then a "
            "user_example and an assistant_example for each example, and user last."
        )


def _alternating(number: int) -> list[str]:
    return ["assistant" if place % 2 else "user" for place in range(number)]


def _refuse(name: str, node: nodes.Node, what: str) -> NoReturn:
    raise UserFault(f"Your prompt '{name}', line {node.lineno}, {what}.")


def _words(fault: Exception) -> str:
    return next(iter(str(fault).splitlines()), "").rstrip(".") or type(fault).__name__


def _a_list(value: object) -> Iterator[object]:
    """What a user's template may loop over: a loop over the letters of texts would take forever."""
    if not isinstance(value, list | tuple):
        raise TypeError("a loop goes over a list, and this is none")
    return iter(value)


_COMMENT = re.compile(r"\{#.*?#\}", re.DOTALL)
_HEADER = re.compile(r"^(inputs|output|must say|nodes):[ \t]*(.*)$", re.MULTILINE)


def _described(file: str) -> Prompt:
    source = _source(file)
    comment = _COMMENT.match(source)
    header = dict(_HEADER.findall(comment[0] if comment else ""))
    used = meta.find_undeclared_variables(_BUILT_IN.parse(source))
    listed = {entry.split()[0].strip(":,"): entry for entry in header.get("inputs", "").split(";") if entry.split()}
    inputs = {
        one: "may be left out" not in listed.get(one, "")
        for one in [*listed, *sorted(used - listed.keys())]
        if one in used
    }
    return Prompt(
        file.removesuffix(".jinja"),
        source,
        _BUILT_IN.get_template(file),
        inputs,
        header.get("output", ""),
        _split(header.get("must say", ""), "/"),
        _split(header.get("nodes", ""), ";"),
    )


def _split(text: str, at: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(at) if part.strip())


_FOLDER = PackageLoader("dubito", "prompts")
_BUILT_IN = Environment(loader=_FOLDER, auto_reload=False, **_STYLE)  # noqa: S701 - prompts are plain text, not HTML


def _source(file: str) -> str:
    return _FOLDER.get_source(_BUILT_IN, file)[0]


# read at import, because reading files at first use would block the event loop of the node that needs them
passages = _BUILT_IN.get_template("passages.jinja")
"""The macros that show passages."""

PROMPTS = {
    file.removesuffix(".jinja"): _described(file)
    for file in _BUILT_IN.list_templates(["jinja"])
    if file != passages.name
}
"""All prompts by name."""

_SANDBOX = ImmutableSandboxedEnvironment(loader=DictLoader({"passages.jinja": _source("passages.jinja")}), **_STYLE)
_SANDBOX.globals.clear()
_SANDBOX.filters = {name: _SANDBOX.filters[name] for name in _FILTERS} | {"a_list": _a_list}
_SANDBOX.tests = {name: _SANDBOX.tests[name] for name in _TESTS}
