"""Hidden states read from a server's files: what is sent, what is read, what is refused, and that nothing is left."""

import asyncio
import fcntl
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blockbuster import blockbuster_ctx
from dubito.errors import CapabilityMissing, DubitoError, ModelFault, UserFault
from dubito.models import states_file, vllm_states
from dubito.models.interfaces import Message, Sampling, StatePlace, Tokens, Vectors
from dubito.models.openai_chat import OpenAIChat
from dubito.models.vllm_states import StatesServer
from dubito.resources.opening import open_chat_model
from dubito.settings import settings
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

ASK: list[Message] = [{"role": "user", "content": "Where is Paris?"}]
PROMPT = [50, 51]
WIDTH = 3


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch, fast_retries: None) -> Iterator[None]:
    monkeypatch.setenv("DUBITO_TIMEOUT_S", "2")
    settings.cache_clear()
    yield
    settings.cache_clear()


def state(ids: list[int], layer: int) -> list[float]:
    """What the fake model says of a sequence's last token: exact in every float format."""
    return [float(ids[-1]), float(len(ids)), float(layer)]


def bfloat16(values: np.ndarray) -> bytes:
    return (values.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()


def safetensors(ids: list[int], layers: tuple[int, ...], kind: str = "F32", *, whole: bool = False) -> bytes:
    """The file as the format's specification has it: header length, header, data."""
    ends = range(1, len(ids) + 1) if whole else [len(ids)]
    states = np.array([[state(ids[:end], layer) for layer in layers] for end in ends])
    data = bfloat16(states) if kind == "BF16" else states.astype({"F32": "<f4", "F16": "<f2"}[kind]).tobytes()
    tokens = np.array(ids, "<i8").tobytes()
    header = {
        "__metadata__": {"format": "pt"},
        "token_ids": {"dtype": "I64", "shape": [len(ids)], "data_offsets": [len(data), len(data) + len(tokens)]},
        "hidden_states": {"dtype": kind, "shape": list(states.shape), "data_offsets": [0, len(data)]},
    }
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data + tokens


@dataclass
class FakeStates:
    """Answers /states/v1/completions as a vLLM server does that was started for hidden states."""

    folder: Path
    url: str
    layers: tuple[int, ...] = (15,)
    told: bool = True
    kind: str = "F32"
    whole: bool = False
    shift: float = 0.0
    content: Callable[[list[int]], bytes | None] | None = None
    held: dict[int, int] = field(default_factory=dict)
    waited_for: set[str] = field(default_factory=set)
    sent: list[dict[str, Any]] = field(default_factory=list)
    hold: tuple[int, ...] = ()

    def answer(self, request: Request) -> Response:
        body = json.loads(request.data)
        self.sent.append(body)
        ids: list[int] = body["prompt"]
        path = self.folder / f"cmpl-{len(self.sent)}.safetensors"
        lock = os.open(f"{path}.lock", os.O_CREAT | os.O_WRONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        content = self.content(ids) if self.content else safetensors(ids, self.layers, self.kind, whole=self.whole)
        if content is not None:
            path.write_bytes(content)
        if ids[-1] in self.hold:
            self.held[ids[-1]] = lock
        else:
            os.close(lock)
        layers = {"hidden_states_layers": list(self.layers)} if self.told else {}
        rows = [None, *({str(t): {"logprob": logprob(t) + self.shift, "rank": 1}} for t in ids[1:])]
        reply = {
            "choices": [{"index": 0, "text": "x", "prompt_logprobs": rows if "prompt_logprobs" in body else None}],
            "usage": {"prompt_tokens": len(ids), "completion_tokens": 1},
            "kv_transfer_params": {"hidden_states_path": str(path), **layers},
        }
        return Response(json.dumps(reply), content_type="application/json")

    def release(self, *tokens: int) -> None:
        for token in tokens or tuple(self.held):
            os.close(self.held.pop(token))

    def left(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())


def logprob(token: int) -> float:
    return -token / 10


@pytest.fixture
def fake(httpserver: HTTPServer, tmp_path: Path) -> Iterator[FakeStates]:
    server = FakeStates(tmp_path, httpserver.url_for("/states/v1"))
    httpserver.expect_request("/states/v1/completions", method="POST").respond_with_handler(server.answer)
    yield server
    server.release()


@pytest.fixture
def reader(fake: FakeStates, monkeypatch: pytest.MonkeyPatch) -> StatesServer:
    def look(path: str, tokens: Sequence[int]) -> Vectors | None:
        found = states_file.last_states(path, tokens)
        if found is None:
            fake.waited_for.add(path)
        return found

    monkeypatch.setattr(vllm_states, "last_states", look)
    return StatesServer(fake.url)


def continues(httpserver: HTTPServer, *replies: list[int], **more: Any) -> None:
    """The plain server's samples: token ids, in the order in which they are given."""
    choices = [
        {
            "index": i,
            "message": {"role": "assistant", "content": "".join(f"<{t}>" for t in ids)},
            "logprobs": {"content": [{"token": f"<{t}>", "logprob": logprob(t), "top_logprobs": []} for t in ids]},
            "finish_reason": "length",
            "token_ids": ids,
        }
        for i, ids in enumerate(replies)
    ]
    usage = {"prompt_tokens": len(PROMPT), "completion_tokens": sum(map(len, replies))}
    body = {"choices": choices, "usage": usage, "prompt_token_ids": PROMPT, "kv_transfer_params": None, **more}
    httpserver.expect_oneshot_request("/v1/chat/completions", method="POST").respond_with_json(body)


@pytest.fixture
def chat(httpserver: HTTPServer, fake: FakeStates) -> OpenAIChat:
    """A pair of servers; what is sampled to compare them is there."""
    httpserver.expect_request("/v1/completions", method="POST").respond_with_json({"choices": [{"index": 0}]})
    continues(httpserver, [7, 8], [9, 8], [7, 9], [8])
    return pair(httpserver, fake)


def pair(httpserver: HTTPServer, fake: FakeStates, more: str = "") -> OpenAIChat:
    name = f"vllm:{httpserver.url_for('/v1')}#m&states={fake.url}{more}"
    model = open_chat_model(name)
    assert isinstance(model, OpenAIChat)
    assert model.name == name
    return model


# ---------------------------------------------------------------- reading


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
async def test_the_last_tokens_state_is_read_whatever_the_format(
    fake: FakeStates, reader: StatesServer, kind: str, whole: bool
) -> None:
    fake.kind, fake.whole = kind, whole
    sequences = [(5,), (5, 6), (7, 6, 5)]
    readings = await reader.read("m", sequences)
    assert [reading.state.tolist() for reading in readings] == [[5, 1, 15], [6, 2, 15], [5, 3, 15]]
    assert {reading.state.dtype for reading in readings} == {np.dtype(np.float32)}
    assert {reading.layer for reading in readings} == {15}
    assert [reading.tokens for reading in readings] == [Tokens(1, 1), Tokens(2, 1), Tokens(3, 1)]
    assert fake.left() == []
    expected = [{"model": "m", "prompt": list(ids), "max_tokens": 1, "temperature": 0} for ids in sequences]
    assert sorted(fake.sent, key=lambda body: len(body["prompt"])) == expected


async def test_a_file_is_read_when_the_server_has_let_go_of_it(fake: FakeStates, reader: StatesServer) -> None:
    fake.hold, fake.content = (6,), lambda ids: safetensors(ids, (15,))[:40]
    reading = asyncio.create_task(reader.read("m", [(5, 6)]))
    await waits(fake, 1)
    assert not reading.done()
    (path,) = fake.folder.glob("*.safetensors")
    path.write_bytes(safetensors([5, 6], (15,)))
    fake.release()
    assert (await reading)[0].state.tolist() == [6, 2, 15]
    assert fake.left() == []


async def test_a_file_that_is_not_finished_is_a_model_fault(
    fake: FakeStates, reader: StatesServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states_file, "_PATIENCE_S", 0.0)
    fake.hold = (6,)
    with pytest.raises(ModelFault, match=r"cmpl-1\.safetensors was not written within 2 s"):
        await reader.read("m", [(5, 6)])
    assert fake.left() == []


async def test_a_caller_that_gives_up_leaves_no_file(fake: FakeStates, reader: StatesServer) -> None:
    fake.hold = (5, 6, 7)
    reading = asyncio.create_task(reader.read("m", [(5,), (6,), (7,)]))
    await waits(fake, 3)
    reading.cancel()
    for delay, token in ((0.1, 6), (0.4, 5), (0.5, 7)):  # the server finishes afterwards
        asyncio.get_running_loop().call_later(delay, fake.release, token)
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert fake.left() == []


async def test_what_fails_takes_the_others_files_along(fake: FakeStates, reader: StatesServer) -> None:
    fake.content = lambda ids: b"" if ids == [6] else safetensors(ids, (15,))
    fake.hold = (5, 6, 7)
    reading = asyncio.create_task(reader.read("m", [(5,), (6,), (7,)]))
    await waits(fake, 3)
    fake.release(6)
    asyncio.get_running_loop().call_later(0.2, fake.release)  # the server finishes the others afterwards
    with pytest.raises(ModelFault, match=r"malformed .*cmpl-\d.safetensors is not a safetensors file"):
        await reading
    assert fake.left() == []


async def waits(fake: FakeStates, files: int) -> None:
    """Until the reader waits for so many files."""
    while len(fake.waited_for) < files:  # noqa: ASYNC110 - the server has a thread of its own
        await asyncio.sleep(0.01)


def broken(**header: Any) -> Callable[[list[int]], bytes]:
    def content(ids: list[int]) -> bytes:
        good = safetensors(ids, (15,))
        size = int.from_bytes(good[:8], "little")
        text = json.dumps({**json.loads(good[8 : 8 + size]), **header}).encode()
        return len(text).to_bytes(8, "little") + text + good[8 + size :]

    return content


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (lambda ids: safetensors([*ids, 1], (15,)), "holds 3 other tokens than the 2 that were sent"),
        (lambda _: None, "nothing was written to .*; is its folder full"),
        (lambda _: b"\xff" * 100, "is not a safetensors file"),
        (lambda _: (5).to_bytes(8, "little") + b"{oops", "malformed"),
        (lambda ids: safetensors(ids, (15,))[:-20], "malformed"),
        (broken(hidden_states={"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}), r"states of shape \[3\]"),
        (broken(hidden_states={"dtype": "F8", "shape": [1, 1, 3], "data_offsets": [0, 3]}), "malformed"),
    ],
)
async def test_a_file_that_cannot_be_right_is_a_model_fault_and_goes(
    fake: FakeStates, reader: StatesServer, content: Callable[[list[int]], bytes | None], said: str
) -> None:
    fake.content = content
    with pytest.raises(ModelFault, match=said):
        await reader.read("m", [(5, 6)])
    assert fake.left() == []


# ---------------------------------------------------------------- what cannot be read


async def read_from(httpserver: HTTPServer, params: Any) -> DubitoError:
    body = {"choices": [], "usage": {}, "kv_transfer_params": params}
    httpserver.expect_request("/other/v1/completions").respond_with_json(body)
    with pytest.raises(DubitoError) as caught:
        await StatesServer(httpserver.url_for("/other/v1")).read("m", [(5,)])
    return caught.value


async def test_a_server_without_hidden_states_is_the_users_fault(httpserver: HTTPServer) -> None:
    fault = await read_from(httpserver, None)
    assert isinstance(fault, UserFault)
    assert "gives no hidden states: start it by `dubito serve MODEL --hidden-states`" in str(fault)


async def test_a_file_on_another_machine_is_the_users_fault(httpserver: HTTPServer, tmp_path: Path) -> None:
    path = tmp_path / "there.safetensors"
    fault = await read_from(httpserver, {"hidden_states_path": str(path), "hidden_states_layers": [1]})
    assert isinstance(fault, UserFault)
    assert f"named {path}, which is not on this machine" in str(fault)


async def test_a_file_without_a_lock_is_none_of_the_servers_and_stays(httpserver: HTTPServer, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"weights")
    fault = await read_from(httpserver, {"hidden_states_path": str(path), "hidden_states_layers": [1]})
    assert isinstance(fault, UserFault)
    assert "use_synchronization_lock" in str(fault)
    assert path.read_bytes() == b"weights"


@pytest.mark.parametrize("path", ["model.safetensors", "/etc/hosts", 5])
async def test_a_path_that_is_none_is_malformed(httpserver: HTTPServer, path: object) -> None:
    fault = await read_from(httpserver, {"hidden_states_path": path, "hidden_states_layers": [1]})
    assert isinstance(fault, ModelFault)
    assert "the reply is malformed" in str(fault)


async def test_a_file_of_another_user_is_the_users_fault(
    fake: FakeStates, reader: StatesServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(states_file, "_read", denied)
        with pytest.raises(UserFault, match=r"which this process may not read: run both as the same user\."):
            await reader.read("m", [(5,)])
    monkeypatch.setattr(Path, "unlink", denied)
    with pytest.raises(UserFault, match="which this process may not remove: run both as the same user, or such files"):
        await reader.read("m", [(5,)])


# ---------------------------------------------------------------- layers


async def test_a_server_that_does_not_tell_its_layer_takes_it_from_the_name(fake: FakeStates) -> None:
    fake.told = False
    with pytest.raises(UserFault, match=r"does not name the layer .* add &layer=N to the model's name"):
        await StatesServer(fake.url).read("m", [(5,)])
    (reading,) = await StatesServer(fake.url, 9).read("m", [(5,)])
    assert reading.layer == 9
    fake.layers = (3, 9)
    with pytest.raises(UserFault, match="gives the states of 2 layers and does not say of which"):
        await StatesServer(fake.url, 9).read("m", [(5,)])
    assert fake.left() == []


async def test_of_several_layers_the_name_says_which(fake: FakeStates) -> None:
    fake.layers = (3, 9, 15)
    (reading,) = await StatesServer(fake.url, 9).read("m", [(5,)])
    assert (reading.layer, reading.state.tolist()) == (9, [5, 1, 9])
    with pytest.raises(UserFault, match=r"of layer 3, 9, 15: name one \(&layer=N\)"):
        await StatesServer(fake.url).read("m", [(5,)])
    with pytest.raises(UserFault, match=r"of layer 3, 9, 15: not of 4 as the model's name says"):
        await StatesServer(fake.url, 4).read("m", [(5,)])
    assert fake.left() == []


async def test_a_server_that_is_started_anew_for_another_layer_is_noticed(
    fake: FakeStates, reader: StatesServer
) -> None:
    await reader.check("m", 15)
    fake.layers = (20,)
    with pytest.raises(UserFault, match="of layer 20, not of layer 15"):
        await reader.read("m", [(5,)], 15)
    fake.content = lambda ids: safetensors(ids, (20, 21) if ids == [6] else (20,))
    assert {reading.layer for reading in await reader.read("m", [(5,), (6,)])} == {20}


# ---------------------------------------------------------------- introspect


async def test_k_samples_are_one_request_and_each_distinct_one_is_read_behind_its_prompt(
    httpserver: HTTPServer, fake: FakeStates, chat: OpenAIChat
) -> None:
    continues(httpserver, [4, 5], [6], [4, 5], [6, 7, 8])
    sampling = Sampling(n=4, temperature=0.7, top_p=0.9, top_k=50, max_tokens=9, stop=("\n",), seed=5)
    assert "hidden_states" in chat.capabilities
    told = await chat.introspect(ASK, sampling, StatePlace(15))

    first, second = (json.loads(r.data) for r, _ in httpserver.log if r.path == "/v1/chat/completions")
    assert (first["n"], first["temperature"]) == (4, 1.0)  # what compares the servers
    assert second == {
        "model": "m",
        "messages": ASK,
        "n": 4,
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 50,
        "repetition_penalty": 1.0,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "max_tokens": 9,
        "stop": ["\n"],
        "seed": 5,
        "logprobs": True,
        "return_token_ids": True,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    read = [body["prompt"] for body in fake.sent if "prompt_logprobs" not in body]
    assert read[0] == [0]  # asked before anything is sampled
    assert sorted(read[1:]) == [[50, 51, 4, 5], [50, 51, 6], [50, 51, 6, 7, 8]]
    assert told.states.dtype == np.float32
    assert told.states.tolist() == [[5, 4, 15], [6, 3, 15], [5, 4, 15], [8, 5, 15]]
    assert told.layer == 15
    assert told.energies is None
    assert [completion.text for completion in told.reply.completions] == ["<4><5>", "<6>", "<4><5>", "<6><7><8>"]
    assert [token.logprob for token in told.reply.completions[3].tokens] == pytest.approx([-0.6, -0.7, -0.8])
    assert told.tokens == Tokens(2 + (4 + 3 + 5), 8 + 3)
    assert fake.left() == []


async def test_greedy_continuations_are_one(httpserver: HTTPServer, fake: FakeStates, chat: OpenAIChat) -> None:
    continues(httpserver, [4, 5])
    continues(httpserver, [6])
    told = await chat.introspect(ASK, Sampling(n=3))
    assert told.states.tolist() == [[5, 4, 15]] * 3
    assert [completion.text for completion in told.reply.completions] == ["<4><5>"] * 3
    assert told.tokens == Tokens(2 + 4, 2 + 1)
    asked = len(fake.sent)
    await chat.introspect(ASK, Sampling())
    assert len(fake.sent) == asked + 1, "the servers are compared once"
    assert "n" not in json.loads(httpserver.log[-2][0].data)


async def test_another_layer_is_refused_before_anything_is_sampled(
    httpserver: HTTPServer, fake: FakeStates, chat: OpenAIChat
) -> None:
    with pytest.raises(UserFault, match=r"gives the hidden states of layer 15, not of layer 9: start it by "):
        await chat.introspect(ASK, Sampling(), StatePlace(9))
    assert not [request for request, _ in httpserver.log if request.path.startswith("/v1")]
    assert fake.left() == []


async def test_two_models_are_not_taken_for_one(httpserver: HTTPServer, fake: FakeStates, chat: OpenAIChat) -> None:
    fake.shift = -0.31
    with pytest.raises(UserFault, match=r"do not serve the same model: .* differ by 0\.3 nats"):
        await chat.introspect(ASK, Sampling(n=2, temperature=1.0))
    fake.shift = 0.29  # what rounding may do
    continues(httpserver, [7, 8], [9, 8], [7, 9], [8])
    continues(httpserver, [4])
    assert (await chat.introspect(ASK, Sampling())).states.shape == (1, WIDTH)
    assert fake.left() == []


async def test_a_server_for_hidden_states_is_not_sampled_from(fake: FakeStates, httpserver: HTTPServer) -> None:
    chat = open_chat_model(f"vllm:{fake.url}#m&states={fake.url}")
    with pytest.raises(UserFault, match="was started for hidden states, and vLLM samples wrongly on such a server"):
        await chat.introspect(ASK, Sampling(n=2, temperature=1.0))
    assert not [request for request, _ in httpserver.log if "chat" in request.path]
    assert fake.left() == []


async def test_a_server_that_tells_no_token_ids_cannot_be_introspected(
    httpserver: HTTPServer, fake: FakeStates
) -> None:
    httpserver.expect_request("/v1/completions").respond_with_json({"choices": [{"index": 0}]})
    continues(httpserver, [4], prompt_token_ids=None)
    with pytest.raises(CapabilityMissing, match="returns no token ids, which needs a newer vLLM"):
        await pair(httpserver, fake).introspect(ASK, Sampling())
    assert fake.left() == []


async def test_a_model_without_such_a_server_says_how_to_start_one(httpserver: HTTPServer) -> None:
    plain = open_chat_model(f"vllm:{httpserver.url_for('/v1')}#m")
    assert "hidden_states" not in plain.capabilities
    with pytest.raises(
        CapabilityMissing, match=r"`dubito serve MODEL --hidden-states`, which prints .* \(vllm:URL#model&states=URL\)"
    ):
        await plain.introspect(ASK, Sampling())


async def test_nothing_blocks_the_event_loop(httpserver: HTTPServer, fake: FakeStates, chat: OpenAIChat) -> None:
    continues(httpserver, [4], [5])
    with blockbuster_ctx():
        assert (await chat.introspect(ASK, Sampling(n=2, temperature=1.0))).states.shape == (2, WIDTH)


# ---------------------------------------------------------------- names


async def test_the_name_says_where_and_of_which_layer(httpserver: HTTPServer, fake: FakeStates) -> None:
    fake.told = False
    httpserver.expect_request("/v1/models").respond_with_json({"data": [{"id": "only"}]})
    httpserver.expect_request("/v1/completions").respond_with_json({"choices": [{"index": 0}]})
    continues(httpserver, [7], [8], [9], [7])
    continues(httpserver, [4])
    chat = open_chat_model(f"vllm:{httpserver.url_for('/v1')}#&states={fake.url}&layer=12")
    assert (await chat.introspect(ASK, Sampling())).layer == 12
    assert {body["model"] for body in fake.sent} == {"only"}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("vllm:http://h/v1#m&layer=3", r"write &states=URL, and &layer=N behind it"),
        ("vllm:http://h/v1#m&states=", r"write &states=URL, and &layer=N behind it"),
        ("vllm:http://h/v1#m&states=http://h:1/v1&x=1", r"write &states=URL, and &layer=N behind it"),
        ("openai:http://h/v1#m&states=http://h:1/v1", r"write &states=URL, and &layer=N behind it"),
        ("vllm:http://h/v1#m&states=http://h:1/v1&layer=0", "the layer must be a number from 1, not '0'"),
        ("vllm:http://h/v1#m&states=http://h:1/v1&layer=mid", "the layer must be a number from 1, not 'mid'"),
        ("vllm:http://h/v1#m&states=h:1", "'h:1' is not the URL of a server"),
    ],
)
def test_a_name_that_cannot_be_read_is_refused(name: str, said: str) -> None:
    with pytest.raises(UserFault, match=said):
        open_chat_model(name)
