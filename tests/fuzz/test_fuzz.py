"""Whatever a stranger sends: only dubito's own errors leave, nothing hangs, and the state is JSON.

`DUBITO_FUZZ` is the number of inputs of all tests together. Without it there are 500, the same in every run, so that
only a change of the code makes them fail; with it they are drawn anew in each run, and what fails is kept in
`.hypothesis` and tried first in the next run.
"""

from __future__ import annotations

import asyncio
import io
import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin
from urllib.parse import quote

import pytest
from dubito.cli import app
from dubito.cli.ui import page_allow_list
from dubito.errors import ContractFault, DubitoError, UserFault
from dubito.graphs.context_from_text import context_for
from dubito.graphs.registry import context_type, graph_named, graph_names, takes_answers
from dubito.models import openai_server
from dubito.models.choose_by_prompt import named_option
from dubito.models.encoders import ServerEncoder
from dubito.models.interfaces import Choice, Completion, Reply, Sampling, Scores, Token
from dubito.models.judges import open_judge
from dubito.models.openai_chat import OpenAIChat, open_server
from dubito.models.rerankers import open_reranker
from dubito.models.thinking import strip_thinking
from dubito.nodes.query_formulation import first_sentence, query_from, words_of
from dubito.presenters.presenter import retrieval_steps
from dubito.prompts import answer, chain_of_query, decompose, plan, reasoning, rephrase, report, standalone
from dubito.render import trace_page
from dubito.render.compare import comparison
from dubito.render.trace_tree import tree
from dubito.resources import resources as shared
from dubito.resources.allowlist import allow_list
from dubito.resources.opening import check_corpus, open_chat_model, open_encoder
from dubito.resources.resources import Resources
from dubito.retrieval.chunkers import open_chunker
from dubito.retrieval.corpus import read_corpus
from dubito.retrieval.vector_databases import KINDS, Place
from dubito.server_url import checked_url, key_for
from dubito.settings import settings as process_settings
from dubito.tests.fuzz.hostile import (
    DEEP,
    TEXTS,
    URL,
    a_server,
    as_bytes,
    chat_reply,
    replies,
    spoiled,
    texts,
    values,
)
from dubito.tests.recorded import RUNS
from dubito.tests.scripted import ScriptedChat, ScriptedEncoder, ScriptedGraph, ScriptedRetriever
from dubito.traces.recording import assembled
from dubito.ui.app import create_app
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr
from rich.console import Console
from starlette.testclient import TestClient
from typer.testing import CliRunner

INPUTS = int(os.environ.get("DUBITO_FUZZ", "500"))
HANGS_AFTER_MS = 20_000


def inputs(share: float) -> settings:
    """Settings of a test that gets this share of all inputs."""
    return settings(
        max_examples=max(1, round(INPUTS * share)),
        deadline=HANGS_AFTER_MS,
        derandomize="DUBITO_FUZZ" not in os.environ,
        suppress_health_check=list(HealthCheck),
    )


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch, fast_retries: None) -> Iterator[None]:
    monkeypatch.setenv("DUBITO_OUTAGE_S", "0")
    monkeypatch.setattr(openai_server, "PAUSE_S", 0.0)
    process_settings.cache_clear()
    yield
    process_settings.cache_clear()


# --- replies ---

PARSERS: dict[str, Callable[[str], Any]] = {
    "plan": plan.parse,
    "report": lambda text: report.parse(text, 2),
    "answer": answer.parse,
    "decompose": decompose.parse,
    "chain of query": chain_of_query.parse,
    "rephrase": lambda text: rephrase.parse(text, "The Lune flows."),
    "standalone": standalone.parse,
    "final answer": reasoning.final_answer,
    "end": reasoning.end_of,
    "option": lambda text: named_option(text, ("yes", "no", "1", "10", "partly yes")),
    "thinking": strip_thinking,
    "sentence": lambda text: words_of(Completion(text, "stop", (Token(text, -0.5),)), *first_sentence(text)),
    "query": lambda text: query_from([{"text": text, "probability": 0.5}], 0.9, text, [text]),
}


@pytest.mark.parametrize("unit", ["<think>", "</passage", "\u201ca"])
def test_the_time_of_a_parser_grows_with_the_text_and_not_with_its_square(unit: str) -> None:
    began = time.process_time()
    for parse in PARSERS.values():
        with suppress(ContractFault):
            parse(unit * (120_000 // len(unit)))
    assert time.process_time() - began < 4


@inputs(0.24)
@given(text=texts(), parser=st.sampled_from(list(PARSERS)))
def test_a_reply_is_parsed_or_refused(text: str, parser: str) -> None:
    with suppress(ContractFault):
        json.dumps(PARSERS[parser](text), allow_nan=False)


def asked(server: Any, verb: str, flavour: Literal["vllm", "openai"]) -> Any:
    """The result of a verb over a server."""
    chat = OpenAIChat("m", URL, None if flavour == "vllm" else "m", flavour)
    ask: Any = [{"role": "user", "content": "Where?"}]
    calls: dict[str, Callable[[], Any]] = {
        "complete": lambda: chat.complete(ask, Sampling(n=2, temperature=1.0, logprobs=flavour == "vllm")),
        "choose": lambda: chat.choose(ask, ["Paris", "Par", "no"]),
        "score": lambda: chat.score(ask, ["Paris", ""]),
        "count": lambda: chat.count(["Paris"]),
        "window": chat.window,
        "embed": lambda: ServerEncoder("e", URL, "m").embed(["one", "two"]),
        "introspect": lambda: open_server("v", f"{URL}#m&states={URL}", "vllm").introspect(ask, Sampling()),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(openai_server, "_open", server)
        return asyncio.run(calls[verb]())


@inputs(0.25)
@given(
    given_replies=st.lists(replies(), min_size=1, max_size=4),
    verb=st.sampled_from(["complete", "choose", "score", "count", "window", "embed", "introspect"]),
    flavour=st.sampled_from(["vllm", "openai"]),
)
@example([(200, {"choices": [{"message": DEEP}]})], "complete", "openai")
@example([(200, chat_reply("half \ud800"))], "choose", "openai")
def test_a_server_may_answer_anything(given_replies: list[Any], verb: str, flavour: Any) -> None:
    try:
        result = asked(a_server(given_replies), verb, flavour)
    except DubitoError as fault:
        str(fault)[:2_000].encode()
        return
    if isinstance(result, Reply):
        tokens = [token for completion in result.completions for token in completion.tokens]
        "".join([*(completion.text for completion in result.completions), *(token.text for token in tokens)]).encode()
        assert all(-math.inf < token.logprob <= 0 for token in tokens)
    if isinstance(result, Reply | Choice | Scores):
        assert min(result.tokens.prompt, result.tokens.completion) >= 0
    if isinstance(result, Choice):
        assert math.isclose(sum(result.probabilities.values()), 1, rel_tol=1e-6)


# --- whole graphs ---

SMALL = {"k": 2, "samples": 2, "max_steps": 2, "max_rounds": 1, "max_hops": 2, "max_iterations": 2, "budget": 3}


@cache
def choices(graph: str) -> list[tuple[str, Any]]:
    """Each setting with few values, and each of its values."""
    fields = context_type(graph_named(graph)).model_fields.items()
    return [
        (name, value)
        for name, field in fields
        for value in (get_args(field.annotation) if get_origin(field.annotation) is Literal else [])
        if name not in {"preset", "on_bad_record"} and value != "preset"
    ]


@st.composite
def runs(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A graph and some of its settings."""
    graph = draw(st.sampled_from(graph_names()))
    fields = context_type(graph_named(graph)).model_fields
    chosen = dict(draw(st.lists(st.sampled_from(choices(graph)), max_size=2))) if choices(graph) else {}
    flavour = draw(st.sampled_from(["vllm", "openai"]))
    fixed = {"llm": f"{flavour}:{URL}#m", "judge": draw(st.sampled_from(["embedded", "llm"])), **SMALL}
    fixed |= {"retrieval_threshold": "0.5", "adaptive": False, "estimator": "perplexity", "evaluator": "report"}
    return graph, {**{name: value for name, value in fixed.items() if name in fields}, **chosen}


def said_as_asked() -> st.SearchStrategy[str]:
    """Replies in the form of some prompt, with odd texts in it."""
    forms = ["1) Find {0}\n2) Find {1}", "1) score: 3 | answer: {0}\n2) score: 1 | answer: {1}", "Final answer: {0}"]
    forms += [
        "Follow-up: Who is {0}?",
        "So the final answer is: {0}.",
        "{0}",
        "yes",
        "no",
        "3",
        "entailment",
        "He {0}.",
    ]
    return st.builds(lambda form, *odd: form.format(*odd), st.sampled_from(forms), texts(), texts())


@inputs(0.2)
@given(
    run=runs(),
    question=st.sampled_from(["Which river?"] * 3 + TEXTS) | texts().map(lambda text: f"Which {text[:1_000]}?"),
    passages=st.tuples(texts(), texts(), texts()).map(lambda found: tuple(f"The Lune. {text}" for text in found)),
    given_replies=st.lists(texts() | said_as_asked(), min_size=1, max_size=6)
    | st.lists(replies() | said_as_asked(), min_size=1, max_size=6),
)
def test_every_graph_ends_with_json_or_an_error_of_its_own(
    run: tuple[str, dict[str, Any]], question: str, passages: tuple[str, ...], given_replies: list[Any]
) -> None:
    name, context = run
    retriever = ScriptedRetriever([1.0, 0.0], [[1.0, 0.1], [1.0, 0.2], [0.5, 0.9]], passages)
    opened = Resources(encoder=ScriptedEncoder(), retriever=retriever, graph=ScriptedGraph({}))
    graph = graph_named(name, opened)
    asks: dict[str, Any] = {"question": question, **({"answers": [question, "Lune"]} if takes_answers(graph) else {})}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(openai_server, "_open", a_server(given_replies))
        try:
            output = asyncio.run(graph.ainvoke(asks, context=context_type(graph).unchecked(context)))
        except DubitoError as fault:
            str(fault).encode()
            return
    assert json.loads(json.dumps(output, allow_nan=False)) == output


# --- settings and names ---


def of_settings(name: str) -> list[Callable[[str], Any]]:
    """What reads the value of a setting that names something."""
    llm, encoder = ScriptedChat(), ScriptedEncoder()
    readers: dict[str, list[Callable[[str], Any]]] = {
        "llm": [
            open_chat_model,
            lambda text: open_chat_model(f"vllm:{text}"),
            lambda text: open_chat_model(URL + text),
        ],
        "encoder": [open_encoder, lambda text: open_encoder(f"openai:{text}#m")],
        "corpus": [
            check_corpus,
            Place.named,
            *(lambda text, kind=kind: Place.named(f"{kind}:{text}#c") for kind in KINDS),
        ],
        "judge": [lambda text: open_judge(text, llm, encoder, process_settings().cache)],
        "reranker": [lambda text: open_reranker(text, llm, encoder)],
        "chunker": [lambda text: open_chunker(text, None), lambda text: open_chunker(f"semantic:{text}", None)],
        "url": [lambda text: checked_url(text, URL), lambda text: key_for(checked_url(f"http://{text}", URL), KEY)],
        "allow": [lambda text: allow_list([text], "it", "so"), lambda text: allow_list([f"llm={text}"], "it", "so")],
    }
    return readers[name]


KEY = SecretStr("sk")
NAMES = ["llm", "encoder", "corpus", "judge", "reranker", "chunker", "url", "allow"]
ODD_NAMES = ["http://[", "http://[::1", "http://a:99999999/", "http://a:b/v1", "//x", "hf:", "nli:\x00", "a" * 5_000]
ODD_NAMES += [
    "similarity:nan",
    "tokens:-1/9",
    "words:\u0663",
    "words:" + "9" * 400,
    "semantic:1e400/8",
    "http://\u2100/",
]


@inputs(0.1)
@given(name=st.sampled_from(NAMES), value=texts() | st.sampled_from(ODD_NAMES))
def test_a_name_is_opened_or_refused(name: str, value: str) -> None:
    for read in of_settings(name):
        with suppress(UserFault):
            read(value)


@inputs(0.1)
@given(graph=st.sampled_from(graph_names()), data=st.data())
def test_settings_are_taken_or_refused_in_a_sentence(graph: str, data: st.DataObject) -> None:
    fields = list(context_type(graph_named(graph)).model_fields)
    pairs = st.tuples(st.sampled_from(fields) | texts(), texts() | st.sampled_from(ODD_NAMES))
    with suppress(UserFault):
        context_for(
            graph_named(graph), {}, [f"{name}={value}" for name, value in data.draw(st.lists(pairs, max_size=3))]
        )


# --- what is read from disk ---


@cache
def recorded(name: str) -> list[Any]:
    """The lines of a trace."""
    with tempfile.TemporaryDirectory() as folder:
        from dubito.cli.watch import follow  # noqa: PLC0415

        path = Path(folder) / "run.jsonl"
        follow(RUNS[name](), path, None)
        return [json.loads(line) for line in path.read_bytes().splitlines()]


@inputs(0.04)
@given(name=st.sampled_from(list(RUNS)), data=st.data())
def test_a_trace_is_shown_or_refused(name: str, data: st.DataObject) -> None:
    with suppress(UserFault):
        show_every_way(data.draw(spoiled(recorded(name))))


def show_every_way(lines: list[Any]) -> None:
    recording = assembled(Path("run.jsonl"), [as_bytes(line) + b"\n" for line in lines])
    console = Console(file=io.StringIO(), width=100)
    console.print(tree(recording))
    with suppress(UserFault):
        retrieval_steps(recording)
    console.print(comparison(recording, recording))
    trace_page.render(recording).decode()


def test_a_trace_with_a_chunk_that_is_none_is_refused() -> None:
    *lines, last = recorded("vanilla_rag")
    with pytest.raises(UserFault, match="cannot be shown: was the file edited"):
        show_every_way([*lines, {**last, "output": {**last["output"], "evidence": [{}]}}])


RECORDS = [{"id": "a", "title": "The Lune", "text": "It flows."}, {"title": "B", "contents": "b"}]


@inputs(0.08)
@given(
    content=spoiled(RECORDS).map(
        lambda records: b"\n".join(map(as_bytes, records if isinstance(records, list) else [0]))
    )
    | spoiled(RECORDS).map(as_bytes)
    | st.binary(max_size=80)
    | texts().map(lambda text: text.encode("utf-8", "surrogatepass")),
    ending=st.sampled_from(["jsonl", "json", "csv", "tsv", "md", "html", "txt"]),
    on_bad_record=st.sampled_from(["refuse", "skip"]),
)
def test_a_corpus_is_read_or_refused(content: bytes, ending: str, on_bad_record: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"corpus.{ending}"
        path.write_bytes(content)
        with suppress(UserFault):
            for document in read_corpus(path, on_bad_record=on_bad_record).documents:
                "".join([document.id, document.title, document.text]).encode()


# --- command line and page ---

WORDS = ["ask", "trace", "eval", "report", "compare", "index", "draw", "seper", "calibrate", "sunar", "--json", "-k"]
WORDS += ["--set", "--graph", "--corpus", "--trace", "--html", "--out", "--dataset", "--limit", "--", "-", "k=1", "1"]
WORDS += ["vanilla_rag", "selection=mmr", "--encoder", "--preset", "--answer", "/dev/null", "/", "sample"]


def scripted_resources() -> Resources:
    retriever = ScriptedRetriever([1.0, 0.0], [[1.0, 0.1], [1.0, 0.2]], ["one", "two"])
    llm = ScriptedChat(reply=lambda system, user: "the Lune", seconds=0)
    return Resources(llm=llm, encoder=ScriptedEncoder(), retriever=retriever, graph=ScriptedGraph({}))


@inputs(0.06)
@given(words=st.lists(st.sampled_from(WORDS) | texts().map(lambda text: text[:2_000]), max_size=6))
def test_a_command_ends_with_a_code_and_a_sentence(words: list[str]) -> None:
    words = [word.replace("\x00", "") for word in words]  # which no argument can hold
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.chdir(folder)
        patch.setattr(shared, "_shared", scripted_resources())
        ended = CliRunner().invoke(app, words, input="")
    assert ended.exit_code in {0, 1, 2}, ended.output
    assert ended.exception is None or isinstance(ended.exception, SystemExit)
    assert "Traceback" not in ended.output


@cache
def page() -> TestClient:
    return TestClient(create_app(page_allow_list([], None, []), resources=scripted_resources()))


BODY = {"graph": "vanilla_rag", "question": "Which river?", "settings": {"k": "1"}, "answers": ["a"]}


@inputs(0.08)
@given(
    method=st.sampled_from(["GET", "POST", "POST", "HEAD", "PUT", "OPTIONS"]),
    path=st.sampled_from(["/", "/ask", "/ask", "/form/seper", "/form/x", "/runs/x", "/runs/x/trace.jsonl"]) | texts(),
    content=(st.just(BODY) | spoiled(BODY) | values()).map(as_bytes) | st.binary(max_size=40),
    headers=st.dictionaries(
        st.sampled_from(["host", "origin", "content-type", "cookie", "authorization", "sec-fetch-site"]),
        st.sampled_from([b"application/json", b"127.0.0.1", b"[::1", b"localhost:1", b"a@localhost", b"null", b"\xff"])
        | st.binary(max_size=10).map(lambda raw: raw.replace(b"\n", b"").replace(b"\r", b"")),
        max_size=3,
    ),
    token=st.sampled_from([None, "secret"]),
)
def test_a_request_is_answered_or_refused_in_a_sentence(
    method: str, path: str, content: bytes, headers: dict[str, bytes], token: str | None
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if token:
            patch.setenv("DUBITO_TOKEN", token)
        process_settings.cache_clear()
        usual = {"host": b"127.0.0.1", "content-type": b"application/json"}
        path = quote("/" + path[:500].lstrip("/"), errors="replace")
        answered = page().request(method, path, content=content, headers={**usual, **headers})  # type: ignore[arg-type]
    assert 200 <= answered.status_code < 500
    assert answered.status_code < 400 or method == "HEAD" or len(answered.text) > 3


def test_the_kept_texts_are_kept_once() -> None:
    assert len(set(TEXTS)) == len(TEXTS)
