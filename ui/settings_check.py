"""Refuses a request to a server of graphs whose context is wrong, before the server drops the unknown settings."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any
from uuid import UUID, uuid5

from langgraph.graph.state import CompiledStateGraph
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import UserFault
from ..graphs import chat, reviewed
from ..graphs.registry import context_type, graph_named, graph_names
from ..resources.allowlist import Forbidden, check_allowed
from ..state.context import BaseContext

ASSISTANTS = "/assistants/"

OF_GRAPHS = UUID("6ba7b821-9dad-11d1-80b4-00c04fd430c8")
"""The namespace in which the server makes the id of the assistant that every graph has."""


class SettingsCheck:
    """Answers 422 and one sentence to a run, a cron job or an assistant with a wrong setting in its context.

    For a resource that DUBITO_ALLOW does not name it is 403.

    It looks at every request that names an assistant or a graph and has a context, whatever its path.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request, or refuse it."""
        if scope["type"] != "http" or scope["method"] not in {"POST", "PATCH", "PUT"}:
            return await self._app(scope, receive, send)
        body = await Request(scope, receive).body()
        try:
            for payload in _payloads(body):
                await self._check(payload, scope)
        except UserFault as fault:
            status = 403 if isinstance(fault, Forbidden) else 422
            return await JSONResponse({"detail": str(fault)}, status_code=status)(scope, receive, send)
        return await self._app(scope, _replayed(body, receive), send)

    async def _check(self, payload: Mapping[str, Any], scope: Scope) -> None:
        given, name = payload["context"], payload.get("graph_id") or payload.get("assistant_id")
        if name is None and scope["path"].startswith(ASSISTANTS):
            name = scope["path"].removeprefix(ASSISTANTS)
        graph = own_assistants().get(str(name), str(name))
        if graph not in contexts() and _is_uuid(graph):
            assistant = await self._assistant(graph, scope)
            graph = str(assistant.get("graph_id"))
            if "assistant_id" in payload:  # a run adds its own context to the assistant's
                given = {**(assistant.get("context") or {}), **given}
        if graph in contexts():
            await check_allowed(contexts()[graph](**given))

    async def _assistant(self, identity: str, scope: Scope) -> Mapping[str, Any]:
        """The assistant, asked for in the name of the caller; empty if the server does not tell it."""
        path, body = f"{ASSISTANTS}{identity}", bytearray()
        status = 0

        async def nothing() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def keep(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            body.extend(message.get("body", b""))

        headers = [(key, value) for key, value in scope["headers"] if not key.startswith((b"content-", b"accept-enc"))]
        asked = {**scope, "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b""}
        await self._app({**asked, "headers": headers, "state": dict(scope.get("state", {}))}, nothing, keep)
        return json.loads(bytes(body)) if status == 200 else {}


@lru_cache(maxsize=1)
def contexts() -> Mapping[str, type[BaseContext]]:
    """The settings of each graph that `langgraph.json` exports."""
    forms = [form for module in (chat, reviewed) for form in vars(module).values()]
    graphs = [*map(graph_named, graph_names()), *(form for form in forms if isinstance(form, CompiledStateGraph))]
    return {graph.name: context_type(graph) for graph in graphs}


@lru_cache(maxsize=1)
def own_assistants() -> Mapping[str, str]:
    """The graph of each assistant that the server makes by itself."""
    return {str(uuid5(OF_GRAPHS, name)): name for name in contexts()}


def _is_uuid(text: str) -> bool:
    try:
        return bool(UUID(text))
    except ValueError:
        return False


def _payloads(body: bytes) -> Iterator[Mapping[str, Any]]:
    """The objects of a request, or of a batch of them, that have a context; none of a body that is not JSON."""
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        return
    payloads: Iterable[object] = parsed if isinstance(parsed, list) else [parsed]
    for payload in payloads:
        if isinstance(payload, dict) and isinstance(payload.get("context"), dict) and payload["context"]:
            yield payload


def _replayed(body: bytes, receive: Receive) -> Receive:
    """The request's messages again: its body, then what comes after it."""
    is_read = False

    async def replay() -> Message:
        nonlocal is_read
        if is_read:
            return await receive()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay
