"""The page of troubles quotes messages as the code says them, and leaves none out that its rule asks for.

An entry is due for every fault of a model or its server, everything a model or prompt cannot do, every warning, every
`UserFault` that sends its reader to another command, an installation, the environment or a server. Of the other
`UserFault`s, which name what was given and what to give in its place, the page has those that gain from more words.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"
PARTS = ("cli", "evals", "graphs", "models", "nodes", "prompts", "retrieval", "state", "traces", "uncertainty")
NO_MESSAGES = {"examples.py", "reasoning_examples.py"}

HOLE = "..."
ALWAYS_DUE = {"CapabilityMissing", "ContextOverflow", "ModelFault", "ModelUnavailable", "DubitoError", "Warning"}
FAULTS = ALWAYS_DUE | {"UserFault", "Forbidden"}
ELSEWHERE = re.compile(r"pip install|\bdubito (?:ask|index|serve|calibrate|eval)\b|DUBITO_|\banew\b|\bserver\b")

SAYS_ALL = (
    "There is no question: write it as",
    "The question is empty: write it as",
    "is set by dubito serve itself",
    "or leave the compression out",  # of a benchmark's own code
    "names no server and model: write it as",
    "close its quotation marks",
    "The %s %s %s.",  # put together from other messages
    "This reply cannot be used",  # a prompt
)
"""Words of messages that the rule asks for and that need no entry."""

OTHERS = {
    "Recursion limit of": "langgraph/pregel/main.py",
    "Blocking call to": "blockbuster/blockbuster.py",
    "is already in use, using port": "langgraph_api/cli.py",
    "To serve at least one request with the model's max seq len": "vllm/v1/core/kv_cache_utils.py",
    "No available memory for the cache blocks": "vllm/v1/core/kv_cache_utils.py",
    "Free memory on device": "vllm/v1/worker/utils.py",
    "User-specified max_model_len": "vllm/config/model.py",
}
"""Messages of libraries, and where they have them."""


class Said(NamedTuple):
    """A message: whose it is ("" for a part of one), its words with `...` for what differs, and where it is raised."""

    kind: str
    words: str
    where: str


def said_in(path: Path) -> Iterator[Said]:
    """The messages of a module: faults, warnings, and the parts that they are put together from."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree))
    assigned = [node for node in nodes if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)]
    constants = {node.targets[0].id: node.value for node in assigned if isinstance(node.targets[0], ast.Name)}
    raised: set[int] = set()

    def said(kind: str, node: ast.AST) -> Iterator[Said]:
        for words in texts(node, constants):
            yield Said(kind, words, f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}")

    for node in nodes:
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            kind = name if name in FAULTS else "Warning" if name == "warning" else ""
            for given in node.args:
                yield from said(kind, given)
                raised |= {id(part) for part in ast.walk(given)} if kind else set()
        elif isinstance(node, ast.Return) and node.value is not None:
            yield from said("", node.value)
        elif isinstance(node, ast.Raise) and node.exc is not None:
            raised |= {id(part) for part in ast.walk(node.exc)}
    if path.parent.name == "nodes":
        quoted = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
        quoted |= {id(node.value) for node in nodes if isinstance(node, ast.Expr)}  # docstrings
        for node in nodes:
            if isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in raised | quoted:
                yield from (one for one in said("Warning", node) if is_sentence(one.words))
    for value in constants.values():
        yield from said("", value)


def texts(node: ast.AST, constants: dict[str, ast.expr]) -> list[str]:
    """What an expression can say."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.JoinedStr(values=parts):
            return ["".join(str(part.value) if isinstance(part, ast.Constant) else HOLE for part in parts)]
        case ast.IfExp(body=one, orelse=other):
            return texts(one, constants) + texts(other, constants)
        case ast.Name(id=name) if name in constants:
            return texts(constants[name], {})
    return []


def is_sentence(words: str) -> bool:
    """Does it read as a warning, not as a prompt or a piece of one?"""
    return len(words.split()) > 3 and words[0] in HOLE + "CBTSEDNAM" and words[-1] in ".)" and "\n" not in words


@cache
def messages() -> tuple[Said, ...]:
    files = [ROOT / "errors.py"]
    for part in PARTS:
        files += sorted(path for path in (ROOT / part).rglob("*.py") if path.name not in NO_MESSAGES)
    return tuple(dict.fromkeys(one for path in files for one in said_in(path)))


@cache
def checked_by_doctor() -> tuple[Said, ...]:
    """The lines of `dubito doctor`, and of a validation, which are returned and not raised."""
    found = []
    for name in (
        "cli/checks.py",
        "cli/exits.py",
        "cli/calibrating.py",
        "cli/ui/guard.py",
        "retrieval/corpus.py",
        "evals/on_ray.py",
    ):
        nodes = list(ast.walk(ast.parse((ROOT / name).read_text(encoding="utf-8"))))
        found += [Said("", text, name) for node in nodes for text in texts(node, {})]
    return tuple(found)


def quotes(text: str) -> list[str]:
    """The quoted words of headings, and of a table's first cells."""
    lines = re.findall(r"^### (.+)$|^\| (`[^|]+) \|", text, re.MULTILINE)
    return [quote for heading, cell in lines for quote in re.findall(r"`([^`]+)`", heading or cell)]


def pattern(quote: str) -> re.Pattern[str]:
    return re.compile(".*?".join(re.escape(piece.strip()) for piece in quote.split(HOLE)))


def page() -> tuple[str, str]:
    """The page's part on dubito's messages, and that on others'."""
    ours, _, others = PAGE.read_text(encoding="utf-8").partition("## Messages of others")
    return ours, others


def unknown(text: str, known: tuple[Said, ...]) -> list[str]:
    """The quotes that no message has."""
    everything = "\n\n".join(one.words.replace("\n", " ") for one in known)
    return [quote for quote in quotes(text) if not pattern(quote).search(everything)]


def missing(text: str, known: tuple[Said, ...]) -> list[Said]:
    """The messages that are to have an entry and have none."""
    entries = re.compile("|".join(pattern(quote).pattern for quote in (*quotes(text), *SAYS_ALL)))
    due = [one for one in known if one.kind in ALWAYS_DUE or (one.kind in FAULTS and ELSEWHERE.search(one.words))]
    told = [one for one in due if re.search(r"\w{3}", one.words.replace(HOLE, ""))]
    return [one for one in told if not entries.search(one.words)]


def test_what_the_page_quotes_is_what_the_code_says() -> None:
    ours, _ = page()
    assert len(quotes(ours)) > 100
    assert not unknown(ours, messages() + checked_by_doctor())


def test_every_message_that_wants_an_entry_has_one() -> None:
    ours, _ = page()
    assert not missing(ours, messages())


def test_what_says_all_itself_is_still_said() -> None:
    for words in SAYS_ALL:
        assert any(words in one.words for one in messages()), words


@pytest.mark.parametrize("quote", quotes(page()[1]))
def test_others_messages_are_theirs(quote: str) -> None:
    package, _, _ = OTHERS[quote].partition("/")
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{package} is not installed")
    folder = Path(next(iter(spec.submodule_search_locations))).parent
    assert quote in (folder / OTHERS[quote]).read_text(encoding="utf-8")


def test_links_within_the_page_lead_to_its_headings() -> None:
    text = PAGE.read_text(encoding="utf-8")
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", title.lower()).strip().replace(" ", "-") for title in titles}
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= anchors
