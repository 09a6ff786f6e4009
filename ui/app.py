"""The server of the page: the page, its form, the questions, and their traces."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HTTPRequest
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from .. import __version__
from ..errors import UserFault
from ..graphs.context_from_text import context_for
from ..graphs.registry import DEFAULT_GRAPH, graph_named, graph_names, takes_answers
from ..presenters.words import counted
from ..render import trace_page
from ..resources.allowlist import AllowList, Forbidden
from ..traces.recording import assembled
from .form import form_of
from .guard import Guard, TokenCheck
from .request import Request, render

if TYPE_CHECKING:
    from ..graphs.registry import Graph
    from ..resources.resources import Resources
    from ..state.context import BaseContext

LONGEST_QUESTION = 8_000
"""Characters."""

LONGEST_BODY = 200_000
"""Bytes of a request."""

MOST_ANSWERS = 100
"""Right answers of a question."""

KEPT_BYTES = 64_000_000
"""Size of all traces in memory; beyond it the oldest are removed."""

TRACE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

TOO_LONG = f"The question is too long: it may have {LONGEST_QUESTION:,} characters."


class QuestionBody(BaseModel):
    """The body of a question, as the page's script sends it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    graph: str
    question: str
    settings: dict[str, str] = Field(default_factory=dict)
    answers: list[str] = Field(default_factory=list)


class Traces:
    """The traces of the last questions, in memory, by names that cannot be guessed."""

    def __init__(self, most: int = KEPT_BYTES) -> None:
        """most: bytes of all traces; the last trace stays even if it is longer."""
        self._most = most
        self._traces: dict[str, bytes] = {}

    def keep(self, name: str, trace: bytes) -> None:
        """Keep a trace, and remove the oldest beyond the limit."""
        self._traces[name] = trace
        while len(self._traces) > 1 and sum(map(len, self._traces.values())) > self._most:
            del self._traces[next(iter(self._traces))]

    def get(self, name: str) -> bytes:
        """A trace; HTTP status 404 if it was never kept or was removed."""
        if name not in self._traces:
            raise HTTPException(404, "This run is not kept here (any more): ask its question again.")
        return self._traces[name]


def create_app(
    allowed: AllowList, *, host: str = "127.0.0.1", at_once: int = 2, resources: Resources | None = None
) -> Starlette:
    """The server's application.

    allowed: the resources that a request may name; host: the address of the server; at_once: the maximum number of
    questions at a time; resources: live objects that replace the names in the settings. The application's
    `state.end_runs` ends the running questions.
    """
    page = Page(allowed, at_once, resources)
    routes = [
        Route("/", page.page),
        Route("/ui.css", page.style),
        Route("/ui.js", page.script),
        Route("/form/{graph}", page.form),
        Route("/ask", page.ask, methods=["POST"]),
        Route("/runs/{name}", page.run),
        Route("/runs/{name}/trace.jsonl", page.trace),
        Route("/ok", lambda request: JSONResponse({"ok": True})),  # for health checks, as LangGraph's server has it
    ]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(Guard, host=host), Middleware(TokenCheck)],
        exception_handlers={ClientDisconnect: lambda request, fault: Response()},
    )
    app.state.end_runs = page.end_runs
    return app


class Page:
    """The endpoints of the routes."""

    def __init__(self, allowed: AllowList, at_once: int, resources: Resources | None) -> None:
        self._allowed, self._at_once, self._resources = allowed, at_once, resources
        self._running: set[asyncio.Task[None]] = set()
        self._traces = Traces()

    def page(self, request: HTTPRequest) -> Response:
        """The page, with the form of the default graph."""
        return HTMLResponse(
            render(
                "page.jinja",
                graphs=graph_names(),
                form=form_of(graph_named(DEFAULT_GRAPH), self._allowed),
                longest=LONGEST_QUESTION,
                version=__version__,
            )
        )

    def style(self, request: HTTPRequest) -> Response:
        """The style of the trace page, and that of this page."""
        return Response(render("page.css") + render("ui.css"), media_type="text/css")

    def script(self, request: HTTPRequest) -> Response:
        """The page's script."""
        return Response(render("ui.js"), media_type="text/javascript")

    def form(self, request: HTTPRequest) -> Response:
        """The form of a graph."""
        try:
            form = form_of(graph_named(request.path_params["graph"]), self._allowed)
        except UserFault as fault:
            return PlainTextResponse(str(fault), status_code=404)
        return HTMLResponse(render("form.jinja", form=form))

    def run(self, request: HTTPRequest) -> Response:
        """The trace page of a question."""
        name = request.path_params["name"]
        recording = assembled(Path(name), self._traces.get(name).splitlines(keepends=True))
        return HTMLResponse(trace_page.render(recording), headers={"Content-Security-Policy": TRACE_POLICY})

    def trace(self, request: HTTPRequest) -> Response:
        """The trace as `dubito trace` reads it."""
        headers = {"Content-Disposition": 'attachment; filename="trace.jsonl"'}
        trace = self._traces.get(request.path_params["name"])
        return Response(trace, media_type="application/jsonl", headers=headers)

    async def ask(self, http: HTTPRequest) -> Response:
        """Run a question and stream its events; a refusal is a status and one sentence."""
        try:
            graph, question, context, answers = await self._question(await _body(http))
        except UserFault as fault:
            return JSONResponse({"error": str(fault)}, status_code=403 if isinstance(fault, Forbidden) else 400)
        except HTTPException as refusal:
            return JSONResponse({"error": refusal.detail}, status_code=refusal.status_code)
        if len(self._running) >= self._at_once:
            most = counted(self._at_once, "question")
            sentence = f"No more than {most} can be under way here at once: wait until one is answered."
            return JSONResponse({"error": sentence}, status_code=429)
        request = Request(secrets.token_urlsafe(16), graph, question, context, answers)
        self._running.add(request.task)
        request.task.add_done_callback(self._running.discard)
        return _EventStream(request, self._traces)

    async def _question(self, body: bytes) -> tuple[Graph, str, BaseContext, Mapping[str, Any]]:
        """The graph, the question, the context and the right answers; raises for a request that is refused."""
        try:
            given = QuestionBody.model_validate_json(body)
        except ValidationError as fault:
            raise UserFault("The request is not from this version of the page: reload the page.") from fault
        question = given.question.strip()
        if not question:
            raise UserFault("The question is empty: write one.")
        if len(question) > LONGEST_QUESTION:
            raise HTTPException(413, TOO_LONG)
        graph = await asyncio.to_thread(graph_named, given.graph, self._resources)
        context = context_for(graph, {}, [f"{name}={value}" for name, value in given.settings.items()])
        self._allowed.check(context)
        return graph, question, context, _answers(graph, given.answers)

    def end_runs(self) -> None:
        """Stop the running questions."""
        for task in self._running:
            task.cancel()


class _EventStream(StreamingResponse):
    """The events of a run, as server-sent events. The run ends with the connection; its trace is kept."""

    def __init__(self, request: Request, traces: Traces) -> None:
        super().__init__(self._lines(), media_type="text/event-stream")
        self._request, self._traces = request, traces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._request.task.cancel()
            await asyncio.wait([self._request.task])
            self._keep_trace()

    async def _lines(self) -> AsyncIterator[str]:
        async for event in self._request.events():
            if event.kind in {"done", "fault"}:  # they link to the trace
                self._keep_trace()
            yield f"event: {event.kind}\ndata: {json.dumps(event.data)}\n\n"

    def _keep_trace(self) -> None:
        if trace := self._request.trace:
            self._traces.keep(self._request.name, trace)


async def _body(request: HTTPRequest) -> bytes:
    """The body of a request of the page's own script."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, "Send the question as JSON, with the content type application/json.")
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > LONGEST_BODY:
            raise HTTPException(413, TOO_LONG)
    return body


def _answers(graph: Graph, texts: list[str]) -> Mapping[str, Any]:
    """The right answers as the graph's input; empty for a graph that takes none."""
    if not takes_answers(graph):
        return {}
    answers = [answer for text in texts if (answer := text.strip())]
    if not answers:
        raise UserFault(f"{graph.name} measures against right answers: write at least one.")
    if len(answers) > MOST_ANSWERS:
        raise UserFault(f"A question may come with {MOST_ANSWERS} right answers: leave some out.")
    return {"answers": answers}
