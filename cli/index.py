"""`dubito index`: split a corpus into chunks and embed them once, into a folder that `dubito ask --corpus` opens."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ..errors import UserFault
from ..render.screen import help_lines
from .options import AsJson, BadRecord, Quiet

EXAMPLES = help_lines(
    "Examples",
    "dubito index notes/ --out notes.index",
    "dubito index corpus.jsonl --out corpus.index --on-bad-record skip",
    "dubito index corpus.jsonl --out corpus.index --graph-neighbours 10",
    "dubito index corpus.jsonl --out qdrant:http://127.0.0.1:6333#corpus",
    "dubito index new.jsonl --add-to corpus.index --graph-neighbours 10",
    'dubito ask "..." --corpus corpus.index',
)


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
            help="embedded, st:DIR, openai:URL#model; default: as configured, else embedded; with --add-to the encoder "
            "of that index.",
        ),
    ] = None,
    chunker: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="words:N, tokens:SIZE/OVERLAP or semantic:TAU/TMAX; default: as configured, else words:100; with "
            "--add-to the chunker of that index.",
        ),
    ] = None,
    graph_neighbours: Annotated[
        int,
        typer.Option(
            metavar="K", min=0, max=1000, help="Also find the K nearest neighbours of each chunk, for the corpus graph."
        ),
    ] = 0,
    graph_encoder: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The encoder of the corpus graph: as --encoder (its default), or colbert:DIR for late interaction.",
        ),
    ] = None,
    on_bad_record: BadRecord = "refuse",
    force: Annotated[bool, typer.Option("--force", help="Replace an existing index.")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Index a corpus once, so that later questions start at once."""
    from ..retrieval.index_files import read_index_manifest  # noqa: PLC0415 - keeps `--help` quick
    from ..state.mixins import CorpusContext  # noqa: PLC0415
    from . import indexing  # noqa: PLC0415

    configured = {name: str(found.value) for name, found in CorpusContext.configured().items()}
    if out is not None and out.startswith("qdrant:"):
        if add_to or force or graph_neighbours or graph_encoder:
            raise UserFault(
                "A Qdrant collection is filled with new documents by itself and has no graph: leave --add-to, --force "
                "and the --graph options out."
            )
        work = partial(
            indexing.fill_collection,
            *(corpus, out),
            encoder or configured.get("encoder", "embedded"),
            chunker or configured.get("chunker", "words:100"),
            on_bad_record,
        )
        indexing.run(work, as_json=as_json, quiet=quiet)
        return
    target = Path(out) if out else add_to
    if target is None or (out and add_to):
        raise UserFault("Give --out DIR for a new index, or --add-to DIR to add to an index; one of them.")
    target = target.expanduser()
    if graph_encoder and not graph_neighbours:
        raise UserFault("--graph-encoder needs --graph-neighbours K, the number of neighbours of each chunk.")
    if add_to:
        if force:
            raise UserFault("--force replaces an index and --add-to keeps it: give one of them.")
        manifest = read_index_manifest(target)
        encoder, chunker = encoder or manifest.encoder, chunker or manifest.chunker
    encoder = encoder or configured.get("encoder", "embedded")
    chunker = chunker or configured.get("chunker", "words:100")
    indexing.check_target(target, force=force or add_to is not None)
    work = partial(
        indexing.build_index,
        *(corpus, target, encoder, chunker, on_bad_record),
        extends=add_to is not None,
        graph_neighbours=graph_neighbours,
        graph_encoder=graph_encoder or encoder,
    )
    indexing.run(work, as_json=as_json, quiet=quiet)
