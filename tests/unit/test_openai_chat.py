"""The OpenAI-compatible backend against a local HTTP server: what it sends, what it reads, what it makes of faults."""

import asyncio
import gc
import json
import math
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import cycle
from typing import Any
from weakref import WeakSet

import pytest
from blockbuster import blockbuster_ctx
from dubito.errors import CapabilityMissing, ContextOverflow, ModelFault, UserFault
from dubito.models import outage, server_list
from dubito.models.interfaces import ChatModel, Message, Sampling, Tokens
from dubito.models.metering import Metered
from dubito.models.openai_chat import OpenAIChat
from dubito.models.openai_server import ATTEMPTS, RequestRefused
from dubito.settings import settings
from dubito.tests.stub_server import Stub, serving
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

ASK: list[Message] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Where is Paris?"}]
KEY = "sk-secret-0123456789"
CHAT = "/v1/chat/completions"
NO_PENALTIES = {"repetition_penalty": 1.0, "min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}


@pytest.fixture(autouse=True)
def fresh_settings(monkeypatch: pytest.MonkeyPatch, httpserver: HTTPServer, fast_retries: None) -> Iterator[None]:
    monkeypatch.setenv("DUBITO_API_KEY", KEY)
    monkeypatch.setenv("DUBITO_KEYS", httpserver.url_for(""))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    settings.cache_clear()
    yield
    settings.cache_clear()


@pytest.fixture
def vllm(httpserver: HTTPServer) -> OpenAIChat:
    return OpenAIChat("vllm:here", httpserver.url_for("/v1"), "m", "vllm")


@pytest.fixture
def vllm_stub() -> Iterator[Stub]:
    with serving(Stub()) as stub:
        yield stub


@pytest.fixture
def plain(httpserver: HTTPServer) -> OpenAIChat:
    return OpenAIChat("openai:here", httpserver.url_for("/v1"), "m", "openai")


def token(text: str, logprob: float = -0.5, **alternatives: float) -> dict[str, Any]:
    """A sampled token; alternatives: probabilities by token text, the sampled one's included."""
    top = [{"token": t, "logprob": math.log(p) if p else -9999.0} for t, p in alternatives.items()]
    return {
        "token": text,
        "logprob": math.log(alternatives[text]) if text in alternatives else logprob,
        "top_logprobs": top,
    }


def one(text: str | None, tokens: list[dict[str, Any]] | None = None, **more: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": text, **more.pop("message", {})}
    logprobs = None if tokens is None else {"content": tokens}
    return {"index": 0, "message": message, "logprobs": logprobs, "finish_reason": "stop", **more}


def reply(*choices: dict[str, Any], prompt: int = 10, completion: int = 3, **more: Any) -> dict[str, Any]:
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return {"id": "x", "object": "chat.completion", "choices": list(choices), "usage": usage, **more}


def sent(server: HTTPServer, path: str = CHAT) -> list[dict[str, Any]]:
    return [json.loads(request.data) for request, _ in server.log if request.path == path and request.data]


def serve(server: HTTPServer, *replies: dict[str, Any], path: str = CHAT) -> None:
    for body in replies:
        server.expect_ordered_request(path, method="POST").respond_with_json(body)


def models(server: HTTPServer, *ids: str, window: int | None = 4096) -> None:
    data = [{"id": i, "object": "model", "max_model_len": window} for i in ids]
    server.expect_request("/v1/models", method="GET").respond_with_json({"object": "list", "data": data})


def fails(server: HTTPServer, status: int, body: object, path: str = CHAT) -> None:
    server.expect_request(path, method="POST").respond_with_json(body, status=status)


def error(message: str, **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, "type": "BadRequestError", "param": None, "code": 400, **more}}


# ---------------------------------------------------------------- construction


def test_importing_the_module_does_not_import_openai() -> None:
    code = (
        "import sys, dubito.models.openai_chat as m; m.OpenAIChat('n', 'http://h/v1'); print('openai' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "False"


def test_it_is_a_chat_model_that_says_what_it_can(vllm: OpenAIChat, plain: OpenAIChat) -> None:
    model: ChatModel = vllm
    assert model.name == "vllm:here"
    assert model.capabilities == {"logprobs", "option_probabilities", "score", "seed", "pattern"}
    assert plain.capabilities == {"logprobs", "seed"}


@pytest.mark.parametrize(
    "url",
    ["", "127.0.0.1:8000/v1", "ftp://h/v1", "http://", "http://a b/v1", "http://a..b/v1", "http://h:0/v1",
     "http://h:99999/v1", "http://[::1/v1", "http://h/v1#m"],
)  # fmt: skip
def test_a_base_url_that_is_none_is_the_users_fault(url: str) -> None:
    with pytest.raises(UserFault, match=r"is not the URL of a server: write it as in http://127.0.0.1:8000/v1\."):
        OpenAIChat("n", url)


def test_a_password_in_the_base_url_is_refused_and_not_shown() -> None:
    with pytest.raises(UserFault, match="put the key into DUBITO_KEYS") as caught:
        OpenAIChat("n", f"http://me:{KEY}@h/v1")
    assert KEY not in str(caught.value)


# ---------------------------------------------------------------- complete


async def test_vllm_is_sent_every_setting(httpserver: HTTPServer, vllm: OpenAIChat) -> None:
    tokens = [token("Fr", -0.1), token("ance", -0.2)]
    second = one("Gaul", [token("Gaul", -3.0)], index=1, finish_reason="length")
    serve(httpserver, reply(second, one("France", tokens), prompt=21, completion=3))
    sampling = Sampling(n=2, temperature=0.7, top_p=0.9, top_k=40, max_tokens=9, stop=("\n",), seed=5, logprobs=True)

    answer = await vllm.complete(ASK, sampling)

    assert sent(httpserver) == [
        {
            "model": "m",
            "messages": ASK,
            "n": 2,
            "temperature": 0.7,
            "top_p": 0.9,
            "top_k": 40,
            "max_tokens": 9,
            "stop": ["\n"],
            "seed": 5,
            "logprobs": True,
            "chat_template_kwargs": {"enable_thinking": False},
            **NO_PENALTIES,
        }
    ]
    assert httpserver.log[0][0].headers["Authorization"] == f"Bearer {KEY}"
    assert [c.text for c in answer.completions] == ["France", "Gaul"]
    assert [c.finish_reason for c in answer.completions] == ["stop", "length"]
    assert [(t.text, t.logprob) for t in answer.completions[0].tokens] == [("Fr", -0.1), ("ance", -0.2)]
    assert answer.tokens == Tokens(21, 3)


async def test_defaults_are_sent_bare_but_for_what_a_server_would_fill_in(
    httpserver: HTTPServer, vllm: OpenAIChat
) -> None:
    serve(httpserver, reply(one("France", [token("France")])))
    answer = await vllm.complete(ASK, Sampling(thinking=True))
    # what is absent would be taken from the model's generation_config.json; a top_k of 0 keeps every token
    expected = {"model": "m", "messages": ASK, "temperature": 0.0, "top_p": 1.0, "top_k": 0, "max_tokens": 256}
    assert sent(httpserver) == [{**expected, **NO_PENALTIES}]
    assert answer.text == "France"


async def test_a_plain_server_is_sent_no_extras(httpserver: HTTPServer, plain: OpenAIChat) -> None:
    serve(httpserver, reply(one("France")), reply(one("France")))
    await plain.complete(ASK, Sampling())
    await plain.complete(ASK, Sampling(top_k=3))
    expected = {"model": "m", "messages": ASK, "temperature": 0.0, "top_p": 1.0, "max_tokens": 256}
    assert sent(httpserver) == [expected, {**expected, "top_k": 3}]


async def test_vllm_keeps_a_reply_to_a_pattern_and_a_plain_server_is_not_asked_to(
    httpserver: HTTPServer, vllm: OpenAIChat, plain: OpenAIChat
) -> None:
    serve(httpserver, reply(one("1) Find Ada")), reply(one("1) Find Ada")))
    for model in (vllm, plain):
        await model.complete(ASK, Sampling(pattern="1\\) .+"))
    assert [body.get("structured_outputs") for body in sent(httpserver)] == [{"regex": "1\\) .+"}, None]


async def test_a_server_that_refuses_patterns_is_asked_without_them_from_then_on(vllm_stub: Stub) -> None:
    vllm_stub.fails = lambda body, number: 400 if "structured_outputs" in body else 200
    model = OpenAIChat("vllm:here", vllm_stub.url, "m", "vllm")
    for _ in range(2):
        assert (await model.complete(ASK, Sampling(pattern="1\\) .+"))).text
    assert ["structured_outputs" in body for body in vllm_stub.requests] == [True, False, False]
    assert "pattern" not in model.capabilities
    assert not model.lacks, "no graph needs it, so no warning is due"


async def test_a_request_that_is_refused_for_another_reason_does_not_end_patterns(vllm_stub: Stub) -> None:
    vllm_stub.fails = lambda body, number: 400
    model = OpenAIChat("vllm:here", vllm_stub.url, "m", "vllm")
    with pytest.raises(RequestRefused, match="out of order"):
        await model.complete(ASK, Sampling(pattern="1\\) .+"))
    assert "pattern" in model.capabilities


async def test_greedy_continuations_are_asked_for_once(httpserver: HTTPServer, vllm: OpenAIChat) -> None:
    serve(httpserver, reply(one("France"), prompt=4, completion=1))
    answer = await vllm.complete(ASK, Sampling(n=3))
    assert [c.text for c in answer.completions] == ["France"] * 3
    assert "n" not in sent(httpserver)[0]  # vLLM answers n > 1 at temperature 0 with a 400
    assert answer.tokens == Tokens(4, 1)


async def test_a_server_that_ignores_n_is_asked_for_the_rest(httpserver: HTTPServer, plain: OpenAIChat) -> None:
    httpserver.expect_request(CHAT).respond_with_json(reply(one("France"), prompt=4, completion=1))
    answer = await plain.complete(ASK, Sampling(n=3, temperature=1.0, seed=7))
    assert len(answer.completions) == 3
    assert answer.tokens == Tokens(12, 3)
    first, *rest = sent(httpserver)
    assert (first["n"], first["seed"]) == (3, 7)
    assert sorted(body["seed"] for body in rest) == [8, 9]
    assert all("n" not in body for body in rest)


async def test_no_continuations_cannot_be_asked_for(vllm: OpenAIChat) -> None:
    with pytest.raises(UserFault, match="n and max_tokens must be 1 or more, not 0 and 256"):
        await vllm.complete(ASK, Sampling(n=0))


async def test_too_few_and_too_many_continuations(httpserver: HTTPServer, vllm: OpenAIChat) -> None:
    serve(httpserver, reply(one("a")), reply(one("a"), one("b"), one("c")))
    with pytest.raises(ModelFault, match="it returned 1 continuations instead of 2"):
        await vllm.complete(ASK, Sampling(n=2, temperature=1.0))
    answer = await vllm.complete(ASK, Sampling(n=2, temperature=1.0))
    assert [c.text for c in answer.completions] == ["a", "b"]


async def test_missing_usage_counts_as_nothing(httpserver: HTTPServer, plain: OpenAIChat) -> None:
    serve(httpserver, {**reply(one("France")), "usage": None})
    assert (await plain.complete(ASK, Sampling())).tokens == Tokens(0, 0)


async def test_log_probabilities_that_do_not_come_are_a_missing_capability(
    httpserver: HTTPServer, plain: OpenAIChat
) -> None:
    serve(httpserver, reply(one("France")))
    with pytest.raises(
        CapabilityMissing, match="openai:here gives no log-probabilities; use a vllm:, hf:, gguf: or emb"
    ):
        await plain.complete(ASK, Sampling(logprobs=True))


@pytest.mark.parametrize(
    ("content", "pieces", "kept", "message"),
    [
        # one block before the answer; the space after it belongs to no token of the answer
        ("<think>hm</think>\n\nParis", "<think>|hm|</think>|\n\n|Par|is|<end>", ["Par", "is", ""], {}),
        # the space may be in the answer's first token, or in the last of the mark's
        ("<think>hm</think> Paris", "<think>|hm|</think>| Paris", ["Paris"], {}),
        ("<think>hm</think> Paris", "<think>|hm|</think> |Paris", ["Paris"], {}),
        # a mark spelled in several tokens
        ("<think>hm</think>Paris", "<|think|>hm|</|think|>|Paris", ["Paris"], {}),
        # the reply begins inside the thought
        ("hm</think>Paris", "hm|</think>|Paris|<end>", ["Paris", ""], {}),
        # the server has split off the thinking, its tokens are still listed
        ("\nParis", "hm|</think>|\n|Paris", ["\n", "Paris"], {"reasoning": "hm"}),
        # one token holds the end of the thought and the start of the answer
        ("<think>hm</think>Paris", "<think>|hm</think>Par|is", [], {}),
        # the answer is not the tail
        ("It is <think>hm</think>Paris", "It is |<think>|hm|</think>|Paris", [], {}),
        # nothing but thinking, closed or not
        ("<think>hm</think>", "<think>|hm|</think>|<end>", [""], {}),
        ("<think>hm", "<think>|hm", [], {}),
        (None, "hm| hm", [], {"reasoning_content": "hm hm"}),
        # no thinking; vLLM gives no text to the first part of a character
        ("\u6771 x", "||\u6771| x|<end>", ["", "", "\u6771", " x", ""], {}),
        # token texts that do not add up to the reply are left as they came
        ("\u6771", "\ufffd|\ufffd|<end>", ["\ufffd", "\ufffd", "<end>"], {}),
    ],
)
async def test_the_tokens_are_those_of_the_answer(
    httpserver: HTTPServer, content: str | None, pieces: str, kept: list[str], message: dict[str, str]
) -> None:
    vllm = OpenAIChat("vllm:here", httpserver.url_for("/v1"), "m")
    tokens = [token(piece, -float(i)) for i, piece in enumerate(pieces.split("|"))]
    serve(httpserver, reply(one(content, tokens, message=message)))
    completion = (await vllm.complete(ASK, Sampling(logprobs=True, thinking=True))).completions[0]
    assert [t.text for t in completion.tokens] == kept
    assert [t.logprob for t in completion.tokens] == [-float(i) for i in range(len(tokens))][len(tokens) - len(kept) :]
    assert "hm" not in completion.text


@pytest.mark.parametrize(
    ("choice", "why"),
    [
        (one(""), ""),
        (one(None), ""),
        (one("Paris", finish_reason="content_filter"), ""),
        (one("", finish_reason="length"), "it was cut off at the length limit"),
        (one("<think>hm", finish_reason="length"), "it was cut off at the length limit while the model was thinking"),
        (one("<think>hm</think>\n"), "it holds only the model's thoughts"),
        (one(None, message={"reasoning": "hm"}), "it holds only the model's thoughts"),
        (one(None, message={"refusal": "I must not."}), "it is a refusal"),
        (one("", finish_reason="content_filter"), "the server ended it with 'content_filter'"),
        (one(None, finish_reason="tool_calls"), "the server ended it with 'tool_calls'"),
    ],
)
async def test_only_a_model_that_said_nothing_gave_an_empty_reply(
    httpserver: HTTPServer, vllm: OpenAIChat, choice: dict[str, Any], why: str
) -> None:
    serve(httpserver, reply(choice))
    assert (await vllm.complete(ASK, Sampling())).completions[0].why_empty == why


async def test_two_tokens_behind_the_answer_are_not_an_end_mark(httpserver: HTTPServer, vllm: OpenAIChat) -> None:
    serve(httpserver, reply(one("Paris", [token("Paris"), token("\n"), token("<end>")])))
    completion = (await vllm.complete(ASK, Sampling(logprobs=True))).completions[0]
    assert [t.text for t in completion.tokens] == ["Paris"]


async def test_what_a_stop_string_cuts_off_is_cut_off_the_tokens(
    httpserver: HTTPServer, vllm: OpenAIChat, plain: OpenAIChat
) -> None:
    tokens = [token("Once"), token(" upon"), token(" a")]
    serve(httpserver, reply(one("Once up", tokens, stop_reason="on")))
    sampling = Sampling(stop=("on",), logprobs=True)
    assert [t.text for t in (await vllm.complete(ASK, sampling)).completions[0].tokens] == ["Once", " up"]
    # a plain server may not tell what ended the reply: " a" is no end mark
    serve(httpserver, reply(one("Once up", tokens)))
    assert [t.text for t in (await plain.complete(ASK, sampling)).completions[0].tokens] == ["Once", " up"]


# ---------------------------------------------------------------- choose


async def test_vllm_is_confined_to_the_options(httpserver: HTTPServer, vllm: OpenAIChat) -> None:
    first = token("yes", yes=0.6, no=0.3, n=0.06, y=0.04, **{"<junk>": 0.0})
    serve(httpserver, reply(one("yes", [first, token("<end>", **{"<end>": 1.0})]), prompt=9, completion=2))

    choice = await vllm.choose(ASK, ["no", "yes"])

    (body,) = sent(httpserver)
    assert body["structured_outputs"] == {"choice": ["no", "yes"]}
    assert (body["logprobs"], body["top_logprobs"], body["temperature"], body["return_token_ids"]) == (
        True,
        20,
        0.0,
        True,
    )
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    assert body["max_tokens"] >= 4
    assert list(choice.probabilities) == ["no", "yes"]
    assert choice.probabilities == pytest.approx({"no": 0.36, "yes": 0.64})
    assert choice.best == "yes"
    assert choice.tokens == Tokens(9, 2)


async def test_a_shared_beginning_is_followed_to_where_the_options_differ(
    httpserver: HTTPServer, vllm: OpenAIChat
) -> None:
    tokens = [token("very", very=1.0), token(" bad", **{" bad": 0.7, " good": 0.3})]
    serve(httpserver, reply(one("very bad", tokens)))
    choice = await vllm.choose(ASK, ["very good", "very bad"])
    assert choice.probabilities == pytest.approx({"very good": 0.3, "very bad": 0.7})


async def test_an_end_mark_decides_for_the_option_that_is_complete(httpserver: HTTPServer, vllm: OpenAIChat) -> None:
    tokens = [
        token("1", **{"1": 0.8, "7": 0.2}),
        token("0", **{"0": 0.75, "<end>": 0.25}),
        token("<end>", **{"<end>": 1.0}),
    ]
    serve(httpserver, reply(one("10", tokens)))
    choice = await vllm.choose(ASK, ["1", "7", "10"])
    assert choice.probabilities == pytest.approx({"1": 0.2, "7": 0.2, "10": 0.6})


def tokenizer(server: HTTPServer) -> None:
    """A tokenizer of one token a character, its id the code point; the chat is 100, 101."""

    def handle(request: Request) -> Response:
        body = json.loads(request.data)
        ids = [100, 101] if "messages" in body else [ord(c) for c in body["prompt"]]
        return Response(
            json.dumps({"count": len(ids), "tokens": ids, "max_model_len": 4096}), mimetype="application/json"
        )

    server.expect_request("/tokenize", method="POST").respond_with_handler(handle)


def scorer(server: HTTPServer, logprob: Callable[[list[int], int], float], names_up_to: int = -1) -> None:
    """What vLLM makes of prompts, and of named tokens with ids up to a limit."""

    def of_prompt(ids: list[int]) -> dict[str, Any]:
        rows = [
            {str(i): {"logprob": logprob(ids[:at], i), "rank": 1, "decoded_token": chr(i)}} for at, i in enumerate(ids)
        ]
        return {"prompt_logprobs": [None, *rows[1:]]}

    def of_names(ids: list[int], named: list[int]) -> dict[str, Any]:
        found = {f"token_id:{one}": logprob(ids, one) for one in named if one <= names_up_to}
        return {"logprobs": {"top_logprobs": [{"token_id:7": -9.0} | found]}}

    def handle(request: Request) -> Response:
        body = json.loads(request.data)
        named = body.get("logprob_token_ids")
        choices = [
            {"index": index, "text": "", "finish_reason": "length"}
            | (of_prompt(ids) if named is None else of_names(ids, named))
            for index, ids in enumerate(body["prompt"])
        ]
        return Response(json.dumps(reply(*reversed(choices), prompt=50, completion=1)), mimetype="application/json")

    server.expect_request("/v1/completions", method="POST").respond_with_handler(handle)


def cache_of(server: HTTPServer, *engines: str) -> None:
    """A page of metrics with these labels of each engine."""
    lines = ["# TYPE vllm:cache_config_info gauge", *(f"vllm:cache_config_info{{{one}}} 1.0" for one in engines)]
    server.expect_request("/metrics").respond_with_data("\n".join(lines), content_type="text/plain")


BLOCK_OF_2 = 'block_size="2",enable_prefix_caching="True",engine="0"'


async def test_an_alternative_that_begins_several_options_has_only_these_scored(
    httpserver: HTTPServer, vllm: OpenAIChat
) -> None:
    tokens = [token("7", **{"7": 0.5, "1": 0.4, "3": 0.1}), token("<end>", **{"<end>": 1.0})]
    confined = one("7", tokens, token_ids=[ord("7"), 9])
    httpserver.expect_request(CHAT).respond_with_json(reply(confined, prompt_token_ids=[100, 101]))
    tokenizer(httpserver)
    # after "1" the model ends with probability 0.2 and goes on to 0 with 0.6; the rest of it is no option's
    scorer(
        httpserver,
        lambda before, i: (
            {(48, 49): math.log(0.6), (9, 49): math.log(0.2)}.get((i, before[-1]), -2.0) if before else 0.0
        ),
    )

    choice = await vllm.choose(ASK, ["1", "3", "7", "10"])

    assert choice.probabilities == pytest.approx({"1": 0.1, "3": 0.1, "7": 0.5, "10": 0.3})
    assert sorted(body["prompt"] for body in sent(httpserver, "/tokenize")) == ["1", "10"]
    assert sent(httpserver, "/v1/completions")[0]["prompt"] == [[100, 101, 49, 9], [100, 101, 49, 48, 9]]
    assert choice.tokens == Tokens(60, 4)


@pytest.mark.parametrize("logprobs", [[], [token("a", a=0.5, b=0.1)]], ids=["none", "cut off"])
async def test_options_beyond_the_alternatives_told_are_all_scored(
    httpserver: HTTPServer, vllm: OpenAIChat, logprobs: list[dict[str, Any]]
) -> None:
    confined = one("a", logprobs, token_ids=[97, 9])
    httpserver.expect_request(CHAT).respond_with_json(reply(confined, prompt_token_ids=[100, 101]))
    tokenizer(httpserver)
    shares = {97: 0.2, 98: 0.1, 99: 0.1, 9: 0.01}
    scorer(httpserver, lambda _, i: math.log(shares[i]) if i in shares else -1.0)
    choice = await vllm.choose(ASK, ["a", "b", "c"])
    assert choice.probabilities == pytest.approx({"a": 0.5, "b": 0.25, "c": 0.25})


@pytest.mark.parametrize("options", [[], ["yes"], ["yes", "yes"], ["yes", "no", "yes"], ["yes", " "], ["yes", "yes "]])
async def test_a_choice_needs_two_different_options(vllm: OpenAIChat, plain: OpenAIChat, options: list[str]) -> None:
    for chat in (vllm, plain):
        with pytest.raises(UserFault, match="at least two different options, each with text"):
            await chat.choose(ASK, options)


async def test_a_plain_server_is_read_from_its_alternatives(httpserver: HTTPServer, plain: OpenAIChat) -> None:
    first = token("Yes", **{"Yes": 0.4, " yes": 0.2, "N": 0.15, "The": 0.2, "Yesterday": 0.05})
    serve(httpserver, reply(one("Yes.", [first, token(".")])))

    choice = await plain.choose(ASK, ["yes", "no"])

    (body,) = sent(httpserver)
    assert (body["logprobs"], body["top_logprobs"], body["temperature"]) == (True, 20, 0.0)
    assert not {"structured_outputs", "chat_template_kwargs", "return_token_ids", "top_k", *NO_PENALTIES} & set(body)
    assert body["messages"][0] == ASK[0]
    assert body["messages"][1]["content"].startswith("Where is Paris?\n\n")
    assert body["messages"][1]["content"].endswith("yes | no")
    assert choice.probabilities == pytest.approx({"yes": 0.8, "no": 0.2})


async def test_a_sampled_token_counts_though_it_is_not_among_the_alternatives(
    httpserver: HTTPServer, plain: OpenAIChat
) -> None:
    first = token("yes", math.log(0.6)) | {"top_logprobs": [{"token": "no", "logprob": math.log(0.2)}]}
    serve(httpserver, reply(one("yes", [first])))
    assert (await plain.choose(ASK, ["yes", "no"])).probabilities == pytest.approx({"yes": 0.75, "no": 0.25})


async def test_a_plain_reply_that_goes_on_decides_between_options_that_begin_alike(
    httpserver: HTTPServer, plain: OpenAIChat
) -> None:
    tokens = [token("1", **{"1": 0.9, "7": 0.1}), token("0", **{"0": 0.6, ".": 0.2, "</s>": 0.2})]
    serve(httpserver, reply(one("10", tokens)))
    choice = await plain.choose(ASK, ["1", "7", "10"])
    assert choice.probabilities == pytest.approx({"1": 0.36, "7": 0.1, "10": 0.54})


async def test_a_reply_whose_options_are_improbable_is_parsed(httpserver: HTTPServer, plain: OpenAIChat) -> None:
    first = token("The", The=0.6, yes=0.3, no=0.1)
    serve(httpserver, reply(one("The answer is no.", [first])))
    assert (await plain.choose(ASK, ["yes", "no"])).probabilities == {"yes": 0.0, "no": 1.0}


async def test_a_reply_without_log_probabilities_is_parsed(httpserver: HTTPServer, plain: OpenAIChat) -> None:
    serve(httpserver, reply(one("<think>yes or no?</think>No, it does not.")))
    assert (await plain.choose(ASK, ["yes", "no"])).probabilities == {"yes": 0.0, "no": 1.0}


async def test_an_unclear_reply_is_asked_about_once(httpserver: HTTPServer, plain: OpenAIChat) -> None:
    # the second time from its alternatives
    serve(httpserver, reply(one("Yes and no.")), reply(one("Yes", [token("Yes", Yes=0.75, No=0.25)])))
    choice = await plain.choose(ASK, ["no", "yes"])
    assert choice.probabilities == pytest.approx({"no": 0.25, "yes": 0.75})
    assert choice.tokens == Tokens(20, 6)
    first, second = (body["messages"] for body in sent(httpserver))
    assert second[: len(first)] == first
    assert second[len(first)] == {"role": "assistant", "content": "Yes and no."}
    assert second[-1]["role"] == "user"
    assert "no | yes" in second[-1]["content"]


async def test_a_server_that_refuses_log_probabilities_is_asked_without(
    httpserver: HTTPServer, plain: OpenAIChat
) -> None:
    def handle(request: Request) -> Response:
        refused = "logprobs" in json.loads(request.data)
        body = error("logprobs are not supported") if refused else reply(one("no"))
        return Response(json.dumps(body), status=400 if refused else 200, mimetype="application/json")

    httpserver.expect_request(CHAT).respond_with_handler(handle)
    for _ in range(2):
        assert (await plain.choose(ASK, ["yes", "no"])).best == "no"
    assert ["logprobs" in body for body in sent(httpserver)] == [True, False, False]


async def test_another_refusal_of_a_choice_is_passed_on(httpserver: HTTPServer, plain: OpenAIChat) -> None:
    fails(httpserver, 400, error("temperature must not be 0"))
    with pytest.raises(UserFault, match="temperature must not be 0"):
        await plain.choose(ASK, ["yes", "no"])
    assert len(httpserver.log) == 1


# ---------------------------------------------------------------- score, window, count


async def test_continuations_are_scored_after_the_chat_in_one_request(httpserver: HTTPServer, vllm: OpenAIChat) -> None:
    tokenizer(httpserver)
    scorer(httpserver, lambda before, i: -(i + len(before) / 10))

    scores = await vllm.score(ASK, ["ab", "", "c"])

    chat = next(body for body in sent(httpserver, "/tokenize") if "messages" in body)
    assert chat == {
        "model": "m",
        "messages": ASK,
        "add_generation_prompt": True,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    texts = [body for body in sent(httpserver, "/tokenize") if "prompt" in body]
    assert all(body["add_special_tokens"] is False for body in texts)
    assert sent(httpserver, "/v1/completions") == [
        {
            "model": "m",
            "prompt": [[100, 101, 97, 98], [100, 101, 99]],
            "max_tokens": 1,
            "temperature": 0,
            "prompt_logprobs": 0,
        }
    ]
    assert [[(t.text, t.logprob) for t in c] for c in scores.continuations] == [
        [("a", -97.2), ("b", -98.3)],
        [],
        [("c", -99.2)],
    ]
    assert scores.tokens == Tokens(50, 1)


async def test_behind_a_long_prompt_the_next_tokens_of_each_beginning_are_asked_for(
    httpserver: HTTPServer, vllm: OpenAIChat
) -> None:
    tokenizer(httpserver)
    cache_of(httpserver, BLOCK_OF_2)
    scorer(httpserver, lambda before, i: -(i + len(before) / 10), names_up_to=1000)

    scores = await vllm.score(ASK, ["ab", "", "ac"])

    (body,) = sent(httpserver, "/v1/completions")
    # after the prompt comes a, after a comes b or c: two beginnings of two tokens each, in place of 2 × 4 tokens
    assert body["prompt"] == [[100, 101], [100, 101, 97]]
    assert body["logprob_token_ids"] == [97, 98, 99]
    assert (body["max_tokens"], body["temperature"], body["logprobs"]) == (1, 0, 1)
    assert body["return_tokens_as_token_ids"] is True
    assert body.items() >= NO_PENALTIES.items()
    assert [[t.logprob for t in c] for c in scores.continuations] == [[-97.2, -98.3], [], [-97.2, -99.3]]
    assert scores.tokens == Tokens(2 + 2 + 2, 0)
    await vllm.score(ASK, ["ab", "ac"])
    assert [request.path for request, _ in httpserver.log].count("/metrics") == 1


async def test_no_request_names_more_tokens_than_vllm_takes(httpserver: HTTPServer, vllm: OpenAIChat) -> None:
    tokenizer(httpserver)
    cache_of(httpserver, 'block_size="1",enable_prefix_caching="True"')
    scorer(httpserver, lambda before, i: -(i + len(before) / 1000), names_up_to=1000)
    text = "".join(map(chr, range(200, 500)))

    scores = await vllm.score(ASK, [text])

    bodies = sent(httpserver, "/v1/completions")
    assert sorted(len(body["logprob_token_ids"]) for body in bodies) == [44, 128, 128]
    assert sum(len(body["prompt"]) for body in bodies) == 300
    (scored,) = scores.continuations
    assert [t.logprob for t in scored] == pytest.approx([-(200 + n + (2 + n) / 1000) for n in range(300)])


@pytest.mark.parametrize(
    ("engines", "texts", "names_up_to"),
    [
        ((), ["ab", "ac"], 1000),  # a page without a cache
        (('block_size="2",enable_prefix_caching="False"',), ["ab", "ac"], 1000),
        ((BLOCK_OF_2, 'block_size="None",enable_prefix_caching="True"'), ["ab", "ac"], 1000),
        ((BLOCK_OF_2,), ["abcd"], 1000),  # four beginnings of two tokens, or six tokens
        ((BLOCK_OF_2,), ["ab", "ac"], 98),  # an older vLLM does not know the field
    ],
)
async def test_else_whole_prompts_are_scored(
    httpserver: HTTPServer, vllm: OpenAIChat, engines: tuple[str, ...], texts: list[str], names_up_to: int
) -> None:
    asked_by_names = int(names_up_to == 98)
    tokenizer(httpserver)
    cache_of(httpserver, *engines)
    scorer(httpserver, lambda before, i: -(i + len(before) / 10), names_up_to)
    for _ in range(2):
        scores = await vllm.score(ASK, texts)
        assert scores.continuations[0][1].logprob == -98.3
        assert scores.continuations[0][1].text == "b"
    bodies = sent(httpserver, "/v1/completions")
    assert ["logprob_token_ids" in body for body in bodies].count(True) == asked_by_names
    assert len(bodies) == 2 + asked_by_names


async def test_a_server_that_refuses_named_tokens_scores_whole_prompts(
    httpserver: HTTPServer, vllm: OpenAIChat
) -> None:
    tokenizer(httpserver)
    cache_of(httpserver, BLOCK_OF_2)
    refused = httpserver.expect_oneshot_request("/v1/completions", method="POST")
    refused.respond_with_json(error("unknown field logprob_token_ids"), status=400)
    scorer(httpserver, lambda before, i: -(i + len(before) / 10))
    scores = await vllm.score(ASK, ["ab", "ac"])
    assert [[t.logprob for t in c] for c in scores.continuations] == [[-97.2, -98.3], [-97.2, -99.3]]


@pytest.mark.parametrize("status", [200, 400])
async def test_a_server_without_those_of_prompts_is_asked_for_next_tokens_behind_a_short_prompt_too(
    httpserver: HTTPServer, vllm: OpenAIChat, status: int
) -> None:
    tokenizer(httpserver)
    cache_of(httpserver, BLOCK_OF_2)
    none = httpserver.expect_oneshot_request("/v1/completions", method="POST")
    said = reply({"index": 0, "text": ""}) if status == 200 else error("prompt_logprobs is switched off")
    none.respond_with_json(said, status=status)
    scorer(httpserver, lambda before, i: -(i + len(before) / 10), names_up_to=1000)
    scores = await vllm.score(ASK, ["abcd"])
    assert [t.logprob for t in scores.continuations[0]] == pytest.approx([-97.2, -98.3, -99.4, -100.5])


async def test_nothing_to_score_asks_nothing(vllm: OpenAIChat, httpserver: HTTPServer) -> None:
    assert (await vllm.score(ASK, [])).continuations == ()
    assert (await vllm.score(ASK, ["", ""])).continuations == ((), ())
    assert not httpserver.log


async def test_scores_of_other_tokens_than_were_asked_for_are_a_fault(httpserver: HTTPServer, vllm: OpenAIChat) -> None:
    tokenizer(httpserver)
    rows = [None, {"101": {"logprob": -1.0}}, {"5": {"logprob": -1.0}}]
    httpserver.expect_request("/v1/completions").respond_with_json(reply({"index": 0, "prompt_logprobs": rows}))
    with pytest.raises(ModelFault, match="the reply is malformed"):
        await vllm.score(ASK, ["a"])


async def test_a_plain_server_cannot_score(plain: OpenAIChat) -> None:
    with pytest.raises(
        CapabilityMissing, match="openai:here cannot score given replies; use a vllm:, hf:, gguf: or embedded"
    ):
        await plain.score(ASK, ["a"])


async def test_the_window_is_asked_for_once(httpserver: HTTPServer, vllm: OpenAIChat, plain: OpenAIChat) -> None:
    models(httpserver, "other", "m", window=8192)
    assert [await vllm.window(), await vllm.window()] == [8192, 8192]
    assert len(httpserver.log) == 1
    assert await plain.window() is None


async def test_the_window_of_an_unknown_model_is_the_users_fault(httpserver: HTTPServer, vllm: OpenAIChat) -> None:
    models(httpserver, "b", "a")
    with pytest.raises(UserFault, match=r"does not serve the model m; it serves a, b\."):
        await vllm.window()


async def test_tokens_are_counted_by_the_servers_tokenizer(httpserver: HTTPServer, vllm: OpenAIChat) -> None:
    tokenizer(httpserver)
    texts = ["x" * i for i in range(100)]
    assert await vllm.count(texts) == list(range(100))
    assert len(httpserver.log) == 99  # the empty text needs no asking


async def test_a_plain_servers_tokens_are_estimated_upwards(plain: OpenAIChat) -> None:
    assert await plain.count(["", "a", "four", "1999", "in 1999", "東京"]) == [0, 1, 2, 4, 6, 6]


# ---------------------------------------------------------------- which model


async def test_the_only_model_served_is_taken(httpserver: HTTPServer) -> None:
    models(httpserver, "only")
    httpserver.expect_request(CHAT).respond_with_json(reply(one("a")))
    chat = OpenAIChat("n", httpserver.url_for("/v1/"), None, "openai")
    await chat.complete(ASK, Sampling())
    await chat.complete(ASK, Sampling())
    assert [body["model"] for body in sent(httpserver)] == ["only", "only"]
    assert [request.path for request, _ in httpserver.log].count("/v1/models") == 1


@pytest.mark.parametrize(
    ("ids", "message"),
    [(["b", "a"], r"serves several models: name one of a, b, as in n#a\."), ([], r"serves no model\.")],
)
async def test_otherwise_the_model_must_be_named(httpserver: HTTPServer, ids: list[str], message: str) -> None:
    models(httpserver, *ids)
    with pytest.raises(UserFault, match=message):
        await OpenAIChat("n", httpserver.url_for("/v1")).complete(ASK, Sampling())


async def test_a_404_lists_what_is_served_now(httpserver: HTTPServer, vllm: OpenAIChat) -> None:
    httpserver.expect_ordered_request("/v1/models").respond_with_json({"data": [{"id": "m"}]})
    httpserver.expect_ordered_request(CHAT).respond_with_json(
        error("The model `m` does not exist.", code=404), status=404
    )
    httpserver.expect_ordered_request("/v1/models").respond_with_json({"data": [{"id": "new"}]})
    await vllm.window()
    with pytest.raises(UserFault, match=r"does not serve the model m; it serves new\."):
        await vllm.complete(ASK, Sampling())


async def test_a_route_that_is_not_there(httpserver: HTTPServer, vllm: OpenAIChat) -> None:
    models(httpserver, "m")
    fails(httpserver, 404, {"detail": "Not Found"})
    with pytest.raises(UserFault, match=r"has no /chat/completions \(HTTP 404\): Not Found\."):
        await vllm.complete(ASK, Sampling())


async def test_a_base_url_without_its_v1(httpserver: HTTPServer) -> None:
    httpserver.expect_request("/chat/completions").respond_with_json({"detail": "Not Found"}, status=404)
    httpserver.expect_request("/models").respond_with_json({"detail": "Not Found"}, status=404)
    with pytest.raises(UserFault, match=r"is not an OpenAI-compatible API; most base URLs end in /v1\."):
        await OpenAIChat("n", httpserver.url_for("/"), "m").complete(ASK, Sampling())


async def test_a_404_of_a_server_that_then_fails_is_a_model_fault(httpserver: HTTPServer, vllm: OpenAIChat) -> None:
    fails(httpserver, 404, {"detail": "Not Found"})
    httpserver.expect_request("/v1/models").respond_with_data("", status=503)
    with pytest.raises(ModelFault, match="HTTP 503"):
        await vllm.complete(ASK, Sampling())


# ---------------------------------------------------------------- faults


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504])
async def test_what_a_retry_may_mend_is_a_model_fault(httpserver: HTTPServer, vllm: OpenAIChat, status: int) -> None:
    fails(httpserver, status, error(f"Busy.\n  Try later. {KEY}"))
    with pytest.raises(ModelFault, match=rf"/v1: HTTP {status}: Busy\. Try later\. \*\*\*\.$") as caught:
        await vllm.complete(ASK, Sampling())
    assert caught.value.endpoint == httpserver.url_for("/v1")
    assert caught.value.attempts == len(httpserver.log) == ATTEMPTS


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_key_is_the_users_fault_and_is_not_shown(
    httpserver: HTTPServer, vllm: OpenAIChat, status: int
) -> None:
    fails(httpserver, status, error(f"Incorrect API key provided: {KEY[:6]}***{KEY[-4:]}."))
    with pytest.raises(UserFault, match=rf"refused the API key \(HTTP {status}\): set DUBITO_API_KEY") as caught:
        await vllm.complete(ASK, Sampling())
    assert KEY[:6] not in str(caught.value)
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            error(
                "This model's maximum context length is 4096 tokens. However, your prompt contains at least 4097 input "
                "tokens, which exceeds this limit even without any output tokens.",
                param="input_tokens",
            ),
            r"its reply \(at least 4097 tokens\) do not fit the context window of 4096 tokens of m at http",
        ),
        (
            error(
                "max_tokens=9000 cannot be greater than max_model_len=4096. Please request fewer output tokens. "
                "(parameter=max_tokens, value=9000)"
            ),
            r"its reply \(9000 tokens\) do not fit the context window of 4096 tokens",
        ),
        (error("max_tokens must be at least 1, got 0.", param="max_tokens"), "its reply do"),
        (
            error(
                "The decoder prompt (length 4096) plus the number of requested output tokens (at least 1) is longer "
                "than the maximum model length of 4096."
            ),
            "its reply do not fit the context window of 4096 tokens",
        ),
        (error("No numbers.", param="input_tokens"), "its reply do not fit the context window of m at http"),
        (error("Too long.", code="context_length_exceeded"), "its reply do not fit the context window of m"),
        (
            error(
                "the request exceeds the available context size, try increasing it",
                type="exceed_context_size_error",
                n_prompt_tokens=5000,
                n_ctx=2048,
            ),
            r"its reply \(5000 tokens\) do not fit the context window of 2048 tokens",
        ),
    ],
)
async def test_what_does_not_fit_is_an_overflow(
    httpserver: HTTPServer, vllm: OpenAIChat, body: dict[str, Any], message: str
) -> None:
    fails(httpserver, 400, body)
    with pytest.raises(ContextOverflow, match=message) as caught:
        await vllm.complete(ASK, Sampling())
    assert "use fewer or smaller chunks" in str(caught.value)
    assert "max_model_len" in str(caught.value)
    assert str(caught.value).count(". ") == 0  # one sentence


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (400, error("Unsupported 'top_k'."), r"\(HTTP 400\): Unsupported 'top_k'\.$"),
        (413, {"detail": "Too big"}, r"\(HTTP 413\): Too big\."),
        (400, error("x" * 5000), r": x{300}…\.$"),
        (422, {"detail": [{"loc": "body"}]}, "loc"),
        (400, {"error": "plain words"}, "plain words"),
        (418, [], "HTTP 418"),
    ],
)
async def test_other_refusals_are_the_users_fault_in_the_servers_words(
    httpserver: HTTPServer, vllm: OpenAIChat, status: int, body: object, message: str
) -> None:
    fails(httpserver, status, body)
    with pytest.raises(UserFault, match=message) as caught:
        await vllm.complete(ASK, Sampling())
    assert type(caught.value) is RequestRefused


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("", "the reply is not JSON"),
        ("[]", r"not a JSON object \(\[\]\)"),
        ('{"error": {"message": "engine died", "code": 500}}', "the reply is an error: engine died"),
        ('{"choices": []}', "it has no choices"),
        ("{}", r"malformed \(KeyError: 'choices'\)"),
        ('{"choices": [{"message": null}]}', "malformed"),
        (json.dumps(reply(one("half", finish_reason="abort"))), r"broken off \(abort\)"),
        (json.dumps(reply(one("a", [{"token": "a"}]))), "malformed"),
    ],
)
async def test_a_200_that_is_no_reply_is_a_model_fault(
    httpserver: HTTPServer, vllm: OpenAIChat, body: str, message: str
) -> None:
    httpserver.expect_request(CHAT).respond_with_data(body, content_type="application/json")
    with pytest.raises(ModelFault, match=message):
        await vllm.complete(ASK, Sampling())


async def test_a_page_in_place_of_a_reply_is_a_model_fault(httpserver: HTTPServer, vllm: OpenAIChat) -> None:
    httpserver.expect_request(CHAT).respond_with_data("<html>Bad gateway</html>", content_type="text/html")
    with pytest.raises(ModelFault, match=r"not a JSON object \(<html>Bad gateway</html>\)"):
        await vllm.complete(ASK, Sampling())


@pytest.mark.parametrize("verb", ["choose", "score", "count", "window"])
async def test_every_verb_makes_a_model_fault_of_nonsense(httpserver: HTTPServer, vllm: OpenAIChat, verb: str) -> None:
    for path in (CHAT, "/tokenize", "/v1/completions", "/v1/models"):
        httpserver.expect_request(path).respond_with_json({"nonsense": 1})
    calls: dict[str, Callable[[], Any]] = {
        "choose": lambda: vllm.choose(ASK, ["yes", "no"]),
        "score": lambda: vllm.score(ASK, ["yes"]),
        "count": lambda: vllm.count(["yes"]),
        "window": vllm.window,
    }
    with pytest.raises(ModelFault, match="malformed"):
        await calls[verb]()


def unused_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


async def test_a_refused_connection_is_a_model_fault() -> None:
    chat = OpenAIChat("n", f"http://127.0.0.1:{unused_port()}/v1", "m")
    with pytest.raises(ModelFault, match="the connection failed"):
        await chat.complete(ASK, Sampling())
    with pytest.raises(ModelFault, match="the connection failed"):
        await chat.window()


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n{", b"nonsense\r\n\r\n"])
async def test_a_dropped_connection_is_a_model_fault(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            for _ in range(ATTEMPTS):
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)

        thread = threading.Thread(target=hang_up)
        thread.start()
        chat = OpenAIChat("n", f"http://127.0.0.1:{listener.getsockname()[1]}/v1", "m")
        with pytest.raises(ModelFault, match="the connection failed"):
            await chat.complete(ASK, Sampling())
        thread.join()


async def test_a_busy_server_that_sends_its_list_late_is_known_for_what_it_is(
    httpserver: HTTPServer,
) -> None:
    def late(_: Request) -> Response:
        time.sleep(server_list.WAIT_S + 0.5)
        return Response(json.dumps({"data": [{"id": "m", "owned_by": "vllm"}]}))

    httpserver.expect_request("/v1/models").respond_with_handler(late)
    chat = OpenAIChat("n", httpserver.url_for("/v1"), "m", None)
    await chat.check(frozenset())
    assert "option_probabilities" in chat.capabilities


async def test_a_server_that_is_too_slow_is_a_model_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUBITO_TIMEOUT_S", "0.3")
    settings.cache_clear()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        chat = OpenAIChat("n", f"http://127.0.0.1:{silent.getsockname()[1]}/v1", "m")
        with pytest.raises(ModelFault, match=r"no reply within 0\.3 s"):
            await chat.complete(ASK, Sampling())


async def test_the_deadline_is_over_the_whole_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUBITO_TIMEOUT_S", "0.3")
    settings.cache_clear()
    sent = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            for _ in range(ATTEMPTS):
                connection, _ = listener.accept()
                with connection, suppress(OSError):
                    connection.recv(65536)
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n")
                    while not sent.wait(0.05):
                        connection.sendall(b" ")

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        chat = OpenAIChat("n", f"http://127.0.0.1:{listener.getsockname()[1]}/v1", "m")
        began = time.monotonic()
        with pytest.raises(ModelFault, match=r"no reply within 0\.3 s"):
            await chat.complete(ASK, Sampling())
        assert time.monotonic() - began < 10
        sent.set()


@pytest.mark.parametrize(
    "spoiled",
    [
        {"choices": [one("x", [{"token": "x", "logprob": math.nan}])]},
        {"choices": [one("x", [{"token": "x", "logprob": -math.inf}])]},
        {"choices": [one("x", [{"token": "x", "logprob": 0.5}])]},
        {"choices": [one("x", [{"token": "x", "logprob": "a"}])]},
        {"choices": [one("x", [token("x")])], "usage": {"prompt_tokens": "7"}},
        {"choices": [one("x", [token("x")])], "usage": {"prompt_tokens": -7}},
        {"choices": [one("half \ud800", [token("x")])]},
        {"choices": [{"message": {"role": "assistant"}, "finish_reason": "stop", "logprobs": {"content": []}}]},
    ],
)
async def test_nonsense_is_a_model_fault_and_never_a_measurement(
    httpserver: HTTPServer, vllm: OpenAIChat, spoiled: dict[str, Any]
) -> None:
    httpserver.expect_request(CHAT).respond_with_data(json.dumps(spoiled), content_type="application/json")
    with pytest.raises(ModelFault, match="the reply is malformed"):
        await vllm.complete(ASK, Sampling(logprobs=True))


async def test_a_deep_reply_is_a_model_fault(httpserver: HTTPServer, vllm: OpenAIChat) -> None:
    deep = "[" * 100_000 + "]" * 100_000
    httpserver.expect_request(CHAT).respond_with_data(f'{{"choices": {deep}}}', content_type="application/json")
    with pytest.raises(ModelFault, match="the reply is"):
        await vllm.complete(ASK, Sampling())


async def test_a_request_that_cannot_be_encoded_is_ours(httpserver: HTTPServer, vllm: OpenAIChat) -> None:
    with pytest.raises(UserFault, match="holds half a character"):
        await vllm.complete([{"role": "user", "content": "half \ud800"}], Sampling())
    assert not httpserver.log


async def test_the_pause_that_a_server_asks_for_is_kept(httpserver: HTTPServer, vllm: OpenAIChat) -> None:
    arrived: list[float] = []

    def answer(request: Request) -> Response:
        arrived.append(time.monotonic())
        if len(arrived) == 1:
            return Response(json.dumps(error("Busy.")), 429, {"Retry-After": "0.3"}, content_type="application/json")
        return Response(json.dumps(reply(one("a"))), content_type="application/json")

    httpserver.expect_request(CHAT).respond_with_handler(answer)
    assert (await vllm.complete(ASK, Sampling())).text == "a"
    assert arrived[1] - arrived[0] >= 0.3


async def test_an_outage_is_waited_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage, "FIRST_PAUSE_S", 0.05)
    down = [False]
    with serving(Stub(fails=lambda body, number: 503 if down[0] else 200)) as stub:
        chat = OpenAIChat("n", stub.url, "m")
        await chat.complete(ASK, Sampling())
        down[0] = True
        asked = [asyncio.create_task(chat.complete(ASK, Sampling())) for _ in range(8)]
        await asyncio.sleep(1.0)
        assert not any(task.done() for task in asked)
        sent = len(stub.requests)
        down[0] = False
        await asyncio.wait_for(asyncio.gather(*asked), 30)
        assert sent < 40


async def test_after_an_outage_a_request_has_all_its_attempts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage, "FIRST_PAUSE_S", 0.01)
    # an answer, an outage of three refusals and a failed probe, two more refusals, an answer
    statuses = {True: iter([200, 503, 503, 503, 503, 503, 200]), False: iter([503])}
    with serving(Stub(fails=lambda body, number: next(statuses[bool(body)], 200))) as stub:
        chat = OpenAIChat("n", stub.url, "m")
        for _ in range(2):
            assert (await chat.complete(ASK, Sampling())).text


async def test_a_server_that_goes_down_again_and_again_is_given_up_at_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outage, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setenv("DUBITO_OUTAGE_S", "0.3")
    settings.cache_clear()
    probes = cycle([503, 200])
    with serving(Stub(fails=lambda body, number: (503 if number else 200) if body else next(probes))) as stub:
        chat = OpenAIChat("n", stub.url, "m")
        await chat.complete(ASK, Sampling())
        with pytest.raises(ModelFault, match="HTTP 503"):
            await asyncio.wait_for(chat.complete(ASK, Sampling()), 10)


async def test_a_server_that_refuses_chats_alone_is_no_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage, "FIRST_PAUSE_S", 0.01)
    refuses = [False]
    with serving(Stub(fails=lambda body, number: 503 if refuses[0] and body else 200)) as stub:
        chat = OpenAIChat("n", stub.url, "m")
        await chat.complete(ASK, Sampling())
        refuses[0] = True
        for at_once in (1, 8):
            asked = [chat.complete(ASK, Sampling()) for _ in range(at_once)]
            found = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 10)
            assert all(isinstance(one, ModelFault) and "HTTP 503" in one.reason for one in found)


# ---------------------------------------------------------------- keys, loops


@pytest.mark.parametrize(
    ("env", "sent_key"),
    [
        ({"OPENAI_API_KEY": "sk-theirs"}, "none"),
        ({"OPENAI_API_KEY": "sk-theirs", "DUBITO_API_KEY": " sk-ours\n"}, "sk-ours"),
        ({"DUBITO_API_KEY": "sk-ours", "DUBITO_KEYS": "other.example"}, "none"),
        ({}, "none"),
    ],
)
async def test_whose_key_is_sent(
    httpserver: HTTPServer, vllm: OpenAIChat, monkeypatch: pytest.MonkeyPatch, env: dict[str, str], sent_key: str
) -> None:
    monkeypatch.delenv("DUBITO_API_KEY")
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    settings.cache_clear()
    serve(httpserver, reply(one("a")))
    await vllm.complete(ASK, Sampling())
    assert httpserver.log[0][0].headers["Authorization"] == f"Bearer {sent_key}"


@pytest.mark.parametrize("key", ["sk-\nsecret", "sk-geheimniß"])
async def test_a_key_that_cannot_be_one_is_not_shown(
    vllm: OpenAIChat, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("DUBITO_API_KEY", key)
    settings.cache_clear()
    with pytest.raises(UserFault, match="has characters that a key cannot have") as caught:
        await vllm.complete(ASK, Sampling())
    assert key not in str(caught.value)


def test_models_serve_one_event_loop_after_another_and_keep_no_closed_one() -> None:
    with serving(Stub()) as stub:  # its connections stay open, pytest-httpserver's do not
        chats = [Metered(OpenAIChat("n", stub.url, "m"), 2) for _ in range(4)]
        complaints: list[dict[str, Any]] = []
        loops: WeakSet[asyncio.AbstractEventLoop] = WeakSet()

        async def ask(chat: ChatModel) -> int:
            loops.add(asyncio.get_running_loop())
            asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
            await asyncio.gather(*(chat.complete(ASK, Sampling()) for _ in range(3)))
            await chat.complete(ASK, Sampling())
            for _ in range(2):  # the last loop's connections go, and then whatever their going has set off
                gc.collect()
                await asyncio.sleep(0.1)
            return len(loops)

        # none of them is asked a second time
        assert [asyncio.run(ask(chat)) for chat in chats] == [1, 1, 1, 1]
    assert not complaints


async def test_servers_share_their_connections_and_no_cookies() -> None:
    with HTTPServer() as first, HTTPServer() as second:
        for server in (first, second):
            server.expect_request(CHAT).respond_with_json(reply(one("a")), headers={"Set-Cookie": "who=me; Path=/"})
        chats = [OpenAIChat("n", server.url_for("/v1"), "m") for server in (first, second, first)]
        for chat in chats:
            await chat.complete(ASK, Sampling())
        assert len({id((await chat._server._client())._client) for chat in chats}) == 1
        assert not [request for server in (first, second) for request, _ in server.log if "Cookie" in request.headers]


async def test_nothing_blocks_the_event_loop(httpserver: HTTPServer, vllm: OpenAIChat) -> None:
    tokenizer(httpserver)
    scorer(httpserver, lambda *_: -1.0)
    models(httpserver, "m")
    httpserver.expect_request(CHAT).respond_with_json(reply(one("a", [token("a", a=0.6, b=0.4)])))
    with blockbuster_ctx():
        await vllm.complete(ASK, Sampling())
        await vllm.choose(ASK, ["a", "b"])
        await vllm.score(ASK, ["a"])
        assert await vllm.window() == 4096
