"""A model that is asked the same once: what counts as the same, and that what comes back is what was said."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from dubito.errors import ModelFault
from dubito.models.interfaces import (
    MIDDLE_LAYER,
    Choice,
    Completion,
    Introspection,
    Message,
    Reply,
    Sampling,
    Scores,
    StatePlace,
    Token,
    Tokens,
)
from dubito.resources.call_cache import CallMemory, RememberingChat, counting
from dubito.tests.scripted import ScriptedChat

HI: list[Message] = [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}]
SAMPLED = Sampling(n=2, temperature=1.0, logprobs=True)


@dataclass
class Numbered(ScriptedChat):
    """Says another thing each time, in every form; `seeds` are those it was given."""

    seeds: list[int | None] = field(default_factory=list)

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        self.seeds.append(sampling.seed)
        await self._begin("complete", messages)
        tokens = (Token(f"{len(self.calls)}é", -0.1 / 3), Token("", float("-inf")))
        texts = [Completion(f"{len(self.calls)}.{i}", "length", tokens) for i in range(sampling.n)]
        return Reply(tuple(texts), Tokens(7, 2 * sampling.n))

    async def choose(self, messages: Sequence[Message], options: Sequence[str]) -> Choice:
        await self._begin("choose", messages)
        return Choice(dict.fromkeys(options, 1 / len(options)), Tokens(5, len(self.calls)))

    async def score(self, messages: Sequence[Message], continuations: Sequence[str]) -> Scores:
        await self._begin("score", messages)
        return Scores(tuple((Token(text, -1 / 3),) for text in continuations), Tokens(3, 0))

    async def introspect(
        self, messages: Sequence[Message], sampling: Sampling, place: StatePlace = MIDDLE_LAYER
    ) -> Introspection:
        reply = await self.complete(messages, sampling)
        states = np.arange(6, dtype=np.float32).reshape(2, 3) / np.float32(7) + len(self.calls)
        return Introspection(reply, states, place.layer or 4, (1 / 3, 2.0))


@pytest.fixture
def memory(tmp_path: Path) -> CallMemory:
    return CallMemory(tmp_path / "calls.sqlite")


async def test_every_verb_gives_back_what_was_said_once(memory: CallMemory, tmp_path: Path):
    model = Numbered()
    first = RememberingChat(model, memory)
    said = [
        await first.complete(HI, SAMPLED),
        await first.choose(HI, ["b", "a"]),
        await first.score(HI, ["x", "y"]),
        await first.introspect(HI, SAMPLED, StatePlace(3)),
    ]
    asked = len(model.calls)
    other = RememberingChat(model, CallMemory(tmp_path / "calls.sqlite"))  # another process would open it anew
    again = [await other.complete(HI, SAMPLED), await other.choose(HI, ["b", "a"]), await other.score(HI, ["x", "y"])]
    found = await other.introspect(HI, SAMPLED, StatePlace(3))
    assert len(model.calls) == asked
    assert again == said[:3]
    assert isinstance(again[1], Choice)
    assert list(again[1].probabilities) == ["b", "a"]
    before = said[3]
    assert isinstance(before, Introspection)
    assert found.states.dtype == np.float32
    np.testing.assert_array_equal(found.states, before.states)
    assert (found.reply, found.layer, found.energies) == (before.reply, before.layer, before.energies)


@pytest.mark.parametrize(
    "change",
    [
        {"sampling": replace(SAMPLED, temperature=0.5)},
        {"sampling": replace(SAMPLED, n=3)},
        {"sampling": replace(SAMPLED, max_tokens=7)},
        {"sampling": replace(SAMPLED, stop=("x",))},
        {"sampling": replace(SAMPLED, seed=1)},
        {"sampling": replace(SAMPLED, pattern="yes|no")},
        {"messages": [{"role": "user", "content": "hi"}]},
        {"messages": [*HI, {"role": "assistant", "content": ""}]},
        {"name": "openai:http://h/v1#scripted"},
        {"seed": 1},
    ],
    ids=str,
)
async def test_whatever_differs_is_another_request(memory: CallMemory, change):
    model = Numbered(name="vllm:http://h/v1#scripted")
    await RememberingChat(model, memory).complete(HI, SAMPLED)
    model.name = change.get("name", model.name)
    other = RememberingChat(model, memory, change.get("seed", 0))
    await other.complete(change.get("messages", HI), change.get("sampling", SAMPLED))
    assert len(model.calls) == 2


async def test_the_key_of_a_request_without_a_pattern_is_older_than_patterns(
    memory: CallMemory, monkeypatch: pytest.MonkeyPatch
):
    keys: list[bytes] = []
    monkeypatch.setattr(memory, "read", lambda key, unpack: keys.append(key))
    await RememberingChat(Numbered(), memory).complete(HI, SAMPLED)
    assert [key.hex() for key in keys] == ["46ceb244b9e274220789291f5e3da6dceaa24c4809283327f553622c4a7ec40a"]


async def test_a_model_on_a_server_is_the_same_wherever_the_server_is(memory: CallMemory):
    model = Numbered(name="vllm:http://one:8000/v1#m")
    await RememberingChat(model, memory).complete(HI, SAMPLED)
    model.name = "vllm:http://two:9000/v1#m&states=http://two:9001/v1"
    await RememberingChat(model, memory).complete(HI, SAMPLED)
    assert len(model.calls) == 1


STATES = "vllm:http://one:8000/v1#m&states="


@pytest.mark.parametrize(
    ("name", "is_another"),
    [
        (f"{STATES}http://one:8001/v1", False),
        ("vllm:http://two:8000/v1#m&states=http://one:8001/v1", False),
        (f"{STATES}http://one:9999/v1", True),  # it may have been started for another layer
        (f"{STATES}http://one:8001/v1&layer=4", True),
    ],
)
async def test_hidden_states_of_another_place_are_another_request(memory: CallMemory, name: str, is_another: bool):
    model = Numbered(name=f"{STATES}http://one:8001/v1")
    await RememberingChat(model, memory).introspect(HI, SAMPLED)
    model.name = name
    await RememberingChat(model, memory).introspect(HI, SAMPLED)
    assert len(model.calls) == 1 + is_another


async def test_hidden_states_of_a_named_layer_are_the_same_wherever_their_server_is(memory: CallMemory):
    model = Numbered()
    for name in (f"{STATES}http://one:8001/v1&layer=4", "vllm:http://b:1/v1#m&layer=4&states=http://b:2/v1"):
        model.name = name
        await RememberingChat(model, memory).introspect(HI, SAMPLED)
    assert len(model.calls) == 1
    model.name = f"{STATES}http://one:8001/v1&layer=20"
    await RememberingChat(model, memory).introspect(HI, SAMPLED)
    assert len(model.calls) == 2


async def test_replies_do_not_depend_on_the_layer_of_hidden_states(memory: CallMemory):
    model = Numbered()
    for layer in (4, 20):
        model.name = f"{STATES}http://one:8001/v1&layer={layer}"
        await RememberingChat(model, memory).complete(HI, SAMPLED)
    assert len(model.calls) == 1


async def test_an_engine_of_another_dtype_is_another_model(memory: CallMemory):
    model = Numbered()
    for option, calls in (("dtype=float32", 1), ("dtype=bfloat16", 2), ("max_model_len=512&dtype=float32", 2)):
        model.name = f"engine:m?{option}"
        await RememberingChat(model, memory).complete(HI, SAMPLED)
        assert len(model.calls) == calls


async def test_within_one_question_an_equal_request_is_another_one(memory: CallMemory):
    model = Numbered()
    chat = RememberingChat(model, memory)
    with counting() as first:
        texts = [(await chat.complete(HI, SAMPLED)).text for _ in range(3)]
    with counting() as second:
        again = [(await chat.complete(HI, SAMPLED)).text for _ in range(3)]
    assert len(set(texts)) == 3
    assert again == texts
    assert (first.calls, second.calls) == (0, 3)
    assert second.seconds >= 3 * model.seconds
    assert len(set(model.seeds)) == 3


async def test_sampling_gets_a_seed_that_depends_on_the_request_alone(tmp_path: Path):
    seeds = []
    for run in range(2):
        model = Numbered()
        chat = RememberingChat(model, CallMemory(tmp_path / f"{run}.sqlite"), seed=5)
        await chat.complete(HI, replace(SAMPLED, n=1 + run))
        await chat.complete(HI, replace(SAMPLED, n=2 - run))
        await chat.complete(HI, replace(SAMPLED, seed=11))
        await chat.complete(HI, Sampling())
        seeds.append(model.seeds)
    assert seeds[0][:2] == seeds[1][1::-1]
    assert all(seed is not None and 0 <= seed < 2**31 for seed in seeds[0][:2])
    assert seeds[0][2:] == [11, None]


async def test_a_fault_is_not_remembered(memory: CallMemory):
    model = Numbered(faults=[ModelFault("m", "busy")])
    chat = RememberingChat(model, memory)
    with pytest.raises(ModelFault):
        await chat.complete(HI, SAMPLED)
    assert (await chat.complete(HI, SAMPLED)).text == "2.0"


async def test_a_file_that_cannot_be_used_costs_the_memory_and_not_the_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    (tmp_path / "calls.sqlite").mkdir()
    model = Numbered()
    chat = RememberingChat(model, CallMemory(tmp_path / "calls.sqlite"))
    assert [(await chat.complete(HI, SAMPLED)).text for _ in range(2)] == ["1.0", "2.0"]
    assert len(caplog.records) == 1
