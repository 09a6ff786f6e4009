"""A chat model that runs in this process on `transformers`: exact log-probabilities, seeds and scores.

All of a model's work is done by one thread (see `batching`); its calls share one batch, whatever loop they come from.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from ..errors import DubitoError, ModelFault, UserFault
from .batching import Worker
from .chat_text import ChatText, first_line
from .generation import Request, check_sampling
from .interfaces import Capability, Choice, Introspection, Message, Reply, Sampling, Scores, Token, Tokens

_missing = ""
try:
    import huggingface_hub
    import torch
    import transformers
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from .decoding import Decoder
except ImportError as absent:
    _missing = str(absent)

Answer = TypeVar("Answer")


class TransformersChat:
    """A `ChatModel` from a local folder, a hub name or a .gguf file.

    - `complete`: where log-probabilities were asked for, a reply that the model ended itself has its end-of-turn token
      as the last one, with text "". Otherwise the tokens are those of the text: what a stop string cuts off is gone,
      and a token that it cuts in two has the text that was kept. `Tokens.completion` counts all that was generated.
    - `choose`: each option is scored as the whole reply, end-of-turn token included, and the scores are normalised.
    - `score`: the tokens of the continuations alone. What `choose` and `score` read are all prompt tokens.
    - `introspect`: `complete`'s samples; equal seeds give both the same. The states are those of transformers'
      `hidden_states[layer]`, so that the last layer's are after the final norm, as float32 whatever the weights are.

    Greedy continuations are all equal: one is generated, and counted once. What a prompt has in common with one that
    was read lately is not read again, whichever verb read it, and counted all the same.

    Equal seeds give equal samples whatever runs beside them, as every sample has a random source of its own. (Numbers
    from a batch of another make-up, or after a prompt that was read in parts, differ by float noise, which can tip a
    close draw: ~1e-6 in float32, ~1e-2 in bfloat16.) No text inside a message becomes a control token of the model's
    chat template.
    """

    def __init__(self, name: str, source: str, *, dtype: str | None = None, rows: int | None = None) -> None:
        """dtype: None for float32 on a CPU and bfloat16 on CUDA; rows: the most samples that run together."""
        self.name = name
        self._worker = Worker(partial(_open, name, source, dtype, rows))
        self._decoder: Decoder | None = None

    @property
    def capabilities(self) -> frozenset[Capability]:
        """All there are."""
        return frozenset({"logprobs", "option_probabilities", "score", "seed", "hidden_states", "energy"})

    async def open(self) -> None:
        """Load the weights now rather than at the first call; `UserFault` if that cannot be done."""
        await self._opened()

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        """See `ChatModel.complete`."""
        check_sampling(sampling)
        with self._naming_faults():
            reply: Reply = await self._worker.generate(Request(tuple(messages), sampling))
        return reply

    async def choose(self, messages: Sequence[Message], options: Sequence[str]) -> Choice:
        """See `ChatModel.choose`."""
        if len(options) < 2 or len(set(options)) < len(options):
            raise UserFault(f"A choice needs at least two options, all distinct, not {list(options)}.")

        def work(decoder: Decoder) -> Choice:
            prompt = decoder.text.prompt(messages, thinking=False)[0]
            replies = [[*decoder.text.plain(option), *decoder.text.end_of_turn] for option in options]
            totals = [sum(logprobs) for logprobs in decoder.score(prompt, replies)]
            shares = torch.tensor(totals, dtype=torch.float64).softmax(-1).tolist()
            return Choice(dict(zip(options, shares, strict=True)), _tokens_read(prompt, replies))

        return await self._run(work)

    async def score(self, messages: Sequence[Message], continuations: Sequence[str]) -> Scores:
        """See `ChatModel.score`."""

        def work(decoder: Decoder) -> Scores:
            prompt = decoder.text.prompt(messages, thinking=False)[0]
            replies = [decoder.text.plain(text) for text in continuations]
            scored = tuple(
                tuple(map(Token, decoder.text.pieces(reply), logprobs))
                for reply, logprobs in zip(replies, decoder.score(prompt, replies), strict=True)
            )
            return Scores(scored, _tokens_read(prompt, replies))

        return await self._run(work)

    async def introspect(
        self, messages: Sequence[Message], sampling: Sampling, layer: int | None = None
    ) -> Introspection:
        """See `ChatModel.introspect`."""
        check_sampling(sampling)
        at = (await self._opened()).states.layer(layer)
        with self._naming_faults():
            introspection: Introspection = await self._worker.generate(
                Request(tuple(messages), replace(sampling, logprobs=True), at)
            )
        return introspection

    async def window(self) -> int | None:
        """See `ChatModel.window`."""
        return (await self._opened()).window

    async def count(self, texts: Sequence[str]) -> list[int]:
        """See `ChatModel.count`: exact, special tokens not counted."""
        text = (await self._opened()).text
        return await asyncio.to_thread(lambda: [len(text.plain(one)) for one in texts])

    async def _opened(self) -> Decoder:
        if self._decoder is None:
            self._decoder = await self._run(lambda decoder: decoder)
        return self._decoder

    async def _run(self, work: Callable[[Decoder], Answer]) -> Answer:
        with self._naming_faults():
            return await self._worker.run(work)

    @contextmanager
    def _naming_faults(self) -> Iterator[None]:
        try:
            yield
        except DubitoError:  # a RuntimeError too, and says already whose fault it is
            raise
        except RuntimeError as fault:  # out of memory, a device that failed
            raise ModelFault(self.name, f"torch failed: {first_line(fault)}") from fault


def _tokens_read(prompt: list[int], replies: Sequence[list[int]]) -> Tokens:
    return Tokens(prompt=len(prompt) + sum(map(len, replies)))


def _open(name: str, source: str, dtype: str | None, most_rows: int | None) -> Decoder:
    if _missing:
        reason = _missing.partition("\n")[0].rstrip(".")
        raise UserFault(f'{name} runs on torch and transformers ({reason}): run `pip install "dubito[local]"`.')
    folder, gguf = _located(name, source)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        with _quietly():
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
            "give the path of a local model folder or .gguf file, or the name of a model on a hub that can be reached."
        ) from fault
    if getattr(model, "_is_stateful", False):
        raise UserFault(
            f"{name} keeps a state that is no cache of keys and values: serve it with vLLM (vllm:URL#model)."
        )
    ends = {tokenizer.eos_token_id}
    for settings in (model.generation_config, model.config.get_text_config()):
        told = getattr(settings, "eos_token_id", None)
        ends.update(told if isinstance(told, list) else [told])
    return Decoder(name, model, ChatText(name, tokenizer, frozenset(ends - {None})), most_rows)


def _located(name: str, source: str) -> tuple[str, dict[str, str]]:
    """The folder or hub name that `from_pretrained` takes, and its argument for a GGUF."""
    path = Path(source).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise UserFault(f"{name} cannot be loaded: there is no file {path}.")
        if absent := [package for package in ("gguf", "accelerate") if find_spec(package) is None]:
            raise UserFault(
                f"{name} is a GGUF, which takes two more packages to read: run `pip install {' '.join(absent)}`."
            )
        return str(path.parent), {"gguf_file": path.name}
    if path.is_dir():
        return str(path), {}
    if path.is_absolute() or source.startswith((".", "~")):
        raise UserFault(f"{name} cannot be loaded: there is no folder {path}.")
    return source, {}


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep the progress bars and the notes of loading off stderr."""
    ours: Any = transformers.logging
    reader: Any = import_module("transformers.modeling_gguf_pytorch_utils")  # it has a bar of its own
    bars, bar = ours.is_progress_bar_enabled(), reader.tqdm
    levels = [(notes, notes.get_verbosity()) for notes in (ours, huggingface_hub.logging)]
    ours.disable_progress_bar()
    reader.tqdm = lambda items, **_: items
    for notes, _ in levels:
        notes.set_verbosity_error()
    try:
        yield
    finally:
        reader.tqdm = bar
        for notes, level in levels:
            notes.set_verbosity(level)
        if bars:
            ours.enable_progress_bar()
