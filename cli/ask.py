"""`dubito ask`: put a question to a graph and watch how the answer comes out."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Annotated

import typer

from ..errors import UserFault, either
from ..graphs.registry import graph_named, graph_names
from . import completion
from .context import context_for
from .options import Chunker, Corpus, Encoder, K, Llm, Preset
from .screen import console, help_lines, print_json

EXAMPLES = help_lines(
    "Examples",
    'dubito ask "Who founded the newspaper that first printed The Salt Road?"',
    'dubito ask "..." --corpus notes/ --set sampling=binary --trace run.jsonl',
    'dubito ask "..." --graph vanilla_rag -k 10 --set selection=mmr --json',
    'dubito ask "..." --graph dense_rag --set judge=nli:my-cross-encoder',
    'dubito ask "..." --graph sunar --set budget=32 --set penalty=none',
    'dubito ask "..." --graph seakr --set samples=10 --set threshold=-6',
    'dubito ask "..." --graph seper --answer "Beatrix Hale"',
    'dubito ask "..." --llm "vllm:http://127.0.0.1:8000/v1#my-model"',
    "cat question.txt | dubito ask -",
)

LONGEST_STDIN = 1_000_000
"""Characters of a question that is piped in."""


def ask(
    question: Annotated[
        str | None, typer.Argument(metavar="QUESTION", help="The question; '-' or nothing reads it from a pipe.")
    ] = None,
    *,
    graph: Annotated[
        str, typer.Option(metavar="NAME", help=f"{either(graph_names())}.", autocompletion=completion.graphs)
    ] = completion.DEFAULT,
    corpus: Corpus = None,
    llm: Llm = None,
    encoder: Encoder = None,
    chunker: Chunker = None,
    preset: Preset = None,
    k: K = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Any other setting of the graph, repeatable; a wrong name lists them.",
            autocompletion=completion.settings,
        ),
    ] = None,
    answers: Annotated[
        list[str] | None,
        typer.Option("--answer", metavar="TEXT", help="A right answer, for --graph seper; repeatable."),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write every step and model call to this .jsonl file as it happens."),
    ] = None,
    otlp: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Send the run's spans to an OpenTelemetry collector, such as Phoenix."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, faults included, and nothing else.")
    ] = False,
) -> None:
    """Ask a question and watch how the answer comes out."""
    text = _question(question)
    options = {"corpus": corpus, "llm": llm, "encoder": encoder, "chunker": chunker, "preset": preset, "k": k}
    screen = None if as_json else console()
    with screen.status("loading") if screen is not None and screen.is_interactive else contextlib.nullcontext():
        from ..models.resources import check_corpus  # noqa: PLC0415
        from ..models.telemetry import export_spans  # noqa: PLC0415
        from ..traces.run import Run  # noqa: PLC0415 - what is heavy loads when it is needed
        from .watch import follow  # noqa: PLC0415

        if otlp is not None:
            export_spans(otlp)
        chosen = graph_named(graph)
        more = {"answers": answers} if answers else {}
        if answers and "answers" not in chosen.get_input_jsonschema()["properties"]:
            raise UserFault(f"{chosen.name} takes no right answers: --answer is for --graph seper.")
        context = context_for(chosen, options, assignments or [])
        if context.looks_up:
            check_corpus(context.corpus)
        run = Run(chosen, text, context, more)
    if screen is not None:
        follow(run, trace, screen)
        return
    with contextlib.redirect_stdout(sys.stderr):
        follow(run, trace, None)
    about = {"graph": chosen.name, "question": text, "context": run.context.model_dump(mode="json")}
    print_json({**run.output, **about, "seconds": run.seconds})


def _question(given: str | None) -> str:
    """The question as it was typed or piped in."""
    if given is None or given == "-":
        if sys.stdin is None or (given is None and sys.stdin.isatty()):
            raise UserFault('There is no question: write it as dubito ask "...", or pipe it in.')
        try:
            given = sys.stdin.read(LONGEST_STDIN)
        except UnicodeDecodeError as fault:
            raise UserFault("The question that was piped in is not UTF-8 text.") from fault
    question = given.strip()
    if not question:
        raise UserFault('The question is empty: write it as dubito ask "...", or pipe it in.')
    try:
        question.encode()
    except UnicodeEncodeError as fault:
        raise UserFault("The question is not UTF-8 text.") from fault
    return question
