"""`dubito index`: split a corpus into chunks and embed them once, into a folder that `dubito ask --corpus` opens."""

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from ..errors import UserFault
from .options import AsJson, BadRecord, Quiet

EXAMPLES = (
    "dubito index notes/ --out notes.index",
    "dubito index corpus.jsonl --out corpus.index --on-bad-record skip",
    "dubito index corpus.jsonl --out corpus.index --graph-neighbours 10",
    "dubito index corpus.jsonl --out qdrant:http://127.0.0.1:6333#corpus",
    "dubito index new.jsonl --add-to corpus.index --graph-neighbours 10",
    "dubito index changed.jsonl --add-to corpus.index --replace",
    "dubito index --delete river,lake corpus.index",
    "dubito index corpus.jsonl --out words.index --for bm25",
    "dubito index --add encoder words.index",
    "dubito index --add search corpus.index --search hnsw",
    'dubito ask "..." --corpus corpus.index',
)

GRAPH_NEIGHBOURS = 10
"""Neighbours of a graph that is added without a number, as the graphs' own default."""


def index(
    corpus: Annotated[
        str,
        typer.Argument(
            metavar="CORPUS", help="'sample', or a corpus file or folder; with --add and --delete an index."
        ),
    ],
    *,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="The folder to write, which must be new or empty; or a collection to fill, as qdrant:URL#collection.",
        ),
    ] = None,
    add_to: Annotated[
        Path | None, typer.Option(metavar="DIR", help="An index to add the documents to, in place of --out.")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="With --add-to: documents with the same id take the new text.")
    ] = False,
    delete: Annotated[
        list[str] | None,
        typer.Option(metavar="ID,ID", help="Delete the documents of these ids from an index; repeatable."),
    ] = None,
    purpose: Annotated[
        Literal["encoder", "bm25"],
        typer.Option("--for", help="encoder: with vectors, for every search. bm25: without; nothing is embedded."),
    ] = "encoder",
    add: Annotated[
        Literal["encoder", "bm25", "graph", "search"] | None,
        typer.Option(help="Add vectors, the words for BM25, the corpus graph or a kind of --search to an index."),
    ] = None,
    search: Annotated[
        Literal["auto", "flat", "hnsw", "ivf", "ivf_pq"] | None,
        typer.Option(
            help="Compare all vectors (flat), or find nearly all of the nearest: hnsw, ivf or ivf_pq; auto, the "
            "default: by the number of chunks. The recall is measured and shown."
        ),
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
    """Index a corpus once, so that later questions start at once; or change an index."""
    from ..retrieval.index_files import read_index_manifest  # noqa: PLC0415 - keeps `--help` quick
    from ..retrieval.vector_databases import names_database, refuse_unknown_database  # noqa: PLC0415
    from ..state.mixins import CorpusContext  # noqa: PLC0415
    from . import indexing  # noqa: PLC0415

    configured = {name: str(found.value) for name, found in CorpusContext.configured().items()}
    if out is not None:
        refuse_unknown_database(out)
    if out is not None and names_database(out):
        if (
            add_to
            or force
            or graph_neighbours
            or graph_encoder
            or replace
            or delete
            or add
            or search
            or purpose != "encoder"
        ):
            raise UserFault(
                "A vector database is filled with new documents by itself and has no graph: leave --add-to, --force, "
                "--replace, --delete, --for, --add, --search and the --graph options out."
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
    if sum(map(bool, (out, add_to, add, delete))) != 1:
        raise UserFault(
            "Give --out DIR for a new index, or --add-to DIR to add to an index, or --add PART or --delete ID with the "
            "index to change; one of them."
        )
    changes = add is not None or bool(delete)
    target = Path(corpus if changes else out or str(add_to)).expanduser()
    graph_neighbours = graph_neighbours or (GRAPH_NEIGHBOURS if add == "graph" else 0)
    if graph_encoder and not graph_neighbours:
        raise UserFault("--graph-encoder needs --graph-neighbours K, the number of neighbours of each chunk.")
    if purpose == "bm25" and (not out or encoder or graph_neighbours or search):
        raise UserFault(
            "--for bm25 makes a new index without vectors: give it with --out, and leave --encoder, --search and the "
            "--graph options out."
        )
    if search and not (out or add in {"encoder", "search"}):
        raise UserFault("An index keeps its kind of search: change it with `dubito index --add search --search KIND`.")
    if replace and not add_to:
        raise UserFault("--replace needs --add-to DIR, the index that has the documents.")
    if changes and (chunker or (encoder and add != "encoder")):
        raise UserFault("The chunks of the index stay as they are: leave --chunker and --encoder out.")
    if force and (add_to or (changes and add != "encoder")):
        raise UserFault("--force replaces an index and --add-to keeps it: give one of them.")
    if not out:
        manifest = read_index_manifest(target)
        chunker = chunker or manifest.chunker
        encoder = encoder or ("" if add_to and not manifest.encoder else manifest.encoder or None)
    elif purpose == "bm25":
        encoder = ""
    encoder = configured.get("encoder", "embedded") if encoder is None else encoder
    chunker = chunker or configured.get("chunker", "words:100")
    graph = indexing.GraphOptions(graph_neighbours, graph_encoder or encoder)
    work = (
        partial(indexing.change_index, target, add, delete or [], encoder, force=force, graph=graph, search=search)
        if changes
        else partial(
            indexing.build_index,
            *(corpus, target, encoder, chunker, on_bad_record),
            extends=add_to is not None,
            replace=replace,
            graph=graph,
            search=search,
        )
    )
    with indexing.only_writer(target, force=force or not out):
        indexing.run(work, as_json=as_json, quiet=quiet)
