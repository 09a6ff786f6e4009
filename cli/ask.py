"""`dubito ask`: ask a graph a question and watch its steps."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from ..errors import UserFault, either
from ..graphs.context_from_text import context_for
from ..graphs.registry import DEFAULT_GRAPH, graph_named, graph_names, takes_answers
from ..render.screen import console, print_json, working
from . import completion
from .options import Answers, AsJson, Assignments, ConfigFile, Otlp, with_graph_options

EXAMPLES = (
    'dubito ask "Who founded the newspaper that first printed The Salt Road?"',
    'dubito ask "..." --corpus notes/ --set sampling=binary --trace run.jsonl',
    'dubito ask "..." --graph vanilla_rag -k 10 --set selection=mmr --json',
    'dubito ask "..." --graph dense_rag --set judge=nli:my-cross-encoder',
    'dubito ask "..." --graph seakr --set samples=10 --set retrieval_threshold=-6',
    'dubito ask "..." --graph seper --answer "Beatrix Hale"',
    'dubito ask "..." --calibration vanilla_rag.calibration.json',
    'dubito ask "..." --llm ollama:llama3.1',
    'dubito ask "..." --llm http://127.0.0.1:8000',
    "cat question.txt | dubito ask -",
)

LONGEST_STDIN = 1_000_000
"""Maximum length of a piped question, in characters."""


@with_graph_options
def ask(
    question: Annotated[
        str | None, typer.Argument(metavar="QUESTION", help="The question; '-' or no question reads it from a pipe.")
    ] = None,
    *,
    graph: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"{either(graph_names())}.  [default: {DEFAULT_GRAPH}, or the graph of --calibration]",
            autocompletion=completion.graphs,
        ),
    ] = None,
    settings: Mapping[str, str | None],
    calibration: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="A file of dubito calibrate: answers that are less certain than it allows are withheld. Its settings "
            "are taken where no other option names them.",
        ),
    ] = None,
    assignments: Assignments = None,
    answers: Answers = None,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write every step and model call to this .jsonl file during the run."),
    ] = None,
    otlp: Otlp = None,
    config_file: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Ask a question and watch the steps of the answer."""
    text = _question(question)
    with working("loading", as_json=as_json):
        from ..resources.opening import check_corpus, check_server  # noqa: PLC0415 - keeps `--help` quick

        named = [assignment.removeprefix("llm=") for assignment in assignments or [] if assignment.startswith("llm=")]
        check_server(settings["llm"] or next(iter(named), ""))  # before the imports, which take longer
        from ..resources.telemetry import export_spans  # noqa: PLC0415
        from ..state.calibration import AnswerCalibration  # noqa: PLC0415
        from ..state.mixins import CorpusContext  # noqa: PLC0415
        from ..traces.run import Run  # noqa: PLC0415
        from .watch import follow  # noqa: PLC0415

        if otlp is not None:
            export_spans(otlp)
        if calibration is not None and graph is None:
            graph = AnswerCalibration.read(calibration, DEFAULT_GRAPH).technique
        asked = graph_named(graph or DEFAULT_GRAPH)
        if takes_answers(asked) and not answers:
            raise UserFault(f'{asked.name} needs a right answer: give one with --answer "...".')
        if answers and not takes_answers(asked):
            raise UserFault(f"{asked.name} takes no right answers: leave out --answer.")
        context = context_for(asked, {**settings, "calibration": calibration}, assignments or [])
        if isinstance(context, CorpusContext):
            check_corpus(context.corpus)
        run = Run(asked, text, context, {"answers": answers} if answers else {}, not as_json or trace is not None)
    if not as_json:
        follow(run, trace, console())
        return
    with working("", as_json=True):
        follow(run, trace, None)
    request = {"graph": asked.name, "question": text, "context": run.context.model_dump(mode="json")}
    print_json({**run.output, **request, "seconds": run.seconds})


def _question(argument: str | None) -> str:
    """The question that was typed or piped."""
    text = argument
    if text is None or text == "-":
        if sys.stdin is None or (text is None and sys.stdin.isatty()):
            raise UserFault('There is no question: write it as dubito ask "...", or pipe it in.')
        try:
            text = sys.stdin.read(LONGEST_STDIN)
        except UnicodeDecodeError as fault:
            raise UserFault("The piped question is not UTF-8 text.") from fault
    question = text.strip()
    if not question:
        raise UserFault('The question is empty: write it as dubito ask "...", or pipe it in.')
    try:
        question.encode()
    except UnicodeEncodeError as fault:
        raise UserFault("The question is not UTF-8 text.") from fault
    return question
