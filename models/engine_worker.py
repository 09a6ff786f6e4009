"""Runs inside vLLM's worker processes: keeps the hidden state of a prompt's last token for requests that ask for it.

vLLM mixes `ReadsStates` into its worker (`worker_extension_cls`), so each worker process imports this file.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from ..state.capability import States
from .engine_options import ASK_STATE
from .hidden_states import feed_forward_of, recorded


class ReadsStates:
    """Two methods of vLLM's worker that the engine calls by `collective_rpc`."""

    model_runner: Any

    def dubito_layers(self) -> list[int]:
        """Begin to keep the states that requests ask for.

        Returns the number of layers, 0 if they are not found, and the number of feed-forward blocks that are found.
        """
        self._dubito_watch = _Watch(self.model_runner)
        return self._dubito_watch.found

    def dubito_take(self, keys: list[str]) -> dict[str, bytes]:
        """Remove and return the states under these keys: float32 in the machine's byte order."""
        return self._dubito_watch.take(keys)


@dataclass(frozen=True)
class _Wanted:
    """A request for a hidden state. key: to keep the state under; length: of the prompt in tokens."""

    key: str
    source: tuple[int, States]
    length: int


class _Watch:
    """Watches every batch of the model runner and reads the layers for the prompts that end in it."""

    def __init__(self, runner: Any) -> None:  # noqa: ANN401 - V1's and V2's model runners have no class in common
        self._runner = runner
        self._sources = _sources(runner)
        self._wanted: dict[str, _Wanted] = {}
        self._kept: dict[str, Tensor] = {}
        self._execute = runner.execute_model
        runner.execute_model = self.execute

    @property
    def found(self) -> list[int]:
        """See `ReadsStates.dubito_layers`."""
        kinds: tuple[States, ...] = ("residual", "feed_forward")
        return [sum(kind == wanted for _, kind in self._sources) for wanted in kinds]

    def take(self, keys: list[str]) -> dict[str, bytes]:
        """See `ReadsStates.dubito_take`."""
        found = {key: state for key in keys if (state := self._kept.pop(key, None)) is not None}
        return {key: state.float().cpu().numpy().tobytes() for key, state in found.items()}

    def execute(self, batch: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Stands in for the runner's `execute_model`; batch: vLLM's SchedulerOutput."""
        for name in batch.finished_req_ids:
            self._wanted.pop(name, None)
        for new in batch.scheduled_new_reqs:
            asked = (getattr(new.sampling_params, "extra_args", None) or {}).get(ASK_STATE)
            if asked is not None:
                key, layer, states = asked
                self._wanted[new.req_id] = _Wanted(key, (layer, states), len(new.prompt_token_ids))
        ending = {name: self._wanted.pop(name) for name in self._ending(batch)}
        sources = {wanted.source: self._sources[wanted.source] for wanted in ending.values()}
        with recorded(sources, _hidden) as seen:
            result = self._execute(batch, *args, **kwargs)
        if ending:
            scheduled: Mapping[str, int] = batch.num_scheduled_tokens
            order = self._order()
            ends = dict(zip(order, accumulate(scheduled[name] for name in order), strict=True))
            for name, wanted in ending.items():
                if wanted.source in seen:  # else it is at another stage of the pipeline
                    self._kept[wanted.key] = seen[wanted.source][ends[name] - 1].clone()
        return result

    def _ending(self, batch: Any) -> list[str]:  # noqa: ANN401
        """The wanted requests whose prompt's last token is in this batch."""
        if not self._wanted:
            return []
        before = {new.req_id: new.num_computed_tokens for new in batch.scheduled_new_reqs}
        cached = batch.scheduled_cached_reqs
        before |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        scheduled: Mapping[str, int] = batch.num_scheduled_tokens
        return [
            name
            for name, wanted in self._wanted.items()
            if name in scheduled and before[name] + scheduled[name] >= wanted.length
        ]

    def _order(self) -> list[str]:
        """The order of the requests' tokens in the batch that was just run."""
        state = self._runner.execute_model_state  # V2's runner makes a new batch for every step
        batch = state.input_batch if hasattr(state, "input_batch") else self._runner.input_batch
        return list(batch.req_ids)


def _hidden(output: Any) -> Tensor:  # noqa: ANN401
    """The states of all tokens, [tokens, d].

    A copy, because the next layer overwrites its input. Most layers leave adding the residual to the next; a
    feed-forward block knows no residual.
    """
    if isinstance(output, torch.Tensor):
        return output.clone()
    hidden: Tensor = output[0]
    residual = output[1] if len(output) > 1 else None
    return hidden + residual if isinstance(residual, torch.Tensor) else hidden.clone()


def _sources(runner: Any) -> dict[tuple[int, States], Module | None]:  # noqa: ANN401
    """The modules whose outputs are hidden states, by layer from 1; None for those in another process.

    residual: transformers' `hidden_states[1]` to `[L]`, of which the last is the output of the final norm, which is the
    whole model's output. feed_forward: the feed-forward blocks.
    """
    whole = runner.get_model()
    model = whole.get_language_model() if hasattr(whole, "get_language_model") else whole
    count: int = runner.model_config.hf_text_config.num_hidden_layers
    for stack in model.modules():
        layers = getattr(stack, "layers", None)
        if isinstance(layers, torch.nn.ModuleList) and len(layers) == count:
            here = [None if type(layer).__name__ == "PPMissingLayer" else layer for layer in layers]
            residual = [*here[:-1], None if here[-1] is None else whole]
            sources: dict[tuple[int, States], Module | None] = {
                (number, "residual"): module for number, module in enumerate(residual, 1)
            }
            for number, layer in enumerate(here, 1):
                block = None if layer is None else feed_forward_of(layer)
                if layer is None or block is not None:
                    sources[number, "feed_forward"] = block
            return sources
    return {}
