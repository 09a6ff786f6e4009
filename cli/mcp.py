"""`dubito mcp`: graphs as tools of an MCP client, such as an IDE, a desktop assistant or an agent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from importlib.util import find_spec
from typing import Annotated

import typer

from ..errors import UserFault, either, extra_command
from ..graphs.registry import graph_names
from ..render.screen import help_lines, working
from . import completion
from .exits import INTERRUPTED, handling
from .options import Assignments, Chunker, ConfigFile, Corpus, Encoder, K, Llm, Preset, Prompts
from .ui import check_reach, listener

DEFAULT_TOOLS = ("vanilla_rag", "df_rag", "dense_rag")
"""The quick answer, the answer from varied documents, and the answer that knows how certain it is."""

EXAMPLES = help_lines(
    "Examples",
    "dubito mcp --corpus notes/ --llm ollama:llama3.1",
    'dubito mcp --graph dense_rag --corpus papers.index --documents "Answers from our papers on batteries."',
    "dubito mcp --graph papers=dense_rag:corpus=papers.index --graph notes=vanilla_rag:corpus=notes/,k=3",
    "dubito mcp --corpus notes/ --port 8710",
)


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
    corpus: Corpus = None,
    llm: Llm = None,
    encoder: Encoder = None,
    chunker: Chunker = None,
    preset: Preset = None,
    prompts: Prompts = None,
    k: K = None,
    assignments: Assignments = None,
    documents: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="What the documents are and when to ask, for the model of the client."),
    ] = None,
    at_once: Annotated[
        int, typer.Option("--at-once", metavar="N", min=1, help="The maximum number of questions at a time.")
    ] = 4,
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
    everybody_may_ask: Annotated[
        bool,
        typer.Option(
            "--everybody-may-ask",
            help="Allow a --host that others can reach without a token in DUBITO_TOKEN: they may ask the models and "
            "read the corpora.",
        ),
    ] = False,
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
    options = {
        "llm": llm,
        "encoder": encoder,
        "chunker": chunker,
        "preset": preset,
        "prompts": prompts,
        "k": k,
    }
    with working("loading", as_json=True):  # standard output belongs to the protocol
        from ..graphs.registry import context_type, graph_named  # noqa: PLC0415 - keeps `--help` quick
        from ..resources.opening import check_corpus, open_chat_model  # noqa: PLC0415
        from ..state.mixins import CorpusContext  # noqa: PLC0415
        from ..ui import mcp_server  # noqa: PLC0415 - an extra
        from .evaluating import systems_of  # noqa: PLC0415

        tools: list[mcp_server.GraphTool] = []
        for system in systems_of(graph or DEFAULT_TOOLS, {**options, "corpus": corpus}, assignments or []):
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
    from ..ui.server import Server  # noqa: PLC0415 - an extra

    with listener(host, port) as listening:
        address, chosen = listening.getsockname()[:2]
        url = f"http://{f'[{address}]' if ':' in address else address}:{chosen}/mcp"
        typer.echo(f"MCP tools {names} at {url} (Ctrl-C ends it)")
        sys.stdout.flush()
        with contextlib.suppress(KeyboardInterrupt):
            Server(offered.http_app(host)).run(sockets=[listening])
