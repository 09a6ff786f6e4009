"""The checks of `dubito doctor`. Each is a line with a state and, if it is not ok, a remedy."""

import asyncio
import importlib.metadata
import json
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from .. import __version__
from ..errors import DubitoError, extra_command, install_command
from ..models.background import run_in_background
from ..models.interfaces import Sampling
from ..models.weights import minilm_folder, smollm2_gguf
from ..presenters.words import megabytes
from ..resources.opening import SAMPLE, corpus_path, open_chat_model, open_encoder, server_of
from ..retrieval.corpus import read_corpus
from ..server_url import checked_url, each_url, key_for
from ..settings import settings

EXTRAS = [
    "local",
    "studio",
    "ui",
    "mcp",
    "eval",
    "plots",
    "datasets",
    "trace",
    "loaders",
    "qdrant",
    "pgvector",
    "milvus",
    "ray",
    "vllm",
]

EMBEDDED = "embedded"
EMBEDDED_CHAT, EMBEDDED_ENCODER = "embedded chat", "embedded encoder"

_REQUIREMENT = re.compile(r"""(?P<name>[\w.-]+).*extra == ['"](?P<extra>\w+)['"]""")

LIST_MODELS_S = 10.0
"""Seconds to wait for a server's list of models."""


@dataclass(frozen=True)
class Check:
    """One line. needed: the models that are checked cannot run without it."""

    name: str
    state: Literal["ok", "missing", "failed"]
    detail: str
    remedy: str = ""
    needed: bool = False


def can_run(checks: Sequence[Check]) -> bool:
    """Is every check ok that is needed?"""
    return all(check.state == "ok" for check in checks if check.needed)


def verdict(checks: Sequence[Check], llm: str | None, encoder: str | None) -> str:
    """What was checked, and whether it can run; in a sentence or two. llm, encoder: as for `all_checks`."""
    named = [f"{what} {name}" for what, name in (("chat model", llm), ("encoder", encoder)) if name]
    subject = f"The {' with the '.join(named)}" if named else "The embedded default"
    if not can_run(checks):
        return f"{subject} cannot run yet: repair the missing and failed lines above."
    states = {check.name: check.state for check in checks}
    if encoder is None and states[EMBEDDED_ENCODER] != "ok":
        return f"{subject} can run. There is no encoder, which most graphs search with: name one in --encoder."
    if llm is None and states[EMBEDDED_CHAT] != "ok":
        return f"{subject} can run. There is no chat model: name one in --llm."
    return f'{subject} can run: dubito ask "..."'


def all_checks(llm: str | None, encoder: str | None) -> Iterator[Check]:
    """Run every check; the given chat model and encoder are called.

    What they need is needed; if neither is given, what the embedded default needs.
    """
    names = [name for name in (llm, encoder) if name] or [EMBEDDED]
    is_default = not (llm or encoder)
    yield Check("dubito", "ok", f"{__version__}, in {Path(__file__).parents[1]}")
    yield _python()
    yield from _extras(needs_local=any(server_of(name) is None and not name.startswith("engine:") for name in names))
    needs_chat, needs_encoder = is_default or llm == EMBEDDED, is_default or encoder == EMBEDDED
    yield _guarded(EMBEDDED_CHAT, lambda: f"weights in {smollm2_gguf()}", needed=needs_chat)
    yield _guarded(EMBEDDED_ENCODER, lambda: f"weights in {minilm_folder()}", needed=needs_encoder)
    yield _guarded("GPU", _gpu, remedy="install a torch that fits this machine, or run without a GPU")
    yield _guarded("cache folder", _cache, needed=True, remedy="set DUBITO_CACHE_DIR to a folder that can be written")
    yield _guarded("sample corpus", _sample, needed=True, remedy="install dubito again")
    yield _langgraph_json()
    if llm:
        yield from _chat_model(llm)
    if encoder:
        yield _guarded("encoder", lambda: run_in_background(_try_encoder(encoder)), needed=True)


def _guarded(name: str, detail: Callable[[], str], *, needed: bool = False, remedy: str = "") -> Check:
    """The line of a check; an exception of `detail` makes it missing or failed. dubito's own errors name a remedy."""
    try:
        return Check(name, "ok", detail(), needed=needed)
    except DubitoError as fault:
        state: Literal["missing", "failed"] = "missing" if "not installed" in str(fault) else "failed"
        return Check(name, state, str(fault), needed=needed)
    except Exception as fault:
        return Check(name, "failed", f"{type(fault).__name__}: {fault}", remedy, needed)


def _python() -> Check:
    version = f"{platform.python_version()}, {sys.executable}"
    if (3, 11) <= sys.version_info < (3, 14):
        return Check("Python", "ok", version, needed=True)
    return Check("Python", "failed", version, "use Python 3.11, 3.12 or 3.13", needed=True)


def _extras(*, needs_local: bool) -> Iterator[Check]:
    """One check per extra: are the packages of dubito's metadata installed? needs_local: are models run here?"""
    packages: dict[str, list[str]] = {extra: [] for extra in EXTRAS}
    if not _installed("dubito"):
        yield Check("extras", "failed", "dubito itself is not installed", install_command("dubito"), needed=True)
        return
    for requirement in importlib.metadata.requires("dubito") or []:
        if (match := _REQUIREMENT.match(requirement)) and match["extra"] in packages:
            packages[match["extra"]].append(match["name"])
    for extra, names in packages.items():
        absent = [name for name in names if not _installed(name)]
        needed = needs_local and extra == "local"
        if absent:
            detail = f"not installed: {', '.join(absent)}"
            yield Check(f"extra {extra}", "missing", detail, extra_command(extra), needed)
        else:
            yield Check(f"extra {extra}", "ok", ", ".join(f"{n} {importlib.metadata.version(n)}" for n in names))


def _installed(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _gpu() -> str:
    if find_spec("torch") is None:
        return "torch is not installed, so models run on a server only"
    import torch  # noqa: PLC0415 - slow to import

    if not torch.cuda.is_available():
        return f"torch {torch.__version__} finds no GPU; models run on the CPU ({os.cpu_count()} cores)"
    cards = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    return ", ".join(f"{card.name} with {card.total_memory / 2**30:.0f} GiB" for card in cards)


def _cache() -> str:
    folder = settings().cache
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return f"{folder} can be written, {megabytes(size)}"


def _sample() -> str:
    corpus = read_corpus(corpus_path(SAMPLE))
    return f"{len(corpus.documents)} documents in {corpus_path(SAMPLE)}"


def _langgraph_json() -> Check:
    """Can `langgraph dev` be started in this folder?"""
    name, path = "langgraph.json", Path("langgraph.json")
    if not path.is_file():
        remedy = "start `langgraph dev` in a folder with one, such as dubito's repository"
        return Check(name, "missing", "not in this folder; only LangGraph Studio needs it", remedy)

    def loaded_graphs() -> str:
        graphs = json.loads(path.read_text(encoding="utf-8"))["graphs"]
        for entry in graphs.values():
            module, _, attribute = (entry["path"] if isinstance(entry, dict) else entry).partition(":")
            if module.endswith(".py"):
                Path(module).stat()
            else:
                getattr(import_module(module), attribute)
        return f"{len(graphs)} graphs can be loaded: {', '.join(graphs)}"

    return _guarded(
        name, loaded_graphs, remedy="repair the file or the graph that it names; only LangGraph Studio needs it"
    )


def _chat_model(name: str) -> Iterator[Check]:
    if (address := server_of(name)) is not None:
        remedy = "check that the server runs and that this is its URL, as in http://host:8000/v1"
        checks = [
            _guarded("chat server", partial(run_in_background, _served(url)), needed=True, remedy=remedy)
            for url in each_url(address.partition("#")[0])
        ]
        yield from checks
        if any(check.state != "ok" for check in checks):
            return
    yield _guarded("chat model", lambda: run_in_background(_try_chat(name)), needed=True)


async def _served(url: str) -> str:
    from openai import AsyncOpenAI  # noqa: PLC0415 - slow to import

    key = key_for(checked_url(url, "http://127.0.0.1:8000/v1"), settings().api_key) or "none"
    async with AsyncOpenAI(base_url=url, api_key=key, max_retries=0, timeout=LIST_MODELS_S) as client:
        began = time.monotonic()
        models = [model async for model in client.models.list()]
    parents = {model.id: (model.model_extra or {}).get("parent") for model in models}
    names = [f"{name} (a LoRA adapter of {parent})" if parent else name for name, parent in parents.items()]
    return f"{url} answers in {time.monotonic() - began:.2f} s and serves {', '.join(names) or 'no model'}"


async def _try_chat(name: str) -> str:
    model = await asyncio.to_thread(open_chat_model, name)
    began = time.monotonic()
    reply = await model.complete([{"role": "user", "content": "Say yes."}], Sampling(max_tokens=4))
    seconds = time.monotonic() - began
    window = await model.window()
    capabilities = ", ".join(sorted(model.capabilities)) or "plain completion only"
    tokens = "unknown" if window is None else f"{window:,} tokens"
    return f"{name} replied {reply.text[:40]!r} in {seconds:.1f} s; can do: {capabilities}; context window: {tokens}"


async def _try_encoder(name: str) -> str:
    encoder = await asyncio.to_thread(open_encoder, name)
    began = time.monotonic()
    vectors = await encoder.embed([f"dubito doctor {time.time()}"])  # a new text, which is not in the cache
    seconds, longest = time.monotonic() - began, await encoder.max_tokens()
    limit = "unknown" if longest is None else f"{longest} tokens"
    return f"{name} embedded a text in {seconds:.1f} s: dimension {vectors.shape[1]}, longest text: {limit}"
