"""A chat model in this process, on `transformers`: exact log-probabilities, seeds and scores.

One thread does all of a model's work (see `batching`); calls from all event loops share one batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from ..concurrency import OfProcess
from ..errors import UserFault, extra_command, install_command
from .answer_stream import text_listener
from .batching import Worker
from .chat_text import ChatText
from .generation import Request, check_options, check_sampling, choice, scores
from .interfaces import MIDDLE_LAYER, Capability, Choice, Introspection, Message, Reply, Sampling, Scores, StatePlace
from .local_weights import first_line, gguf_read_once, quiet_loading, torch_faults

_missing = ""
try:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from .decoding import Decoder
except ImportError as absent:
    _missing = str(absent)

Answer = TypeVar("Answer")


class TransformersChat:
    """A `ChatModel` from a local folder, a hub name or a .gguf file.

    - `complete`: with log-probabilities, the tokens are those of the text, followed by the end-of-turn token with text
      "" if the model ended the reply. Of a token that a stop string cuts in two, the kept part. `Tokens.completion`
      counts all generated tokens.
    - `choose`: each option is scored as the whole reply, end-of-turn token included; the scores are normalised.
    - `score`: the tokens of the continuations. All tokens that `choose` and `score` read count as prompt tokens.
    - `introspect`: the same samples as `complete` for the same seed. The states are transformers'
      `hidden_states[layer]` as float32; for the last layer that is after the final norm. With states="feed_forward"
      they are the outputs of the layer's feed-forward block.

    Greedy continuations are equal: one is generated and counted. The beginning that a prompt shares with a recent one
    is not read again, but is counted.

    Equal seeds give equal samples in any batch, because every sample has its own random source. Float noise that
    depends on the batch (~1e-6 in float32, ~1e-2 in bfloat16) can change a near tie. Text inside a message never
    becomes a control token of the chat template.

    A forked child loads the weights anew.
    """

    def __init__(self, name: str, source: str, *, dtype: str | None = None, rows: int | None = None) -> None:
        """dtype: None for float32 on a CPU and bfloat16 on CUDA; rows: the most samples that run together."""
        self.name = name
        self._worker = OfProcess(lambda: Worker(partial(_open, name, source, dtype, rows)))
        self._decoder: Decoder | None = None

    @property
    def capabilities(self) -> frozenset[Capability]:
        """All capabilities."""
        return frozenset(
            {"logprobs", "option_probabilities", "score", "seed", "hidden_states", "inner_states", "energy"}
        )

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        """See `ChatModel.complete`."""
        check_sampling(sampling)
        with torch_faults(self.name):
            request = Request(tuple(messages), sampling, listener=text_listener(sampling))
            reply: Reply = await self._worker.get().generate(request)
        return reply

    async def choose(self, messages: Sequence[Message], options: Sequence[str]) -> Choice:
        """See `ChatModel.choose`."""
        check_options(options)

        def work(decoder: Decoder) -> Choice:
            prompt = decoder.text.prompt(messages, thinking=False)[0]
            replies = [[*decoder.text.plain(option), *decoder.text.end_of_turn] for option in options]
            return choice(options, prompt, replies, decoder.score(prompt, replies))

        return await self._run(work)

    async def score(self, messages: Sequence[Message], continuations: Sequence[str]) -> Scores:
        """See `ChatModel.score`."""

        def work(decoder: Decoder) -> Scores:
            prompt = decoder.text.prompt(messages, thinking=False)[0]
            replies = [decoder.text.plain(text) for text in continuations]
            return scores(decoder.text, prompt, replies, decoder.score(prompt, replies))

        return await self._run(work)

    async def introspect(
        self, messages: Sequence[Message], sampling: Sampling, place: StatePlace = MIDDLE_LAYER
    ) -> Introspection:
        """See `ChatModel.introspect`."""
        check_sampling(sampling)
        decoder = await self._opened()
        layer = decoder.states.layer(place.layer, place.states)
        ending = decoder.text.eos if place.at == "eos" else None
        with torch_faults(self.name):
            introspection: Introspection = await self._worker.get().generate(
                Request(tuple(messages), replace(sampling, logprobs=True), layer, place.states, ending)
            )
        return introspection

    async def window(self) -> int | None:
        """See `ChatModel.window`."""
        return (await self._opened()).window

    async def count(self, texts: Sequence[str]) -> list[int]:
        """See `ChatModel.count`: exact, special tokens not counted."""
        text = (await self._opened()).text
        return await asyncio.to_thread(lambda: [len(text.plain(each)) for each in texts])

    async def _opened(self) -> Decoder:
        if self._decoder is None:
            self._decoder = await self._run(lambda decoder: decoder)
        return self._decoder

    async def _run(self, work: Callable[[Decoder], Answer]) -> Answer:
        with torch_faults(self.name):
            return await self._worker.get().run(work)


def _open(name: str, source: str, dtype: str | None, most_rows: int | None) -> Decoder:
    if _missing:
        reason = _missing.partition("\n")[0].rstrip(".")
        raise UserFault(f"{name} needs torch and transformers ({reason}): run `{extra_command('local')}`.")
    folder, gguf = _located(name, source)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        with quiet_loading(), gguf_read_once() if gguf else nullcontext():
            config = AutoConfig.from_pretrained(folder, **gguf)
            tokenizer = AutoTokenizer.from_pretrained(folder, **gguf)
            kind = getattr(torch, dtype or ("bfloat16" if device == "cuda" else "float32"))
            safe = {} if gguf else {"use_safetensors": True}  # nothing is unpickled
            model: Any = AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=kind, **gguf, **safe)
            model = model.to(device).eval()
    except torch.OutOfMemoryError:
        raise
    except Exception as fault:
        raise UserFault(
            f"{name} cannot be loaded from {source} ({first_line(fault)}): "
            "give the path of a local model folder or .gguf file, or the name of a model on a reachable hub."
        ) from fault
    if getattr(model, "_is_stateful", False):
        raise UserFault(
            f"{name} has a state that is not a cache of keys and values: serve it with vLLM (vllm:URL#model)."
        )
    text = ChatText(name, tokenizer, model.generation_config, model.config.get_text_config())
    return Decoder(name, model, text, most_rows)


def _located(name: str, source: str) -> tuple[str, dict[str, str]]:
    """The folder or hub name that `from_pretrained` takes, and its argument for a GGUF."""
    path = Path(source).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise UserFault(f"{name} cannot be loaded: there is no file {path}.")
        if absent := [package for package in ("gguf", "accelerate") if find_spec(package) is None]:
            raise UserFault(
                f"{name} is a GGUF file, which needs more packages: run `{install_command(' '.join(absent))}`."
            )
        return str(path.parent), {"gguf_file": path.name}
    if path.is_dir():
        return str(path), {}
    if path.is_absolute() or source.startswith((".", "~")):
        raise UserFault(f"{name} cannot be loaded: there is no folder {path}.")
    return source, {}
