"""Several servers of one model behind one name, such as `vllm:http://a:8000,http://b:8000#model`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from zlib import crc32

from ..concurrency import gather_or_cancel
from ..errors import ModelFault, UserFault
from .answer_stream import TextListener
from .openai_server import Server, listed
from .server_list import WAIT_S

T = TypeVar("T")

BEGINNING = 500
"""Characters of a prompt's last user message that choose its server: the first passages, or the question."""

AHEAD = 2
"""Requests that a server may have under way beyond the least busy one before a prompt goes elsewhere."""


def open_servers(address: str) -> Server:
    """The server of a URL, or of several URLs between commas."""
    urls = address.split(",")
    return Replicas(urls) if len(urls) > 1 else Server(urls[0])


class Replicas(Server):
    """Servers of one model, as one server.

    Prompts with the same first passages go to the same server, whose prefix cache holds them, unless that one is
    busier than others. What a server cannot answer goes to the next one. A server that refuses everything gets no
    requests until a probe says that it answers again; if all of them do, a request waits as for a single server.
    """

    def __init__(self, urls: Sequence[str]) -> None:
        """urls: at least two, see `Server`."""
        self._servers = [Server(url) for url in urls]
        self.base_url = ", ".join(server.base_url for server in self._servers)
        self._under_way: Counter[Server] = Counter()
        self._probes: dict[Server, asyncio.Task[bool]] = {}

    async def served(self) -> dict[str, int | None]:
        """The models that all servers serve, with their smallest context windows."""
        lists = await gather_or_cancel(server.served() for server in self._servers)
        shared = [name for name in lists[0] if all(name in one for one in lists)]
        windows = {name: [window for one in lists if (window := one[name])] for name in shared}
        return {name: min(windows[name], default=None) for name in shared}

    async def reach(self, wait: float = WAIT_S) -> Mapping[str, Mapping[str, Any]]:
        """The models that are on every list, empty without lists; `UserFault` if the servers have none in common.

        Raises `ModelFault` for a server that cannot be reached.
        """
        replies = await gather_or_cancel(server.reach(wait) for server in self._servers)
        lists = [models for models in replies if models]
        shared = {name: model for one in lists[:1] for name, model in one.items() if all(name in o for o in lists)}
        if lists and not shared:
            served = "; ".join(f"{s.base_url} serves {listed(m)}" for s, m in zip(self._servers, replies, strict=True))
            raise UserFault(f"The servers of one name must serve the same model: {served}.")
        return shared

    async def request(
        self,
        path: str,
        body: dict[str, Any] | None,
        read: Callable[[dict[str, Any]], T],
        listener: TextListener | None = None,
        *,
        outage_s: float | None = None,
    ) -> T:
        """See `Server.request`."""
        order, faults = self._order(body), []
        for server in order:
            try:
                with self._under_way_at(server):
                    return await server.request(path, body, read, listener, outage_s=0)
            except ModelFault as fault:
                faults.append(fault)
                listener = None  # the answer may have begun
        if not all(server.is_out for server in self._servers):
            raise faults[-1]
        with self._under_way_at(order[0]):
            return await order[0].request(path, body, read, outage_s=outage_s)

    async def page(self, path: str) -> str:
        """The pages of all servers, one after the other; "" if one has none."""
        pages = await gather_or_cancel(server.page(path) for server in self._servers)
        return "\n".join(pages) if all(pages) else ""

    @contextmanager
    def _under_way_at(self, server: Server) -> Iterator[None]:
        """Count a request of this server while it is under way."""
        self._under_way[server] += 1
        try:
            yield
        finally:
            self._under_way[server] -= 1

    def _order(self, body: Mapping[str, Any] | None) -> list[Server]:
        """The servers that answer, the best one for this prompt first; all of them if none does."""
        answering = [server for server in self._servers if not server.is_out]
        for server in self._servers:
            if server.is_out and ((probe := self._probes.get(server)) is None or probe.done()):
                self._probes[server] = asyncio.create_task(server.wait_until_up())
        own = self._servers[crc32(_beginning(body or {}).encode(errors="replace")) % len(self._servers)]
        least = min(self._under_way[server] for server in answering or self._servers)

        def cost(server: Server) -> int:
            busy = self._under_way[server]
            return least - 1 if server is own and busy <= least + AHEAD else busy

        return sorted(answering or self._servers, key=cost)


def _beginning(body: Mapping[str, Any]) -> str:
    # the system's text and the examples before are the same in all prompts of a step, and would send all to one server
    users = [str(message["content"]) for message in body.get("messages") or [] if message["role"] == "user"]
    return (users[-1] if users else str(body.get("prompt") or body.get("input")))[:BEGINNING]
