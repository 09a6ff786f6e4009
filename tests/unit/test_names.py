"""Names of chat models as people type them: which server, folder or hub name they open, or which name is meant."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from dubito.errors import ModelUnavailable, UserFault
from dubito.models.openai_chat import OpenAIChat
from dubito.models.transformers_chat import TransformersChat
from dubito.resources.fitting import fitted
from dubito.resources.opening import check_server, open_chat_model, server_of
from dubito.resources.resources import Resources
from dubito.server_url import bind_general_keys, key_for, ollama_url
from dubito.settings import settings
from dubito.state.calibration import identity
from dubito.state.vanilla_rag import VanillaRagContext
from dubito.tests.stub_server import Stub, serving
from pydantic import SecretStr, ValidationError


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("", "http://127.0.0.1:11434/v1"),
        ("0.0.0.0", "http://127.0.0.1:11434/v1"),
        ("0.0.0.0:8080", "http://127.0.0.1:8080/v1"),
        ("box", "http://box:11434/v1"),
        ("https://box.example", "https://box.example/v1"),
        ("http://box:80/", "http://box:80/v1"),
        ("::1", "http://[::1]:11434/v1"),
        ("[::1]:8080", "http://[::1]:8080/v1"),
    ],
)
def test_ollamas_server(monkeypatch: pytest.MonkeyPatch, host: str, url: str) -> None:
    monkeypatch.setenv("OLLAMA_HOST", host)
    assert ollama_url() == url
    assert server_of("ollama:llama3.1:8b") == f"{url}#llama3.1:8b"


def test_a_key_in_ollamas_host_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_HOST", "http://me:secret@box")
    with pytest.raises(UserFault, match="must not hold") as fault:
        open_chat_model("ollama:llama3.1")
    assert "secret" not in str(fault.value)


@pytest.mark.parametrize("name", ["http://me:secret@box", "http://box/v1?key=secret#m"])
def test_a_key_in_a_plain_url_is_refused_and_not_quoted(name: str) -> None:
    for attempt in (lambda: open_chat_model(name), lambda: VanillaRagContext(llm=name)):
        with pytest.raises((UserFault, ValidationError), match="must not hold") as fault:
            attempt()
        assert "secret" not in str(fault.value)


def test_a_key_goes_to_a_plain_url_that_the_command_line_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUBITO_KEYS", "")
    settings.cache_clear()
    bind_general_keys(["http://box:8000", "ollama:llama3.1"])
    assert key_for("http://box:8000/v1", SecretStr("k")) == "k"
    assert key_for("http://127.0.0.1:11434/v1", SecretStr("k")) == ""
    monkeypatch.undo()
    settings.cache_clear()


@pytest.mark.parametrize(
    ("name", "kind"),
    [("Qwen/Qwen2.5-1.5B-Instruct", TransformersChat), ("http://box:8000", OpenAIChat), ("ollama:m", OpenAIChat)],
)
def test_what_a_name_opens(name: str, kind: type) -> None:
    assert isinstance(model := open_chat_model(name), kind)
    assert model.name == name


def test_a_folder_is_read_by_transformers(tmp_path: Path) -> None:
    assert isinstance(open_chat_model(str(tmp_path)), TransformersChat)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("localhost:8000", "for a server write http://localhost:8000"),
        ("127.0.0.1:8000/v1#m", "for a server write http://127.0.0.1:8000/v1#m"),
        ("llama3.1", "for a model of Ollama write ollama:llama3.1"),
        ("olama:llama3.1", "did you mean ollama:llama3.1"),
        ("gpt-4o", "openai:https://api.openai.com/v1#gpt-4o"),
        ("model.gguf", "gguf:model.gguf"),
        ("no such thing", "use one of embedded"),
    ],
)
def test_a_name_that_is_none_is_told_the_right_one(name: str, advice: str) -> None:
    with pytest.raises(UserFault, match="There is no chat model named") as fault:
        open_chat_model(name)
    assert advice in str(fault.value)


def test_one_model_has_one_identity_however_it_is_named() -> None:
    assert {identity(name) for name in ("vllm:http://a/v1#m", "http://b:8000#m", "ollama:m")} == {"m"}


async def asked(name: str) -> tuple[Any, Any]:
    resources = Resources()
    context = await fitted(VanillaRagContext(llm=name), resources)
    return context, await resources.llm(context)


@pytest.mark.parametrize(("owner", "capable"), [("vllm", True), ("library", False)])
async def test_the_list_of_models_says_what_a_server_is(owner: str, capable: bool) -> None:
    with serving(Stub(models=[{"id": "only", "owned_by": owner, "max_model_len": 99}])) as stub:
        _, llm = await asked(stub.url.removesuffix("/v1"))
        assert ("score" in llm.capabilities) == capable
        assert await llm.window() == (99 if capable else None)
        assert stub.requests == [], "no model call is needed for that"


async def test_several_models_are_listed_with_the_name_to_write() -> None:
    stub = Stub(models=[{"id": "b"}, {"id": "a"}])
    with serving(stub), pytest.raises(UserFault, match=r"name one of a, b, as in http://.*/v1#a"):
        await asked(stub.url)


async def test_a_model_that_ollama_lacks_is_told_before_the_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(Stub(models=[{"id": "llama3.1:latest"}])) as stub:
        monkeypatch.setenv("OLLAMA_HOST", stub.url.removesuffix("/v1"))
        await asked("ollama:llama3.1")
        with pytest.raises(UserFault, match=r"does not serve the model qwen; it serves llama3\.1:latest"):
            await asked("ollama:qwen")


@pytest.fixture
def dead() -> str:
    """A URL at which nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


@pytest.mark.parametrize("kind", ["", "vllm:", "openai:"])
async def test_a_dead_server_is_told_in_less_than_two_seconds(dead: str, kind: str) -> None:
    begun = time.monotonic()
    with pytest.raises(ModelUnavailable, match=r"after 1 attempt: the connection failed .*\. Start it, or"):
        await asked(f"{kind}{dead}/v1#m")
    with pytest.raises(ModelUnavailable):
        check_server(f"{kind}{dead}#m")
    assert time.monotonic() - begun < 2


LOADS = """
import json, sys
from dubito.graphs.registry import graph_named
graphs = [graph_named(name) for name in ("cot", "ircot")]
outputs = [graph.invoke({"question": "Who founded the mill?"}, context={"llm": sys.argv[1]}) for graph in graphs]
print(json.dumps([output["answer"] for output in outputs] + ["torch" in sys.modules]))
"""


def test_graphs_that_embed_nothing_load_no_torch(tmp_path: Path) -> None:
    with serving(Stub(script=lambda body: "So the final answer is: Ada.")) as stub:
        done = subprocess.run(
            [sys.executable, "-c", LOADS, stub.url],
            check=False,
            capture_output=True,
            text=True,
            timeout=90,
            env=os.environ | {"DUBITO_CACHE_DIR": str(tmp_path)},
        )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["Ada", "Ada", False]
