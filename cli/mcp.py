"""`dubito mcp`: graphs as tools of an MCP client, such as an IDE, a desktop assistant or an agent."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Annotated

import typer

from ..errors import UserFault, either, extra_command
from ..graphs.registry import graph_names
from ..render.screen import working
from . import completion
from .exits import INTERRUPTED, handling
from .options import Assignments, ConfigFile, EverybodyMayAsk, QuestionsAtOnce, with_graph_options
from .ui import check_reach, listener, serve_until_interrupted, url_of

DEFAULT_TOOLS = ("vanilla_rag", "df_rag", "dense_rag")
"""The quick answer, the answer from varied documents, and the answer that knows how certain it is."""

EXAMPLES = (
    "dubito mcp --corpus notes/ --llm ollama:llama3.1",
    'dubito mcp --graph dense_rag --corpus papers.index --documents "Answers from our papers on batteries."',
    "dubito mcp --graph papers=dense_rag:corpus=papers.index --graph notes=vanilla_rag:corpus=notes/,k=3",
    "dubito mcp --corpus notes/ --port 8710",
)


@with_graph_options
def mcp(
    *,
    graph: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GRAPH",
            help=f"A graph to offer, repeatable, of {either(graph_names())}; NAME=GRAPH:setting=value,... names the "
            f"tool and gives it settings of its own.  [default: {', '.join(DEFAULT_TOOLS)}]",
            autocompletion=completion.graphs,
        ),
    ] = None,
    settings: Mapping[str, str | None],
    assignments: Assignments = None,
    documents: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="What the documents are and when to ask, for the model of the client."),
    ] = None,
    at_once: QuestionsAtOnce = 4,
    port: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            max=65535,
            help="Serve over streamable HTTP on this port, 0 for any, in place of standard input and output.",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="The address to listen on with --port; see --everybody-may-ask.")
    ] = "127.0.0.1",
    everybody_may_ask: EverybodyMayAsk = False,
    config_file: ConfigFile = None,
) -> None:
    """Offer graphs as tools to an MCP client, which starts this command itself, or reaches it at --port.

    The tools take a question and return the answer with its evidence, uncertainty, warnings and cost. All settings are
    given here or in the configuration: the client chooses none.
    """
    if find_spec("mcp") is None:
        raise UserFault(f"dubito mcp runs on the package mcp: run `{extra_command('mcp')}`.")
    if port is None and (host != "127.0.0.1" or everybody_may_ask):
        raise UserFault("--host and --everybody-may-ask are for HTTP: add --port N.")
    check_reach(host, everybody_may_ask=everybody_may_ask)
    with working("loading", as_json=True):  # standard output belongs to the protocol
        from ..graphs.registry import context_type, graph_named  # noqa: PLC0415 - keeps `--help` quick
        from ..resources.opening import check_corpus, open_chat_model  # noqa: PLC0415
        from ..state.mixins import CorpusContext  # noqa: PLC0415
        from ..ui import mcp_server  # noqa: PLC0415 - an extra
        from .evaluating import systems_of  # noqa: PLC0415

        tools: list[mcp_server.GraphTool] = []
        for system in systems_of(graph or DEFAULT_TOOLS, settings, assignments or []):
            asked = graph_named(system.graph)
            if (name := system.label) in [tool.name for tool in tools]:
                raise UserFault(f"Two tools are named {name}: write NAME={system.graph} to name one of them.")
            context = context_type(asked).unchecked(system.context)
            tools.append(mcp_server.GraphTool(name, asked, context, *([documents] if documents else [])))
        for context in [tool.context for tool in tools]:
            if isinstance(context, CorpusContext):
                check_corpus(context.corpus)
            open_chat_model(context.llm)  # the name is checked; weights and servers wait for the first question
        offered = mcp_server.GraphTools(tools, at_once)
    names = ", ".join(tool.name for tool in tools)
    if port is None:
        if sys.stdin.isatty():
            sys.stderr.write(f"An MCP client starts this command and talks to {names} here (Ctrl-C ends it).\n")
        # reading standard input cannot be cancelled
        with handling((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), lambda *_: os._exit(INTERRUPTED)):
            asyncio.run(offered.serve_stdio())
        return
    with listener(host, port) as listening:
        serve_until_interrupted(offered.http_app(host), listening, f"MCP tools {names} at {url_of(listening)}/mcp")
