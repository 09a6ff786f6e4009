"""Hidden states from a vLLM server that was started to give them away, as `dubito serve --hidden-states` starts it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ModelFault, UserFault
from ..settings import settings
from .interfaces import Tokens, Vectors
from .openai_server import Server
from .states_file import last_states, remove

_AT_ONCE = 32
_ONE_TOKEN = {"max_tokens": 1, "temperature": 0}
_SAME_MODEL = 0.3  # nats a token; rounding and another batch move them by much less


@dataclass(frozen=True)
class Drawn:
    """A continuation as the server that sampled it tells of it: all its token ids and their log-probabilities."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True)
class Reading:
    """The state [d] of a sequence's last token, the layer it is of and what it cost.

    logprobs: of the sequence's tokens but the first; empty unless they were asked for.
    """

    state: Vectors
    layer: int
    tokens: Tokens
    logprobs: tuple[float, ...] = ()


class StatesServer:
    """Reads the hidden state of a sequence's last token, at the one layer that the server was started for.

    A sequence is sent as the prompt of a request for one greedy token, and the file that the reply names is read on
    this machine and removed with its lock, also when the caller gives up meanwhile. A request that is given up before
    its reply has come may leave two small files behind; `dubito serve` removes what is left when it ends.
    """

    def __init__(self, base_url: str, layer: int | None = None) -> None:
        """layer: whose states they are, for a server that does not tell (one that `dubito serve` did not start)."""
        self._server = Server(base_url)
        self._named = layer
        self._layer: int | None = None

    @property
    def base_url(self) -> str:
        """As in `http://127.0.0.1:8001/v1`."""
        return self._server.base_url

    async def check(self, model: str, layer: int | None) -> None:
        """Refuse, before anything is sampled, a server that gives no states, or another layer's than is asked for."""
        if self._layer is None:
            self._layer = (await self._read(model, (0,), logprobs=False)).layer
        self._refuse_other(layer, self._layer)

    async def read(
        self, model: str, sequences: Sequence[tuple[int, ...]], layer: int | None = None, *, logprobs: bool = False
    ) -> list[Reading]:
        """The last token's state of each sequence, many at once."""
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one(ids: tuple[int, ...]) -> Reading:
            async with gate:
                return await self._read(model, ids, logprobs=logprobs)

        tasks = [asyncio.create_task(one(ids)) for ids in sequences]
        try:
            readings = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                if not task.cancelling():  # else it is removing its files already, which must not be broken off
                    task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)  # each removes its files
        for reading in readings:
            self._refuse_other(layer, reading.layer)
        if len({(reading.layer, *reading.state.shape) for reading in readings}) > 1:
            raise ModelFault(self._server.base_url, "its states changed their layer or size: it was started anew")
        return readings

    async def aclose(self) -> None:
        """Close the running event loop's connections."""
        await self._server.aclose()

    async def _read(self, model: str, ids: tuple[int, ...], *, logprobs: bool) -> Reading:
        body: dict[str, Any] = {"model": model, **_ONE_TOKEN, "prompt": list(ids)}
        reply = await self._server.post("/completions", body | ({"prompt_logprobs": 0} if logprobs else {}))
        with self._server.reading():
            told = reply.get("kv_transfer_params") or {}
            path = told.get("hidden_states_path")
            if path is None:
                raise UserFault(
                    f"{self._server.base_url} gives no hidden states: start it by `dubito serve MODEL --hidden-states`."
                )
            if not path.startswith("/") or not path.endswith(".safetensors"):
                raise ValueError(f"it names the file {path}")
        try:
            with self._server.reading():
                column, layer = self._column(told.get("hidden_states_layers"))
                states = await self._written(path, ids)
                if column >= len(states) or (told.get("hidden_states_layers") is None and len(states) > 1):
                    raise UserFault(
                        f"{self._server.base_url} gives the states of {len(states)} layers and does not say of which: "
                        "start it for one, as `dubito serve MODEL --hidden-states` does."
                    )
                usage = reply.get("usage") or {}
                tokens = Tokens(usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0)
                found = _logprobs(ids, reply["choices"][0]["prompt_logprobs"]) if logprobs else ()
                return Reading(states[column], layer, tokens, found)
        finally:
            await asyncio.shield(asyncio.to_thread(remove, path))

    async def _written(self, path: str, ids: tuple[int, ...]) -> Vectors:
        end, pause = asyncio.get_running_loop().time() + settings().timeout_s, 0.001
        # tried again and again, not waited for: a thread that hangs on a lock could not be given up
        while (states := await asyncio.to_thread(last_states, path, ids)) is None:
            if asyncio.get_running_loop().time() > end:
                raise ModelFault(self._server.base_url, f"{path} was not written within {settings().timeout_s:g} s")
            await asyncio.sleep(pause)
            pause = min(2 * pause, 0.1)
        return states

    def _column(self, told: Sequence[int] | None) -> tuple[int, int]:
        """Which of the file's layers is the one to read, and its number."""
        url, named = self._server.base_url, self._named
        if told is None:
            if named is None:
                raise UserFault(
                    f"{url} does not say which layer its hidden states are of: add &layer=N to the model's name, N "
                    "being the layer that it was started for."
                )
            return 0, named
        wanted = told[0] if named is None and len(told) == 1 else named
        if wanted is None or wanted not in told:
            which = ", ".join(map(str, told))
            asked = "name one" if wanted is None else f"not of {wanted} as the model's name says"
            raise UserFault(f"{url} gives the hidden states of layer {which}: {asked} (&layer=N).")
        return told.index(wanted), wanted

    def _refuse_other(self, asked: int | None, found: int) -> None:
        if asked not in (None, found):
            raise UserFault(
                f"{self._server.base_url} gives the hidden states of layer {found}, and layer {asked} was asked for: "
                f"start it by `dubito serve MODEL --hidden-states --layer {asked}`, or leave the layer to the server."
            )


def compare(sampled_at: str, drawn: Sequence[Drawn], read_at: str, readings: Sequence[Reading]) -> None:
    """Raise `UserFault` if two servers put the log-probabilities of the same tokens apart: their models differ."""
    pairs = [
        pair
        for one, reading in zip(drawn, readings, strict=True)
        for pair in zip(one.logprobs, reading.logprobs[-len(one.ids) :], strict=True)
    ]
    apart = sum(abs(told - read) for told, read in pairs) / len(pairs)
    if apart > _SAME_MODEL:
        raise UserFault(
            f"{sampled_at} and {read_at} do not serve the same model: they put the log-probabilities of the same "
            f"tokens {apart:.1f} nats apart; start both by `dubito serve MODEL --hidden-states`."
        )


async def refuse_extraction(server: Server, model: str) -> None:
    """Raise `UserFault` if a server that is to sample was started for hidden states.

    At a temperature above 0 such a server may draw from another distribution than the model's and say nothing (vLLM
    0.32 does on the CPU: HTTP 200, and log-probabilities that are right for tokens that are not), or crash (with
    top-k). The texts do not always show it, so it is not tried.
    """
    reply = await server.post("/completions", {"model": model, **_ONE_TOKEN, "prompt": [0]})
    with server.reading():
        path = (reply.get("kv_transfer_params") or {}).get("hidden_states_path")
    if path is not None:
        await asyncio.to_thread(remove, str(path))
        raise UserFault(
            f"{server.base_url} was started for hidden states, and vLLM samples wrongly on such a server: name a plain "
            "one of the same model before &states=, as `dubito serve MODEL --hidden-states` starts beside it."
        )


def _logprobs(ids: Sequence[int], rows: Sequence[Mapping[str, Mapping[str, Any]]]) -> tuple[float, ...]:
    return tuple(float(row[str(token)]["logprob"]) for token, row in zip(ids[1:], rows[1:], strict=True))
