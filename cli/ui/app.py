"""The page's server: one page, its form, one way to ask, and the traces of what was asked."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import OrderedDict
from collections.abc import Coroutine, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ... import __version__
from ...errors import UserFault
from ...graphs.registry import graph_named, graph_names
from ...models.offer import Forbidden, Offer
from ...traces.recording import assembled
from ..context import context_for
from ..screen import counted
from ..viewer import page as trace_page
from .asking import Asked
from .filled import render
from .form import form_of
from .guard import Guard

if TYPE_CHECKING:
    from ...graphs.registry import Graph
    from ...models.resources import Resources

FIRST = "df_rag"
"""The graph that the page begins with."""

LONGEST_QUESTION = 8_000
"""Characters."""

LONGEST_BODY = 200_000
"""Bytes of a request."""

MOST_ANSWERS = 100
"""Right answers that a question may come with."""

KEPT_BYTES = 64_000_000
"""Of traces in memory; beyond it the oldest go."""

TRACE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


class Refused(Exception):
    """A request that cannot be answered: the status and one sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        """status: of HTTP."""
        super().__init__(sentence)
        self.status = status


class _Given(BaseModel):
    """What the page's script sends."""

    model_config = ConfigDict(extra="forbid", strict=True)

    graph: str
    question: str
    settings: dict[str, str] = Field(default_factory=dict)
    answers: list[str] = Field(default_factory=list)


class Traces:
    """The traces of the last questions, in memory, by names that cannot be guessed."""

    def __init__(self, most: int = KEPT_BYTES) -> None:
        """most: bytes in all; the last one stays however long it is."""
        self._most = most
        self._kept: OrderedDict[str, bytes] = OrderedDict()

    def keep(self, name: str, trace: bytes) -> None:
        """Keep one more."""
        self._kept[name] = trace
        while len(self._kept) > 1 and sum(map(len, self._kept.values())) > self._most:
            self._kept.popitem(last=False)

    def get(self, name: str) -> bytes | None:
        """None for one that was never kept, or no longer is."""
        return self._kept.get(name)


def create_app(
    offer: Offer, *, host: str = "127.0.0.1", at_once: int = 2, resources: Resources | None = None
) -> Starlette:
    """The server's application.

    offer: what may be chosen; host: what it listens on; at_once: questions under way at most; resources: live objects
    in place of what settings name. Setting its `state.ending` ends what is under way.
    """
    page = Page(offer, at_once, resources)
    routes = [
        Route("/", page.page),
        Route("/ui.css", page.style),
        Route("/ui.js", page.script),
        Route("/form/{graph}", page.form),
        Route("/ask", page.ask, methods=["POST"]),
        Route("/runs/{name}", page.run),
        Route("/runs/{name}/trace.jsonl", page.trace),
    ]
    app = Starlette(routes=routes, middleware=[Middleware(Guard, host=host)])
    app.state.ending = page.ending
    return app


class Page:
    """What is behind the routes."""

    def __init__(self, offer: Offer, at_once: int, resources: Resources | None) -> None:
        """See `create_app`."""
        self._offer, self._at_once, self._resources = offer, at_once, resources
        self._graphs: dict[str, Graph] = {}
        self._under_way = 0
        self._traces = Traces()
        self.ending = asyncio.Event()
        self.ask = _Endpoint(self._ask)

    def page(self, request: Request) -> Response:
        """The page, with the form of the first graph."""
        return HTMLResponse(
            render(
                "page.jinja",
                graphs=graph_names(),
                form=form_of(self._graph(FIRST), self._offer),
                longest=LONGEST_QUESTION,
                version=__version__,
            )
        )

    def style(self, request: Request) -> Response:
        """The trace page's style and what the page has beyond."""
        return Response(render("page.css") + render("ui.css"), media_type="text/css")

    def script(self, request: Request) -> Response:
        """The page's script."""
        return Response(render("ui.js"), media_type="text/javascript")

    def form(self, request: Request) -> Response:
        """The form of a graph."""
        try:
            form = form_of(self._graph(request.path_params["graph"]), self._offer)
        except UserFault as fault:
            return PlainTextResponse(str(fault), status_code=404)
        return HTMLResponse(render("form.jinja", form=form))

    def run(self, request: Request) -> Response:
        """The full trace page of a question."""
        name = request.path_params["name"]
        if (trace := self._traces.get(name)) is None:
            return _gone()
        recording = assembled(Path(name), trace.splitlines(keepends=True))
        return HTMLResponse(trace_page.render(recording), headers={"Content-Security-Policy": TRACE_POLICY})

    def trace(self, request: Request) -> Response:
        """The trace as `dubito trace` reads it."""
        if (trace := self._traces.get(request.path_params["name"])) is None:
            return _gone()
        headers = {"Content-Disposition": 'attachment; filename="trace.jsonl"'}
        return Response(trace, media_type="application/jsonl", headers=headers)

    async def _ask(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            asked = await self._asked(await _body(Request(scope, receive)))
            self._check_room()
        except Refused as no:
            await JSONResponse({"error": str(no)}, status_code=no.status)(scope, receive, send)
            return
        except ClientDisconnect:
            return
        self._under_way += 1
        try:
            await _until_any(self._tell(asked, send), _gone_away(receive), self.ending.wait())
        finally:
            self._under_way -= 1

    async def _asked(self, body: bytes) -> Asked:
        """What is asked; `Refused` where it cannot be."""
        try:
            given = _Given.model_validate_json(body)
        except ValidationError as fault:
            raise Refused(400, "The request is not one of this page: load it anew.") from fault
        question = _checked(given.question)
        try:
            graph = await asyncio.to_thread(self._graph, given.graph)
            context = context_for(graph, {}, [f"{name}={value}" for name, value in given.settings.items()])
            self._offer.check(context)
            return Asked(secrets.token_urlsafe(16), graph, question, context, _more(graph, given.answers))
        except Forbidden as fault:
            raise Refused(403, str(fault)) from fault
        except UserFault as fault:
            raise Refused(400, str(fault)) from fault

    async def _tell(self, asked: Asked, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            async with aclosing(asked.messages()) as messages:
                async for message in messages:
                    if message.kind in {"done", "fault"}:  # which speak of it
                        self._traces.keep(asked.name, asked.trace)
                    event = f"event: {message.kind}\ndata: {json.dumps(message.data)}\n\n"
                    await send({"type": "http.response.body", "body": event.encode(), "more_body": True})
        finally:
            if trace := asked.trace:  # of one that was stopped, too
                self._traces.keep(asked.name, trace)
            await send({"type": "http.response.body", "body": b""})

    def _check_room(self) -> None:
        if self._under_way >= self._at_once:
            few = counted(self._at_once, "question")
            raise Refused(429, f"No more than {few} can be under way here at once: wait until one is answered.")

    def _graph(self, name: str) -> Graph:
        if name not in self._graphs:
            self._graphs[name] = graph_named(name, self._resources)
        return self._graphs[name]


class _Endpoint:
    """An endpoint that sees the connection itself."""

    def __init__(self, answer: Any) -> None:  # noqa: ANN401 - an ASGI application
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._answer(scope, receive, send)


async def _until_any(*work: Coroutine[Any, Any, object]) -> None:
    """Run all of it until the first is done, and end the others."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in done:
        task.result()


async def _gone_away(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _body(request: Request) -> bytes:
    """The body of a request of the page's own script."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise Refused(415, "A question is sent as JSON, with the content type application/json.")
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > LONGEST_BODY:
            raise Refused(413, _too_long())
    return body


def _checked(question: str) -> str:
    question = question.strip()
    if not question:
        raise Refused(400, "The question is empty: write one.")
    if len(question) > LONGEST_QUESTION:
        raise Refused(413, _too_long())
    try:
        question.encode()
    except UnicodeEncodeError as fault:
        raise Refused(400, "The question is not UTF-8 text.") from fault
    return question


def _too_long() -> str:
    return f"The question is too long: it may have {LONGEST_QUESTION:,} characters."


def _more(graph: Graph, answers: list[str]) -> Mapping[str, Any]:
    """The right answers, for the graph that takes them."""
    found = [one for one in (answer.strip() for answer in answers) if one]
    if "answers" not in graph.get_input_jsonschema()["properties"]:
        return {}
    if not found:
        raise Refused(400, f"{graph.name} measures against right answers: write at least one.")
    if len(found) > MOST_ANSWERS:
        raise Refused(400, f"A question may come with {MOST_ANSWERS} right answers: leave some out.")
    return {"answers": found}


def _gone() -> Response:
    return PlainTextResponse("This run is not kept here (any more): ask its question again.", status_code=404)
