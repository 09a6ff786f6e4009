"""Hidden states from a vLLM server that `dubito serve --hidden-states` has started."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..concurrency import map_or_cancel
from ..errors import ModelFault, UserFault
from ..settings import settings
from .generation import SampledTokens
from .interfaces import Tokens, Vectors
from .openai_server import Server, log_probability, usage
from .states_file import last_states, remove

_AT_ONCE = 32
_ONE_TOKEN = {"max_tokens": 1, "temperature": 0}
_SAME_MODEL = 0.3  # nats per token; rounding and other batches change log-probabilities by much less


@dataclass(frozen=True)
class Reading:
    """The hidden state [d] of a sequence's last token, its layer and its cost.

    logprobs: of all tokens but the first; empty unless requested.
    """

    state: Vectors
    layer: int
    tokens: Tokens
    logprobs: tuple[float, ...] = ()


class StatesServer:
    """Reads the hidden state of a sequence's last token, at the layer that the server was started for.

    A sequence is sent as the prompt of a request for one greedy token. The file that the reply names is read on this
    machine and removed together with its lock, even if the caller is cancelled. A request that is cancelled before its
    reply may leave two small files; `dubito serve` removes them when it ends.
    """

    def __init__(self, base_url: str, layer: int | None = None) -> None:
        """layer: of the states, for a server that does not name it (not started by `dubito serve`)."""
        self._server = Server(base_url)
        self.base_url = self._server.base_url
        self._named = layer
        self._layer: int | None = None

    async def reach(self) -> None:
        """Raise `ModelFault` if the server cannot be reached; asked once."""
        await self._server.reach()

    async def check(self, model: str, layer: int | None) -> None:
        """Before sampling: `UserFault` for a server that gives no states, or another layer's."""
        if self._layer is None:
            self._layer = (await self._read(model, (0,), logprobs=False)).layer
        self._refuse_other(layer, self._layer)

    async def read(
        self, model: str, sequences: Sequence[tuple[int, ...]], layer: int | None = None, *, logprobs: bool = False
    ) -> list[Reading]:
        """The hidden state of each sequence's last token; requests run concurrently."""
        readings = await map_or_cancel(partial(self._read, model, logprobs=logprobs), sequences, _AT_ONCE)
        for reading in readings:
            self._refuse_other(layer, reading.layer)
        if len({(reading.layer, *reading.state.shape) for reading in readings}) > 1:
            raise ModelFault(self.base_url, "its states changed their layer or size: it was restarted")
        return readings

    async def _read(self, model: str, ids: tuple[int, ...], *, logprobs: bool) -> Reading:
        body: dict[str, Any] = {"model": model, **_ONE_TOKEN, "prompt": list(ids)}
        body |= {"prompt_logprobs": 0} if logprobs else {}

        def read(reply: dict[str, Any]) -> tuple[str, Sequence[int] | None, Tokens, tuple[float, ...]]:
            answer = reply.get("kv_transfer_params") or {}
            path = answer.get("hidden_states_path")
            if path is None:
                raise UserFault(
                    f"{self.base_url} gives no hidden states: start it by `dubito serve MODEL --hidden-states`."
                )
            if not path.startswith("/") or not path.endswith(".safetensors"):
                raise ValueError(f"it names the file {path}")
            log_probabilities = _logprobs(ids, reply["choices"][0]["prompt_logprobs"]) if logprobs else ()
            return path, answer.get("hidden_states_layers"), usage(reply), log_probabilities

        path, layers, tokens, log_probabilities = await self._server.request("/completions", body, read)
        try:
            column, layer = self._column(layers)
            with self._server.reading():
                states = await self._written(path, ids)
            if column >= len(states) or (layers is None and len(states) > 1):
                raise UserFault(
                    f"{self.base_url} gives the states of {len(states)} layers and does not say of which: "
                    "start it for one, as `dubito serve MODEL --hidden-states` does."
                )
            return Reading(states[column], layer, tokens, log_probabilities)
        finally:
            await asyncio.shield(asyncio.to_thread(remove, path))

    async def _written(self, path: str, ids: tuple[int, ...]) -> Vectors:
        end, pause = asyncio.get_running_loop().time() + settings().timeout_s, 0.001
        # polled, because a thread that blocks on a lock cannot be cancelled
        while (states := await asyncio.to_thread(last_states, path, ids)) is None:
            if asyncio.get_running_loop().time() > end:
                raise ModelFault(self.base_url, f"{path} was not written within {settings().timeout_s:g} s")
            await asyncio.sleep(pause)
            pause = min(2 * pause, 0.1)
        return states

    def _column(self, layers: Sequence[int] | None) -> tuple[int, int]:
        """The index in the file of the layer to read, and the layer. layers: in the file, None if unknown."""
        url, named = self.base_url, self._named
        if layers is None:
            if named is None:
                raise UserFault(
                    f"{url} does not name the layer of its hidden states: add &layer=N to the model's name, where N "
                    "is the layer that it was started for."
                )
            return 0, named
        layer = layers[0] if named is None and len(layers) == 1 else named
        if layer is None or layer not in layers:
            advice = "name one" if layer is None else f"not of {layer} as the model's name says"
            raise UserFault(
                f"{url} gives the hidden states of layer {', '.join(map(str, layers))}: {advice} (&layer=N)."
            )
        return layers.index(layer), layer

    def _refuse_other(self, requested: int | None, layer: int) -> None:
        if requested not in (None, layer):
            raise UserFault(
                f"{self.base_url} gives the hidden states of layer {layer}, not of layer {requested}: start it "
                f"by `dubito serve MODEL --hidden-states --layer {requested}`, or leave the layer to the server."
            )


def compare(sampled_at: str, drawn: Sequence[SampledTokens], read_at: str, readings: Sequence[Reading]) -> None:
    """`UserFault` if two servers give different log-probabilities to the same tokens: their models differ."""
    pairs = [
        pair
        for sample, reading in zip(drawn, readings, strict=True)
        for pair in zip(sample.logprobs, reading.logprobs[-len(sample.ids) :], strict=True)
    ]
    difference = sum(abs(sampled - read) for sampled, read in pairs) / len(pairs)
    if difference > _SAME_MODEL:
        raise UserFault(
            f"{sampled_at} and {read_at} do not serve the same model: their log-probabilities of the same tokens "
            f"differ by {difference:.1f} nats; start both by `dubito serve MODEL --hidden-states`."
        )


async def refuse_extraction(server: Server, model: str) -> None:
    """`UserFault` if the server for sampling was started for hidden states.

    At a temperature above 0 such a server may silently sample from a wrong distribution (vLLM 0.32 on a CPU does: the
    log-probabilities are right, the samples are not), or crash (with top-k). The texts do not always show the fault, so
    such a server is never sampled from.
    """
    path = await server.request(
        "/completions",
        {"model": model, **_ONE_TOKEN, "prompt": [0]},
        lambda reply: (reply.get("kv_transfer_params") or {}).get("hidden_states_path"),
    )
    if path is not None:
        await asyncio.to_thread(remove, str(path))
        raise UserFault(
            f"{server.base_url} was started for hidden states, and vLLM samples wrongly on such a server: name a plain "
            "server of the same model before &states=, as `dubito serve MODEL --hidden-states` starts beside it."
        )


def _logprobs(ids: Sequence[int], rows: Sequence[Mapping[str, Mapping[str, Any]]]) -> tuple[float, ...]:
    return tuple(log_probability(row[str(token)]["logprob"]) for token, row in zip(ids[1:], rows[1:], strict=True))
