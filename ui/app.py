"""The server of the page: the page, its form, the questions, and their traces."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
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
from ..graphs.chat import chat_form
from ..graphs.context_from_text import context_for
from ..graphs.registry import DEFAULT_GRAPH, graph_named, takes_answers
from ..presenters.words import counted
from ..render import trace_page
from ..resources.allowlist import AllowList, Forbidden, of_this_run
from ..resources.resources import shared_resources
from ..settings import settings
from ..traces.recording import Recording, assembled
from .form import choices, example_questions, form_of
from .guard import Guard, TokenCheck
from .history import History, is_name, new_name
from .request import PageEvent, Request, render, shown_again
from .uploads import ENDINGS, OWN_FILES, Limits, Uploads, shown_size

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

MOST_TURNS = 20
"""Earlier questions of a conversation that a follow-up may refer to."""

COOKIE = "dubito_browser"
"""Holds the name under which a browser's questions are kept."""

TRACE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

TOO_LONG = f"The question is too long: it may have {LONGEST_QUESTION:,} characters."


class QuestionBody(BaseModel):
    """The body of a question, as the page's script sends it.

    follows: the runs of the conversation so far, the earliest first, if the question follows up on them.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    graph: str
    question: str
    settings: dict[str, str] = Field(default_factory=dict)
    answers: list[str] = Field(default_factory=list)
    follows: list[str] = Field(default_factory=list, max_length=MOST_TURNS)


def create_app(
    allowed: AllowList,
    *,
    host: str = "127.0.0.1",
    at_once: int = 2,
    history: Path | None = None,
    uploads: Path | None = None,
    limits: Limits | None = None,
    resources: Resources | None = None,
) -> Starlette:
    """The server's application.

    allowed: the resources that a request may name; host: the address of the server; at_once: the maximum number of
    questions at a time; history: the folder for questions and traces, by default in the cache folder; uploads: the
    folder for files that browsers upload, by default none may, and limits: how large these may be; resources: live
    objects that replace the names in the settings. The application's `state.end_runs` ends the running questions.
    """
    kept = History(history or settings().cache / "history")
    forget = (resources or shared_resources()).forget
    files = None if uploads is None else Uploads(uploads, limits or Limits(), forget)
    page = Page(allowed, at_once, kept, files, resources)
    routes = [
        Route("/", page.page),
        Route("/ui.css", page.style),
        Route("/ui.js", page.script),
        Route("/form/{graph}", page.form),
        Route("/ask", page.ask, methods=["POST"]),
        Route("/history", page.asked),
        Route("/runs/{name}", page.run),
        Route("/runs/{name}", page.delete, methods=["DELETE"]),
        Route("/runs/{name}/events", page.events),
        Route("/runs/{name}/trace.jsonl", page.trace),
        *(Files(files).routes() if files else []),
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

    def __init__(
        self,
        allowed: AllowList,
        at_once: int,
        history: History,
        uploads: Uploads | None,
        resources: Resources | None,
    ) -> None:
        self._allowed, self._at_once, self._resources = allowed, at_once, resources
        self._history, self._uploads = history, uploads
        self._running: set[asyncio.Task[None]] = set()

    def page(self, request: HTTPRequest) -> Response:
        """The page, with the form of the default graph."""
        response = HTMLResponse(
            render(
                "page.jinja",
                choices=choices(),
                form=form_of(graph_named(DEFAULT_GRAPH), self._allowed),
                examples=example_questions(),
                longest=LONGEST_QUESTION,
                most_turns=MOST_TURNS,
                uploads=self._uploads and self._uploads.limits,
                shown_size=shown_size,
                endings=ENDINGS,
                version=__version__,
            )
        )
        _remember(_browser(request), request, response)
        return response

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

    def asked(self, request: HTTPRequest) -> Response:
        """The list of this browser's questions."""
        return HTMLResponse(render("history.jinja", asked=self._history.asked(_browser(request))))

    def run(self, request: HTTPRequest) -> Response:
        """The trace page of a question."""
        try:
            page = trace_page.render(self._recording(_browser(request), request.path_params["name"]))
        except UserFault as fault:
            return PlainTextResponse(str(fault), status_code=409)
        return HTMLResponse(page, headers={"Content-Security-Policy": TRACE_POLICY})

    def events(self, request: HTTPRequest) -> Response:
        """The events of a question that was asked before, as `ask` gives them."""
        name = request.path_params["name"]
        try:
            events = list(shown_again(name, self._recording(_browser(request), name)))
        except UserFault as fault:
            return JSONResponse({"error": str(fault)}, status_code=409)
        except HTTPException as fault:
            return _refusal(fault)
        return Response("".join(map(_event_text, events)), media_type="text/event-stream")

    def trace(self, request: HTTPRequest) -> Response:
        """The trace as `dubito trace` reads it."""
        headers = {"Content-Disposition": 'attachment; filename="trace.jsonl"'}
        trace = self._history.trace(_browser(request), request.path_params["name"])
        return Response(trace, media_type="application/jsonl", headers=headers)

    def delete(self, request: HTTPRequest) -> Response:
        """Delete a question and its trace."""
        self._history.delete(_browser(request), request.path_params["name"])
        return Response(status_code=204)

    def _recording(self, browser: str, name: str) -> Recording:
        return assembled(Path(name), self._history.trace(browser, name).splitlines(keepends=True))

    async def ask(self, http: HTTPRequest) -> Response:
        """Run a question and stream its events; a refusal is a status and one sentence."""
        browser = _browser(http)
        try:
            graph, question, context, given, corpus = await self._question(await _body(http), browser)
            end = await asyncio.to_thread(self._uploads.lend, corpus) if self._uploads and corpus else None
        except (UserFault, HTTPException) as fault:
            return _refusal(fault)
        if len(self._running) >= self._at_once:
            if end:
                await asyncio.to_thread(end)
            most = counted(self._at_once, "question")
            sentence = f"No more than {most} can be under way here at once: wait until one is answered."
            return JSONResponse({"error": sentence}, status_code=429)
        request = Request(new_name(), graph, question, context, given)
        self._running.add(request.task)
        request.task.add_done_callback(self._running.discard)
        response = _EventStream(request, lambda trace: self._history.keep(browser, request.name, trace), end)
        _remember(browser, http, response)
        return response

    async def _question(self, body: bytes, browser: str) -> tuple[Graph, str, BaseContext, Mapping[str, Any], str]:
        """The graph, the question, the context, the graph's input, and the corpus if it is the browser's own files.

        Raises for a request that is refused.
        """
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
        allowed, typed, own = self._allowed, dict(given.settings), ""
        if self._uploads and typed.get("corpus") == OWN_FILES:
            # the one path that such a question may name; it comes from the browser's cookie and not from the request
            own = typed["corpus"] = await asyncio.to_thread(self._uploads.corpus, browser)
            allowed = replace(allowed, added={**allowed.added, "corpus": [own]})
        context = context_for(graph, {}, [f"{name}={value}" for name, value in typed.items()])
        allowed.check(context)
        of_this_run.set(allowed)  # for what starts in this request
        if turns := await asyncio.to_thread(self._turns, browser, given.follows):
            if takes_answers(graph):
                raise UserFault(f"A question to {graph.name} stands alone: ask it without following up.")
            graph = await asyncio.to_thread(chat_form, graph.name, self._resources)
            return graph, question, context, {"messages": [*turns, {"role": "user", "content": question}]}, own
        return graph, question, context, {"question": question, **_answers(graph, given.answers)}, own

    def _turns(self, browser: str, names: Sequence[str]) -> list[dict[str, str]]:
        """The questions and answers of earlier runs as messages; runs without an answer are left out."""
        turns = []
        for name in names:
            recording = self._recording(browser, name)
            # the plain answer: marks would name passages that the next prompts do not show
            if answer := str((recording.output or {}).get("answer") or "").strip():
                turns += [{"role": "user", "content": recording.question}, {"role": "assistant", "content": answer}]
        return turns

    def end_runs(self) -> None:
        """Stop the running questions."""
        for task in self._running:
            task.cancel()


class Files:
    """The endpoints for the files of a browser."""

    def __init__(self, uploads: Uploads) -> None:
        self._uploads = uploads

    def routes(self) -> list[Route]:
        """The list, an upload, and a deletion."""
        return [
            Route("/files", self.shown),
            Route("/files", self.upload, methods=["PUT"]),
            Route("/files", self.delete, methods=["DELETE"]),
        ]

    def shown(self, request: HTTPRequest) -> Response:
        """The list of this browser's files."""
        files = self._uploads.files(_browser(request))
        return HTMLResponse(render("files.jinja", files=files, shown_size=shown_size))

    async def upload(self, request: HTTPRequest) -> Response:
        """Keep a file of this browser; a refusal is a status and one sentence."""
        browser, response = _browser(request), Response(status_code=204)
        length, name = request.headers.get("content-length", ""), request.query_params.get("name", "")
        try:
            await self._uploads.add(browser, name, request.stream(), int(length) if length.isdecimal() else 0)
        except (UserFault, HTTPException) as fault:
            return _refusal(fault)
        _remember(browser, request, response)
        return response

    def delete(self, request: HTTPRequest) -> Response:
        """Delete a file of this browser."""
        try:
            self._uploads.delete(_browser(request), request.query_params.get("name", ""))
        except HTTPException as fault:
            return _refusal(fault)
        return Response(status_code=204)


class _EventStream(StreamingResponse):
    """The events of a run, as server-sent events. The run ends with the connection; its trace is kept.

    end: is called after the run.
    """

    def __init__(self, request: Request, keep: Callable[[bytes], None], end: Callable[[], None] | None) -> None:
        super().__init__(self._lines(), media_type="text/event-stream")
        self._request, self._keep, self._end = request, keep, end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._request.task.cancel()
            await asyncio.wait([self._request.task])
            await self._keep_trace()
            if self._end:
                await asyncio.to_thread(self._end)

    async def _lines(self) -> AsyncIterator[str]:
        async for event in self._request.events():
            if event.kind in {"done", "fault"}:  # they link to the trace
                await self._keep_trace()
            yield _event_text(event)

    async def _keep_trace(self) -> None:
        if trace := self._request.trace:
            await asyncio.to_thread(self._keep, trace)


def _event_text(event: PageEvent) -> str:
    return f"event: {event.kind}\ndata: {json.dumps(event.data)}\n\n"


def _refusal(fault: UserFault | HTTPException) -> Response:
    if isinstance(fault, HTTPException):
        return JSONResponse({"error": fault.detail}, status_code=fault.status_code)
    return JSONResponse({"error": str(fault)}, status_code=403 if isinstance(fault, Forbidden) else 400)


def _browser(request: HTTPRequest) -> str:
    """The name of the browser; a new one for a browser that has none yet."""
    known = request.cookies.get(COOKIE, "")
    return known if is_name(known) else new_name()


def _remember(browser: str, request: HTTPRequest, response: Response) -> None:
    """Have the browser keep its name."""
    if request.cookies.get(COOKIE) != browser:
        secure = request.url.scheme == "https"
        response.set_cookie(COOKIE, browser, max_age=31_536_000, httponly=True, samesite="strict", secure=secure)


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
