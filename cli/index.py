"""`dubito index`: a corpus cut into chunks and embedded once, as a folder that `dubito ask --corpus` opens."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ..errors import UserFault
from .screen import help_lines

EXAMPLES = help_lines(
    "Examples",
    "dubito index notes/ --out notes.index",
    "dubito index corpus.jsonl --out corpus.index --on-bad-record skip",
    "dubito index corpus.jsonl --out corpus.index --graph-neighbours 10",
    "dubito index corpus.jsonl --out qdrant:http://127.0.0.1:6333#corpus",
    "dubito index new.jsonl --add-to corpus.index --graph-neighbours 10",
    'dubito ask "..." --corpus corpus.index',
)


class OnBadRecord(StrEnum):
    """What to do with a corpus that has broken records."""

    refuse = "refuse"
    skip = "skip"


def index(
    corpus: Annotated[str, typer.Argument(metavar="CORPUS", help="'sample', or a corpus file or folder.")],
    *,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="DIR", help="The folder to write, which must be new or empty; or qdrant:URL#collection to fill."
        ),
    ] = None,
    add_to: Annotated[
        Path | None, typer.Option(metavar="DIR", help="An index to add the documents to, in place of --out.")
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            envvar="DUBITO_ENCODER",
            help="embedded, st:DIR, openai:URL#model; embedded if not given, or that of the index to add to.",
        ),
    ] = None,
    chunker: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="words:N, tokens:SIZE/OVERLAP or semantic:TAU/TMAX; words:100 if not given, or that of the index to "
            "add to.",
        ),
    ] = None,
    graph_neighbours: Annotated[
        int, typer.Option(metavar="K", min=0, max=1000, help="Also find each chunk's K nearest others, for sunar.")
    ] = 0,
    graph_encoder: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Whose vectors say what is near: as --encoder, which it is if not given, or colbert:DIR for late "
            "interaction.",
        ),
    ] = None,
    on_bad_record: Annotated[
        OnBadRecord, typer.Option(help="A broken record: refuse the corpus, or skip the record.")
    ] = OnBadRecord.refuse,
    force: Annotated[bool, typer.Option("--force", help="Replace the index that is there.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, faults included, and nothing else.")
    ] = False,
) -> None:
    """Index a corpus once, so that asking starts at once."""
    from .indexing import fill_collection, job_for, run  # noqa: PLC0415 - what is heavy loads when it is needed

    if out is not None and out.startswith("qdrant:"):
        if add_to or force or graph_neighbours or graph_encoder:
            raise UserFault(
                "A Qdrant collection is filled with new documents by itself and has no graph: leave --add-to, --force "
                "and the --graph options out."
            )
        fill_collection(corpus, out, encoder, chunker, on_bad_record.value, as_json=as_json)
        return
    job = job_for(
        corpus,
        None if out is None else Path(out),
        add_to,
        encoder=encoder,
        chunker=chunker,
        on_bad_record=on_bad_record.value,
        graph_neighbours=graph_neighbours,
        graph_encoder=graph_encoder,
        force=force,
    )
    run(job, as_json=as_json)
