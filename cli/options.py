"""Options of several commands."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from . import completion

Corpus = Annotated[
    str | None,
    typer.Option(metavar="PATH", envvar="DUBITO_CORPUS", help="'sample', an index folder, or a corpus file or folder."),
]
Llm = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        envvar="DUBITO_LLM",
        help="embedded, ollama:MODEL, http://HOST:PORT, vllm:URL#model, engine:DIR, openai:URL#model, hf:DIR, "
        "gguf:FILE.",
    ),
]
Encoder = Annotated[
    str | None, typer.Option(metavar="NAME", envvar="DUBITO_ENCODER", help="embedded, st:DIR, openai:URL#model.")
]
Chunker = Annotated[str | None, typer.Option(metavar="NAME", help="words:N, tokens:SIZE/OVERLAP or semantic:TAU/TMAX.")]
Preset = Annotated[str | None, typer.Option(metavar="NAME", help="embedded (small installed models) or paper.")]
K = Annotated[str | None, typer.Option("--k", "-k", metavar="N", help="The number of chunks to answer from.")]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Any other setting of the graph, repeatable; an unknown name lists all settings.",
        autocompletion=completion.settings,
    ),
]
Answers = Annotated[
    list[str] | None, typer.Option("--answer", metavar="TEXT", help="A right answer to the question; repeatable.")
]
AtOnce = Annotated[
    int, typer.Option(metavar="N", min=1, max=1024, help="Questions at a time; a killed run loses only these.")
]
BadRecord = Annotated[
    Literal["refuse", "skip"], typer.Option(help="Refuse a file with broken records, or skip these records.")
]
Otlp = Annotated[
    str | None, typer.Option(metavar="URL", help="Send spans to an OpenTelemetry collector, such as Phoenix.")
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run of dubito eval.")]
AnswerStandard = Annotated[
    Literal["squad", "longbench"], typer.Option(help="How F1 counts answers that normalising leaves empty.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object, faults included, and nothing else.")]
