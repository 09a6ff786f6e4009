"""The code blocks of the documentation, the files that they name, and models without weights to run them with.

markdown-it-py, which comes with rich, reads the Markdown: it finds every block, also indented blocks and blocks in
lists and quotes. Libraries for tests of documents (sybil, pytest-examples, pytest-markdown-docs) run no shell commands
and skip blocks that they cannot parse.
"""

from __future__ import annotations

import ast
import io
import json
import re
import shlex
import shutil
import sys
import tokenize
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
from dubito.cli.completion import GRAPH_OF_SETTING
from dubito.models.interfaces import (
    MIDDLE_LAYER,
    Completion,
    Introspection,
    Message,
    Reply,
    Sampling,
    StatePlace,
    Token,
    Tokens,
    Vectors,
)
from dubito.prompts.reasoning_examples import ENDING
from dubito.tests.json_lines import write_lines
from dubito.tests.scripted import ScriptedChat, ScriptedEncoder, rephrases
from markdown_it import MarkdownIt


@dataclass(frozen=True)
class Block:
    """line: the number of its first line of code, from 1; language: "" if the block names none."""

    page: Path
    line: int
    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    """Every block of a page in order."""
    tokens = MarkdownIt("commonmark").parse(page.read_text(encoding="utf-8"))
    return [
        Block(page, token.map[0] + 1 + (token.type == "fence"), token.info.strip(), token.content)
        for token in tokens
        if token.type in {"fence", "code_block"} and token.map is not None
    ]


def is_report(page: Path) -> bool:
    """Did `dubito report` write it?"""
    return page.read_text(encoding="utf-8").startswith("<!-- dubito report -->")


def write_modules(root: Path, folder: Path) -> None:
    """Write the Python blocks of README and each page of the docs as a module, for `make types` and `make pyright`.

    The pages of `docs/reproduce` are scripts of their own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # pyright refuses a name without a value, and mypy would take the type of any value but a cast one
    names = "\n".join(f"{name} = cast(Any, None)" for name in READERS_OWN)
    for page in [root / "README.md", *sorted((root / "docs").glob("*.md"))]:
        code = [block.text for block in blocks(page) if block.language == "python"]
        module = folder / f"page_{page.stem.lower()}.py"
        module.write_text("\n".join(["from typing import Any, cast", names, *code]), encoding="utf-8")


READERS_OWN = (
    "model",
    "my_chat_model",
    "my_checkpointer",
    "my_dataset",
    "my_embeddings",
    "my_paragraphs",
    "my_vector_store",
    "tracer_provider",
)
"""Names in the blocks that stand for an object of the reader's."""


@dataclass(frozen=True)
class Command:
    """line: the command as written; environment: the variables set in front of it."""

    line: str
    environment: dict[str, str]
    words: list[str]


def commands(block: Block) -> Iterator[Command]:
    """The commands of a shell block; of a transcript (`console`) the lines that begin with `$ `."""
    for line in block.text.replace("\\\n", " ").splitlines():
        if block.language == "console":
            if not line.startswith("$ "):
                continue
            line = line[2:]  # noqa: PLW2901
        words = shlex.shlex(re.sub(r"(^|\s)#\s.*", "", line), posix=True, punctuation_chars=True)
        words.whitespace_split, words.commenters = True, ""
        one: list[str] = []
        for word in [*words, "&&"]:
            assert word == "&&" or not set(word) <= set("();<>|&"), f"a shell reads {word} as more than a word: {line}"
            if word != "&&":
                one.append(word)
            elif one:
                settings = list(takewhile(lambda some: re.match(r"[A-Z_]+=", some), one))
                yield Command(line, dict(some.split("=", 1) for some in settings), one[len(settings) :])
                one = []


def execute(block: Block, names: dict[str, Any]) -> None:
    """Run Python. If the comment behind or below an expression is a literal, the expression must have that value."""
    padded = "\n" * (block.line - 1) + block.text  # so that a traceback has the page's lines
    claims = dict(claimed(padded))
    for statement in ast.parse(padded).body:
        if not isinstance(statement, ast.Expr):
            exec(compile(ast.Module([statement], []), str(block.page), "exec"), names)
            continue
        value = eval(compile(ast.Expression(statement.value), str(block.page), "eval"), names)
        line = statement.end_lineno or 0
        for claim in (claims.get(line), claims.get(line + 1)):
            if claim is not None:
                assert rounded(value) == claim, f"line {line} says {claim} and it is {rounded(value)}"
                break


def claimed(code: str) -> Iterator[tuple[int, Any]]:
    """Line and value of each comment that is a literal; ", rounded" may stand behind it."""
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type == tokenize.COMMENT:
            try:
                yield token.start[0], ast.literal_eval(token.string[1:].removesuffix(", rounded").strip())
            except (ValueError, SyntaxError):
                continue


def rounded(value: Any) -> Any:
    """The value with its floats to two places, as pages show them."""
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(rounded(one) for one in value)
    return round(value, 2) if isinstance(value, float) else value


@dataclass
class Talker(ScriptedChat):
    """Does all that a chat model can do, and says that it was the Lune: or Ada Byron, if Lancaster's words are others.

    What is measured of it depends on the texts alone.
    """

    capabilities: Any = frozenset({"logprobs", "option_probabilities", "score", "seed", "hidden_states", "energy"})
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.mean_logprob = lambda user, text: -0.1 * (1 + len(user + text) % 17)
        self.pick = lambda user, options: options[0]

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        asked = messages[-1]["content"]
        said = "Ada Byron, 1815" if "lancaster lies" in asked else "the Lune"
        if rephrases(messages):
            said = "Put otherwise: " + asked.lower()
        elif ENDING in "".join(one["content"] for one in messages):
            said = f"{ENDING} {said}."
        words = tuple(Token(word, -0.1 * (1 + len(word) % 5)) for word in re.findall(r"\s*\S+", said))
        return Reply((Completion(said, "stop", words),) * sampling.n, Tokens(7, len(words) * sampling.n))

    async def introspect(
        self, messages: Sequence[Message], sampling: Sampling, place: StatePlace = MIDDLE_LAYER
    ) -> Introspection:
        reply = await self.complete(messages, sampling)
        scattered = np.random.default_rng(len(messages[-1]["content"])).normal(size=(sampling.n, 8))
        return Introspection(reply, scattered.astype(np.float32), place.layer or 15, (-1.0,) * sampling.n)


@dataclass
class Letters(ScriptedEncoder):
    """An encoder that counts words as tokens."""

    name: str = "letters"

    async def token_counter(self) -> Callable[[str], int]:  # type: ignore[override]
        return lambda text: len(text.split())


class LettersLate:
    """A late-interaction model: one vector a word, that of its first letter."""

    def __init__(self, name: str, source: str) -> None:
        self.name = name

    async def tokens(self, texts: Sequence[str]) -> list[Vectors]:
        return [np.eye(128, dtype=np.float32)[[ord(word[0]) % 128 for word in text.split()]] for text in texts]


RIVERS = ("Lune", "Kent", "Wyre", "Ribble", "Greta", "Rawthey", "Leven", "Crake", "Duddon", "Esk", "Irt", "Mite")


def articles(path: Path) -> None:
    """A corpus whose documents are of this file alone."""
    lines = [
        {
            "id": f"{path.stem} {name}",
            "title": name,
            "text": f"The {name} is a river of {path.stem}. It rises in fells.",
        }
        for name in RIVERS
    ]
    write_lines(path, lines)


def notes(folder: Path) -> None:
    """A folder of texts."""
    folder.mkdir()
    for name in RIVERS[:3]:
        (folder / f"{name}.md").write_text(f"# {name}\n\nThe {name} is a river.\n", encoding="utf-8")


def questions(path: Path) -> None:
    """Questions with gold answers, of which a model that always says the Lune gets most right."""
    lines = [
        {"question": f"Which river is number {i}?", "answers": ["Esk", "the Lune"][: 1 + (i > 0)]} for i in range(40)
    ]
    write_lines(path, lines)


CONTEXT = [["Lune", ["The Lune is a river.", "It rises in fells."]], ["Lancaster", ["A city."]]]

HOTPOT = [
    {"_id": name, "question": f"Which river is {name}?", "answer": "the Lune", "supporting_facts": [["Lune", 0]]}
    | {"context": CONTEXT, "type": "bridge", "level": "easy"}
    for name in ("q17", "q18")
]


class Hub:
    """The `datasets` library, as far as HotpotQA in its form goes."""

    @staticmethod
    def get_dataset_split_names(path: str, config: str | None) -> list[str]:
        return ["validation"]

    @staticmethod
    def load_dataset(path: str, config: str | None, *, split: str) -> list[dict[str, Any]]:
        assert (path, config, split) == ("hotpotqa/hotpot_qa", "distractor", "validation")
        facts = {"title": ["Lune"], "sent_id": [0]}
        context = {"title": ["Lune"], "sentences": [["The Lune is a river."]]}
        question = {"id": "q17", "question": "Which river?", "answer": "the Lune"}
        return [question | {"supporting_facts": facts, "context": context}]


def model_folder(folder: Path) -> None:
    """A model as far as its configuration."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"num_hidden_layers": 28, "hidden_size": 64}), encoding="utf-8")


Dubito = Callable[..., object]
"""Runs a command line of dubito's."""


def _hotpot(path: Path, dubito: Dubito) -> None:
    path.write_text(json.dumps(HOTPOT), encoding="utf-8")


def _index(path: Path, dubito: Dubito) -> None:
    articles(source := path.with_name(f"of-{path.stem}.jsonl"))
    dubito("index", source, "--out", path)


def _trace(path: Path, dubito: Dubito) -> None:
    dubito("ask", "Which river?", "--trace", path)


def _run(path: Path, dubito: Dubito) -> None:
    if made := sorted(path.parent.glob("*.run")):
        shutil.copytree(made[0], path)
        return
    _hotpot(source := path.with_name(f"of-{path.stem}.json"), dubito)
    dubito("eval", "df_rag", "vanilla_rag", "--dataset", f"hotpotqa:{source}", "--out", path)


def _calibration(path: Path, dubito: Dubito) -> None:
    questions(source := path.with_name(f"of-{path.stem}.jsonl"))
    what = path.name.partition(".")[0]
    guarantee = [] if what in GRAPH_OF_SETTING else ["--keep", "0.5", "--set", "uncertainty=disagreement"]
    dubito("calibrate", what, source, "--out", path, *guarantee)


MADE: dict[str, Callable[[Path, Dubito], None]] = {
    r"(my_)?(articles|changed|corpus|new)\.jsonl": lambda path, _: articles(path),
    r"(new-)?questions\.jsonl": lambda path, _: questions(path),
    r"notes/": lambda path, _: notes(path),
    r"models/[\w.-]+|smollm2": lambda path, _: model_folder(path),
    r"(hotpot_)?dev(_distractor_v1)?\.json": _hotpot,
    r"\w+\.index": _index,
    r"(run|before|after)\.jsonl": _trace,
    r"[\w-]+\.run": _run,
    r"\w+\.calibration\.json": _calibration,
}
"""The files that blocks read without having written them, by the form of their names."""

WRITTEN = r"--(?:out|html|md|plot)[ =]\S+|(?:\bask\b.*)--trace[ =]\S+"


def make_files(text: str, folder: Path, dubito: Dubito) -> None:
    """Make what a block or a command names and is not there."""
    read = re.sub(WRITTEN, "", text)
    for form, make in MADE.items():
        for found in re.finditer(rf"(?<![\w./-]){form}(?![\w-]|\.\w)", read):
            if not (path := folder / found[0]).exists():
                make(path, dubito)


if __name__ == "__main__":
    write_modules(Path(__file__).parents[1], Path(sys.argv[1]))
