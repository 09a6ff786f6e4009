"""Options that several verbs have: the settings that every graph has."""

from __future__ import annotations

from typing import Annotated

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
Preset = Annotated[str | None, typer.Option(metavar="NAME", help="embedded (small models in packages) or paper.")]
K = Annotated[str | None, typer.Option("--k", "-k", metavar="N", help="How many chunks to answer from.")]
