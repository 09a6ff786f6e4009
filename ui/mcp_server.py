"""Graphs as tools of an MCP client, such as an IDE or an agent: question in; answer, evidence and uncertainty out."""

from __future__ import annotations

import asyncio
import re
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from mcp.types import CallToolRequestParams, CallToolResult, ListToolsResult, TextContent, Tool, ToolAnnotations
from pydantic import TypeAdapter
from starlette.applications import Starlette

from .. import __version__
from ..errors import DubitoError, UserFault, either, sentence_of
from ..graphs.tool import FROM_DOCUMENTS, ONE_QUESTION, OWN_LIMITS, Ask, words_for_agent
from ..presenters.presenter import presenter_of
from ..render.facts import words_of
from ..state.flow import Answered
from ..state.mixins import CorpusContext
from ..traces.events import MODES, EventReader, ModelCall
from ..traces.steps import Step, Steps
from .guard import Guard, TokenCheck

if TYPE_CHECKING:
    from ..graphs.registry import Graph
    from ..state.context import BaseContext

Report = Callable[[float, float | None, str | None], Awaitable[None]]
"""Sends the client a notification of progress: a number that grows, the total if it is known, words."""

QUIET_S = 15.0
"""Seconds without a change after which the client is told the running step again: clients give up a silent tool."""

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True)
class GraphTool:
    """A graph under the name of its tool. documents: says in a sentence what the corpus is and when to ask."""

    name: str
    graph: Graph
    context: BaseContext
    documents: str = FROM_DOCUMENTS

    def __post_init__(self) -> None:
        """Raise `UserFault` for a name that no client accepts."""
        if not _NAME.fullmatch(self.name):
            raise UserFault(
                f"'{self.name}' cannot be the name of a tool: give it one of letters, digits and _, as in "
                f"--graph library={self.graph.name}:k=3."
            )

    def listed(self) -> Tool:
        """The tool as the client's model reads it."""
        presenter = presenter_of(self.graph.name)
        documents = self.documents if isinstance(self.context, CorpusContext) else ""
        return Tool(
            name=self.name,
            title=presenter.name,
            description=" ".join(part for part in (documents, ONE_QUESTION, presenter.about) if part),
            input_schema={**Ask.model_json_schema(), "additionalProperties": False},
            output_schema=_output_schema(),
            annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False),
        )

    async def answer(self, question: str, report: Report) -> CallToolResult:
        """Run the graph and report its steps."""
        reader, steps = EventReader(self.graph), Steps(self.graph.name, self.graph, self.context)
        progress = _Progress(report)
        keep_telling = asyncio.create_task(progress.repeat())
        try:
            async for part in self.graph.astream(
                {"question": question},
                OWN_LIMITS,
                context=self.context,
                stream_mode=MODES,
                subgraphs=True,
                version="v2",
            ):
                event = reader.event(part, time.monotonic())
                step = steps.on(event)
                if step is not None and not isinstance(event, ModelCall):
                    await progress.tell(step)
        finally:
            keep_telling.cancel()
            with suppress(asyncio.CancelledError):
                await keep_telling
        content = TextContent(text=words_for_agent(reader.output))
        return CallToolResult(
            content=[content], structured_content={name: reader.output[name] for name in Answered.__annotations__}
        )


class _Progress:
    """Tells the client the step that runs, when its words change, and again while nothing changes."""

    def __init__(self, report: Report) -> None:
        self._report, self._sent, self._words = report, 0, "waiting"

    async def tell(self, step: Step) -> None:
        words, done = words_of(step), step.progress
        if step.running and done is not None:
            words = f"{words}, {done.done:,} of {done.total:,}"
        elif not step.running and not words:
            return
        name = " / ".join([*step.path, step.node])
        if (told := f"{name}: {words}" if words else name) != self._words:
            self._words = told
            await self._send()

    async def repeat(self) -> None:
        while True:
            await asyncio.sleep(QUIET_S)
            await self._send()

    async def _send(self) -> None:
        self._sent += 1
        await self._report(self._sent, None, self._words)


class GraphTools:
    """The tools of a server, and the questions that run. `server` is what the package mcp serves.

    A refused question and a model that does not answer are errors of the tool, each with its whole sentence.
    """

    def __init__(self, tools: Sequence[GraphTool], at_once: int) -> None:
        """at_once: questions at a time; more of them wait."""
        self._tools = {tool.name: tool for tool in tools}
        self._free = asyncio.Semaphore(at_once)
        self._running: set[asyncio.Task[CallToolResult]] = set()
        self._ends = False
        self.server: Server[Any] = Server(
            "dubito", version=__version__, on_list_tools=self._list, on_call_tool=self._call
        )

    async def serve_stdio(self) -> None:
        """Serve one client over standard input and output until it closes them."""
        async with stdio_server() as (requests, replies):
            await self.server.run(requests, replies, self.server.create_initialization_options())

    def http_app(self, host: str) -> Starlette:
        """The server over streamable HTTP at /mcp, behind the checks of `dubito ui`. host: its address."""
        checked_by_guard = TransportSecuritySettings(enable_dns_rebinding_protection=False)
        app = self.server.streamable_http_app(host=host, transport_security=checked_by_guard)
        app.add_middleware(TokenCheck)
        app.add_middleware(Guard, host=host)
        app.state.end_runs = self.end_runs
        return app

    def end_runs(self) -> None:
        """Stop the running questions, and tell their clients."""
        self._ends = True
        for task in self._running:
            task.cancel()

    async def _list(self, context: object, params: object) -> ListToolsResult:
        return ListToolsResult(tools=[tool.listed() for tool in self._tools.values()])

    async def _call(self, context: Any, params: CallToolRequestParams) -> CallToolResult:  # noqa: ANN401 - the package's
        task = asyncio.create_task(self._answer(params, context.session.report_progress))
        self._running.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            if not self._ends:
                raise  # the client went away
            return _error("The server is being stopped: ask again when it runs.")
        except Exception as fault:
            if not isinstance(fault, DubitoError):
                traceback.print_exception(fault, file=sys.stderr)  # clients keep what a server writes there
            return _error(sentence_of(fault))
        finally:
            self._running.discard(task)

    async def _answer(self, params: CallToolRequestParams, report: Report) -> CallToolResult:
        if (tool := self._tools.get(params.name)) is None:
            raise UserFault(f"There is no tool named '{params.name}': use {either(list(self._tools))}.")
        question = _question(params)
        async with self._free:
            return await tool.answer(question, report)


def _error(sentence: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=sentence)], is_error=True)


def _question(params: CallToolRequestParams) -> str:
    given = params.arguments or {}
    question = given.get("question")
    if not isinstance(question, str) or len(given) > 1:
        names = " and ".join(given) or "nothing"
        raise UserFault(f"{params.name} takes one argument, a question as text, and got {names}: give question alone.")
    return question


@cache
def _output_schema() -> dict[str, Any]:
    return TypeAdapter(Answered).json_schema()
