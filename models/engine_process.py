"""vLLM's engine for one program: started here, asked by token ids, its faults as dubito's errors.

Everything here runs on the background event loop (see `background`), because vLLM's connections belong to one loop.
"""

import asyncio
import atexit
import os
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from ..concurrency import gather_or_cancel
from ..errors import CapabilityMissing, DubitoError, ModelFault, UserFault
from .background import run_in_background, start_in_background
from .chat_text import ChatText
from .engine_options import ASK_STATE, EngineOptions
from .generation import SampledTokens, along, layer_to_read, next_tokens, no_feed_forward
from .interfaces import States, Vectors
from .local_weights import first_line

_WORKER = "dubito.models.engine_worker.ReadsStates"
_ENVIRONMENT = {
    # the program's standard output and error are its own
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_LOGGING_LEVEL": "ERROR",
    # forking hangs while other threads hold locks, and fails after CUDA was used
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}
_QUIET = {"disable_log_stats": True, "use_tqdm_on_load": False}
_LENGTHS = range(3, 9)  # of the sequences read to check that each request gets its own hidden state
_MOST_LOGPROBS = 20  # the most tokens whose log-probabilities vLLM returns for a request

Report = Callable[[list[int]], Awaitable[None]]
"""Gets the ids of a continuation's tokens so far."""


class Engine:
    """A running engine. vLLM batches the requests; cancelled requests leave the batch."""

    def __init__(self, name: str, llm: Any, text: ChatText) -> None:  # noqa: ANN401
        """llm: vLLM's AsyncLLM."""
        self.text = text
        self.window: int = llm.model_config.max_model_len
        self.dead = False
        self._name = name
        self._llm = llm
        self._found: Sequence[int] | None = None
        self._watching = asyncio.Lock()

    async def sample(
        self, prompt: Sequence[int], *, report: Report | None = None, pattern: str | None = None, **params: object
    ) -> list[SampledTokens]:
        """Continue a prompt. report: of the only continuation; pattern: see `Sampling`; params: of SamplingParams."""
        if pattern is not None:
            from vllm.sampling_params import StructuredOutputsParams  # noqa: PLC0415 - of an extra, and slow to import

            params["structured_outputs"] = StructuredOutputsParams(regex=pattern)
        outputs = (await self._ask(prompt, report=report, logprobs=0, **params)).outputs
        if broken := [output.finish_reason for output in outputs if output.finish_reason not in {"stop", "length"}]:
            raise ModelFault(self._name, f"the reply was broken off ({broken[0]})")
        return [
            SampledTokens(
                tuple(output.token_ids),
                tuple(
                    float(step[token].logprob) for token, step in zip(output.token_ids, output.logprobs, strict=True)
                ),
                output.finish_reason == "length",
            )
            for output in sorted(outputs, key=lambda output: output.index)
        ]

    async def follow(self, prompt: Sequence[int], paths: Sequence[Sequence[int]]) -> list[list[float]]:
        """The log-probability of every token of every path behind a prompt.

        One request for each distinct beginning of a path asks for the next token. The prompt and shared beginnings come
        from vLLM's prefix cache, which vLLM's own `prompt_logprobs` bypass.
        """
        nexts = next_tokens(paths)
        logprobs = await gather_or_cancel(
            self._next([*prompt, *start], sorted(tokens)) for start, tokens in nexts.items()
        )
        return along(paths, dict(zip(nexts, logprobs, strict=True)))

    async def layer(self, layer: int | None, states: States = "residual") -> int:
        """See `layer_to_read`; `CapabilityMissing` if this engine does not give such hidden states."""
        async with self._watching:
            if self._found is None:
                self._found = await self._watch()
        layers, feed_forward = self._found
        if states == "feed_forward" and feed_forward < layers:
            raise CapabilityMissing(no_feed_forward(self._name))
        return layer_to_read(self._name, layers, layer)

    async def states(self, sequences: Sequence[Sequence[int]], layer: int, states: States = "residual") -> Vectors:
        """The hidden state of each sequence's last token: [n, d] float32. It needs room for one more token.

        The prefix cache never holds the last token: vLLM reads at least one token of every request.
        """
        keys = [uuid.uuid4().hex for _ in sequences]
        try:
            await gather_or_cancel(
                self._ask(ids, extra_args={ASK_STATE: [key, layer, states]}, max_tokens=1, temperature=0)
                for ids, key in zip(sequences, keys, strict=True)
            )
        except BaseException:
            # drop the states read so far without waiting: the fault is raised at once, and a dead engine keeps none
            start_in_background(self._call("dubito_take", keys))
            raise
        taken: dict[str, bytes] = {}
        for of_process in await self._call("dubito_take", keys):  # processes with the same key have the same state
            taken |= of_process
        if missing := len(keys) - len(taken):
            raise ModelFault(self._name, f"{missing} of {len(keys)} hidden states were not read")
        return np.stack([np.frombuffer(taken[key], np.float32) for key in keys])

    def close(self) -> None:
        """End the engine's processes. Not on the background loop's thread."""
        atexit.unregister(self.close)
        self.dead = True
        llm, self._llm = self._llm, None
        if llm is None:
            return
        if llm.output_handler is not None:  # it would log an error about the ended engine
            run_in_background(_cancelled(llm.output_handler))
        llm.shutdown()

    async def _next(self, ids: Sequence[int], tokens: Sequence[int]) -> dict[int, float]:
        parts = [tokens[i : i + _MOST_LOGPROBS] for i in range(0, len(tokens), _MOST_LOGPROBS)]
        logprobs: dict[int, float] = {}
        for reply in await gather_or_cancel(
            self._ask(ids, max_tokens=1, temperature=0, logprob_token_ids=list(part)) for part in parts
        ):
            logprobs |= {token: float(entry.logprob) for token, entry in reply.outputs[0].logprobs[0].items()}
        return logprobs

    async def _watch(self) -> Sequence[int]:
        """See `ReadsStates.dubito_layers`."""
        advice = "use hf:, or a vllm: server started by `dubito serve MODEL --hidden-states`"
        found: list[int] = max(await self._call("dubito_layers"))
        if not found[0]:
            raise CapabilityMissing(f"{self._name} has no list of layers whose hidden states could be read: {advice}.")
        sequences = [[*range(1, length)] for length in _LENGTHS]
        alone = [(await self.states([ids], 1))[0] for ids in sequences]
        together = await self.states(sequences, 1)
        distances = np.linalg.norm(together[:, None] - np.stack(alone)[None], axis=-1)
        if (distances.argmin(axis=1) != np.arange(len(sequences))).any():
            raise CapabilityMissing(
                f"{self._name} runs on a version of vLLM whose hidden states cannot be assigned to requests: {advice}."
            )
        return found

    async def _ask(self, ids: Sequence[int], *, report: Report | None = None, **params: Any) -> Any:  # noqa: ANN401
        from vllm import SamplingParams  # noqa: PLC0415 - of an extra, and slow to import
        from vllm.sampling_params import RequestOutputKind  # noqa: PLC0415

        with self._naming_faults():
            kind = RequestOutputKind.FINAL_ONLY if report is None else RequestOutputKind.CUMULATIVE
            sampling = SamplingParams(**{"detokenize": False, **params}, output_kind=kind)
            reply = None
            replies = self._llm.generate({"prompt_token_ids": list(ids)}, sampling, uuid.uuid4().hex)
            async with aclosing(replies):
                async for reply in replies:
                    if report is not None:
                        await report(list(reply.outputs[0].token_ids))
            return reply

    async def _call(self, method: str, *arguments: object) -> list[Any]:
        with self._naming_faults():
            answers: list[Any] = await self._llm.collective_rpc(method, args=arguments)
        return answers

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
            raise ModelFault(self._name, "vLLM's engine has ended; see its last output above") from fault
        except (VLLMClientError, ValueError) as fault:
            raise UserFault(f"{self._name} refused the request: {first_line(fault)}.") from fault
        except Exception as fault:
            raise ModelFault(self._name, f"vLLM failed: {first_line(fault.__cause__ or fault)}") from fault


def start_engine(name: str, options: EngineOptions) -> Engine:
    """Start vLLM's processes and load the weights. Blocks for half a minute or more; `UserFault` if it fails."""
    for variable, value in _ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    given = {"enforce_eager": True, "load_format": "safetensors", **options.given}  # nothing is unpickled
    folder = Path(options.source).expanduser()
    source = str(folder) if folder.is_dir() else options.source
    try:
        text = _chat_text(name, source)
        # not bound to a name: the traceback of a failure would keep vLLM's object alive until after its modules
        engine = Engine(name, _started(source, given), text)
    except Exception as fault:
        raise UserFault(
            f"{name} cannot be started by vLLM ({first_line(fault)}): its output above has the reason. If memory is "
            "short, add ?max_model_len=N or ?gpu_memory_utilization=SHARE to the model's name."
        ) from fault
    atexit.register(engine.close)
    return engine


def _started(source: str, given: dict[str, Any]) -> Any:  # noqa: ANN401
    vllm: Any = import_module("vllm")
    if import_module("vllm.platforms").current_platform.is_cpu():
        given["enable_chunked_prefill"] = False  # on a CPU a seeded request that is read in chunks ends the engine
    asked = vllm.AsyncEngineArgs(model=source, worker_extension_cls=_WORKER, **_QUIET, **given)
    return import_module("vllm.v1.engine.async_llm").AsyncLLM.from_engine_args(asked)


def _chat_text(name: str, source: str) -> ChatText:
    transformers: Any = import_module("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    config = transformers.AutoConfig.from_pretrained(source)
    try:
        generation = transformers.GenerationConfig.from_pretrained(source)
    except OSError:  # not every model has one
        generation = None
    return ChatText(name, tokenizer, generation, config.get_text_config())


async def _cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
