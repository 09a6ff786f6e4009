"""Options of several commands: settings of most graphs."""

from typing import Annotated, Literal

import typer

Corpus = Annotated[
    str | None,
    typer.Option(metavar="PATH", envvar="DUBITO_CORPUS", help="'sample', an index folder, or a corpus file or folder."),
]
Llm = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        envvar="DUBITO_LLM",
        help="embedded, vllm:URL#model, engine:DIR, openai:URL#model, hf:DIR, gguf:FILE.",
    ),
]
Encoder = Annotated[
    str | None, typer.Option(metavar="NAME", envvar="DUBITO_ENCODER", help="embedded, st:DIR, openai:URL#model.")
]
Chunker = Annotated[str | None, typer.Option(metavar="NAME", help="words:N, tokens:SIZE/OVERLAP or semantic:TAU/TMAX.")]
Preset = Annotated[str | None, typer.Option(metavar="NAME", help="embedded (small installed models) or paper.")]
K = Annotated[str | None, typer.Option("--k", "-k", metavar="N", help="The number of chunks to answer from.")]
AnswerStandard = Annotated[
    Literal["squad", "longbench"], typer.Option(help="How F1 counts answers that normalising leaves empty.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object, faults included, and nothing else.")]
