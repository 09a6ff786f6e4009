"""vLLM's engine behind one program: started, asked by token ids, and its faults in our words.

Everything here runs on the background event loop (see `background`): vLLM's connections belong to one loop.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import CapabilityMissing, DubitoError, ModelFault, UserFault
from .background import run_in_background
from .chat_text import ChatText, first_line
from .engine_options import ASK_STATE, EngineOptions
from .interfaces import Vectors

_WORKER = "dubito.models.engine_worker.ReadsStates"
_ENVIRONMENT = {
    # a program's standard output is its own, and what it says on its standard error as well
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_LOGGING_LEVEL": "ERROR",
    # forked while other threads hold locks, or after CUDA was used here, it would hang or fail
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}
_QUIET = {"disable_log_stats": True, "use_tqdm_on_load": False}
_LENGTHS = range(3, 9)  # of the sequences that are read to see whether states come to whom they belong
_ASKED_AT_ONCE = 20  # the most tokens whose log-probabilities vLLM tells of a request


@dataclass(frozen=True)
class Drawn:
    """A continuation: all token ids that were generated, their log-probabilities, and what ended it."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    at_limit: bool


class Engine:
    """A running engine. Its requests are batched by vLLM itself; what is given up is taken out."""

    def __init__(self, name: str, llm: Any, text: ChatText) -> None:  # noqa: ANN401
        """llm: vLLM's AsyncLLM."""
        self.text = text
        self.window: int = llm.model_config.max_model_len
        self.dead = False
        self._name = name
        self._llm = llm
        self._layers: int | None = None
        self._watching = asyncio.Lock()
        self._dropping: set[asyncio.Task[Any]] = set()

    async def sample(self, prompt: Sequence[int], **how: object) -> list[Drawn]:
        """Continue a prompt; how: vLLM's SamplingParams."""
        outputs = (await self._ask(prompt, logprobs=0, **how)).outputs
        if broken := [one.finish_reason for one in outputs if one.finish_reason not in {"stop", "length"}]:
            raise ModelFault(self._name, f"the reply was broken off ({broken[0]})")
        return [
            Drawn(
                tuple(one.token_ids),
                tuple(float(told[token].logprob) for token, told in zip(one.token_ids, one.logprobs, strict=True)),
                one.finish_reason == "length",
            )
            for one in sorted(outputs, key=lambda one: one.index)
        ]

    async def follow(self, prompt: Sequence[int], paths: Sequence[Sequence[int]]) -> list[list[float]]:
        """The log-probability of every token of every path behind a prompt.

        A request for each distinct start of a path asks for what comes next: the prompt and what the paths begin with
        in common come from vLLM's prefix cache, where its own log-probabilities of prompts would read all anew.
        """
        nexts: dict[tuple[int, ...], set[int]] = {}
        for path in paths:
            for i, token in enumerate(path):
                nexts.setdefault(tuple(path[:i]), set()).add(token)
        told = await _all(self._next([*prompt, *start], sorted(tokens)) for start, tokens in nexts.items())
        known = dict(zip(nexts, told, strict=True))
        return [[known[tuple(path[:i])][token] for i, token in enumerate(path)] for path in paths]

    async def layer(self, wanted: int | None) -> int:
        """The layer to read, 1 to L, where None stands for the middle one.

        `UserFault` if there is none such, `CapabilityMissing` if this engine does not give its states.
        """
        async with self._watching:
            if self._layers is None:
                self._layers = await self._watch()
        if wanted is None:
            return max(1, self._layers // 2)
        if not 1 <= wanted <= self._layers:
            raise UserFault(
                f"{self._name} has {self._layers} layers: choose one from 1 to {self._layers}, not {wanted}."
            )
        return wanted

    async def states(self, sequences: Sequence[Sequence[int]], layer: int) -> Vectors:
        """The hidden state of each sequence's last token: [n, d] float32. It takes room for one token more.

        That token is never in the prefix cache, as vLLM reads at least one token of every request.
        """
        keys = [uuid.uuid4().hex for _ in sequences]
        try:
            await _all(
                self._ask(ids, extra_args={ASK_STATE: [key, layer]}, max_tokens=1, temperature=0)
                for ids, key in zip(sequences, keys, strict=True)
            )
        except BaseException:
            # what was read already is of no use; the reason goes up at once
            task = asyncio.create_task(self._call("dubito_take", keys))
            self._dropping.add(task)
            task.add_done_callback(self._dropped)
            raise
        found: dict[str, bytes] = {}
        for stage in await self._call("dubito_take", keys):  # of several processes that tell, each tells the same
            found |= stage
        if missing := len(keys) - len(found):
            raise ModelFault(self._name, f"{missing} of {len(keys)} hidden states were not read")
        return np.stack([np.frombuffer(found[key], np.float32) for key in keys])

    def close(self) -> None:
        """End the engine's processes; it takes no more requests. From any thread but the background loop's."""
        atexit.unregister(self.close)
        self.dead = True
        llm, self._llm = self._llm, None
        if llm is None:
            return
        if llm.output_handler is not None:  # it would complain of an engine that has ended
            run_in_background(_cancelled(llm.output_handler))
        llm.shutdown()

    async def _next(self, ids: Sequence[int], tokens: Sequence[int]) -> dict[int, float]:
        parts = [tokens[i : i + _ASKED_AT_ONCE] for i in range(0, len(tokens), _ASKED_AT_ONCE)]
        found: dict[int, float] = {}
        for reply in await _all(
            self._ask(ids, max_tokens=1, temperature=0, logprob_token_ids=list(part)) for part in parts
        ):
            found |= {token: float(one.logprob) for token, one in reply.outputs[0].logprobs[0].items()}
        return found

    async def _watch(self) -> int:
        instead = "use hf:, or a vllm: server started by `dubito serve MODEL --hidden-states`"
        layers = max(await self._call("dubito_layers"))
        if not layers:
            raise CapabilityMissing(f"{self._name} has no row of layers whose hidden states could be read: {instead}.")
        sequences = [[*range(1, length)] for length in _LENGTHS]
        alone = [(await self.states([ids], 1))[0] for ids in sequences]
        together = await self.states(sequences, 1)
        apart = np.linalg.norm(together[:, None] - np.stack(alone)[None], axis=-1)
        if (apart.argmin(axis=1) != np.arange(len(sequences))).any():
            raise CapabilityMissing(
                f"{self._name} runs on a vLLM whose batches cannot be told apart, so that a hidden state could be "
                f"another request's: {instead}."
            )
        return int(layers)

    async def _ask(self, ids: Sequence[int], **how: Any) -> Any:  # noqa: ANN401
        from vllm import SamplingParams  # noqa: PLC0415 - of an extra, and slow to import
        from vllm.sampling_params import RequestOutputKind  # noqa: PLC0415

        with self._naming_faults():
            params = SamplingParams(**{"detokenize": False, **how}, output_kind=RequestOutputKind.FINAL_ONLY)
            replies = self._llm.generate({"prompt_token_ids": list(ids)}, params, uuid.uuid4().hex)
            return [reply async for reply in replies][-1]  # the final one is the only one

    async def _call(self, method: str, *arguments: object) -> list[Any]:
        with self._naming_faults():
            answers: list[Any] = await self._llm.collective_rpc(method, args=arguments)
        return answers

    def _dropped(self, task: asyncio.Task[Any]) -> None:
        self._dropping.discard(task)
        if not task.cancelled():
            task.exception()  # an engine that died keeps nothing

    @contextmanager
    def _naming_faults(self) -> Iterator[None]:
        from vllm.exceptions import VLLMClientError  # noqa: PLC0415
        from vllm.v1.engine.exceptions import EngineDeadError  # noqa: PLC0415

        try:
            yield
        except DubitoError:
            raise
        except EngineDeadError as fault:
            self.dead = True
            raise ModelFault(self._name, "vLLM's engine has ended; what it said last is above") from fault
        except (VLLMClientError, ValueError) as fault:
            raise UserFault(f"{self._name} refused the request: {first_line(fault)}.") from fault
        except Exception as fault:
            raise ModelFault(self._name, f"vLLM failed: {first_line(fault.__cause__ or fault)}") from fault


def start_engine(name: str, options: EngineOptions) -> Engine:
    """Start vLLM's processes and load the weights, which blocks for half a minute and more; `UserFault` if it fails."""
    for variable, value in _ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    given = {"enforce_eager": True, "load_format": "safetensors", **options.given}  # nothing is unpickled
    folder = Path(options.source).expanduser()
    source = str(folder) if folder.is_dir() else options.source
    try:
        text = _chat_text(name, source)
        # no name here for vLLM's object: it leaves this frame alive, and would be deleted after its own modules
        engine = Engine(name, _started(source, given), text)
    except Exception as fault:
        raise UserFault(
            f"{name} cannot be started by vLLM ({first_line(fault)}): what it says above tells the reason; "
            "less may fit, by ?max_model_len=N or ?gpu_memory_utilization=SHARE behind the model's name."
        ) from fault
    atexit.register(engine.close)
    return engine


def _started(source: str, given: dict[str, Any]) -> Any:  # noqa: ANN401
    vllm: Any = import_module("vllm")
    if import_module("vllm.platforms").current_platform.is_cpu():
        given["enable_chunked_prefill"] = False  # there a request with a seed that is read in parts ends the engine
    asked = vllm.AsyncEngineArgs(model=source, worker_extension_cls=_WORKER, **_QUIET, **given)
    return import_module("vllm.v1.engine.async_llm").AsyncLLM.from_engine_args(asked)


def _chat_text(name: str, source: str) -> ChatText:
    transformers: Any = import_module("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    config = transformers.AutoConfig.from_pretrained(source)
    ends = {tokenizer.eos_token_id}
    try:
        generation = transformers.GenerationConfig.from_pretrained(source)
    except OSError:  # not every model has one
        generation = None
    for settings in (generation, config.get_text_config()):
        told = getattr(settings, "eos_token_id", None)
        ends.update(told if isinstance(told, list) else [told])
    return ChatText(name, tokenizer, frozenset(ends - {None}))


async def _cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _all(asked: Iterator[Any]) -> list[Any]:
    """As `asyncio.gather`, but when one fails the others are taken out of the engine too."""
    tasks = [asyncio.ensure_future(one) for one in asked]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
