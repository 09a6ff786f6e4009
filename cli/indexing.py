"""The work of `dubito index`: read, split, embed, store, and show what was stored."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rich.console import Console
from rich.text import Text

from ..errors import UserFault
from ..file_lock import exclusive_lock
from ..models.background import run_in_background
from ..presenters.words import counted, duration, megabytes
from ..render.sanitize import one_line
from ..render.screen import console, print_json
from ..resources.opening import corpus_path
from ..resources.resources import shared_resources
from ..retrieval.approximate import FEWEST
from ..retrieval.chunkers import chunker_for, open_chunker
from ..retrieval.corpus import read_corpus
from ..retrieval.index import Index
from ..retrieval.index_files import is_index, read_index_manifest
from ..retrieval.saved_folder import tidy_beside
from ..settings import settings
from .bars import ProgressBar

MOST_PROBLEMS = 20
"""Skipped records that are listed; the others are counted."""


class GraphOptions(NamedTuple):
    """The corpus graph to be built with an index; neighbours: of each chunk, 0 for no graph."""

    neighbours: int
    encoder: str


def run(work: Callable[..., Coroutine[Any, Any, dict[str, Any]]], *, as_json: bool, quiet: bool) -> None:
    """Do the work with a progress bar, its argument `bar`; show its figures and the command that uses the result."""
    screen, began = console(), time.monotonic()
    stdout = contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext()
    with stdout, IndexingBar(screen, quiet=quiet, as_json=as_json) as bar:
        figures = run_in_background(work(bar=bar))
    figures["seconds"] = time.monotonic() - began
    if as_json:
        print_json(figures)
    else:
        _show(screen, figures)


async def fill_collection(
    corpus: str, name: str, encoder: str, chunker: str, on_bad_record: Literal["refuse", "skip"], *, bar: IndexingBar
) -> dict[str, Any]:
    """Store a corpus in a vector database and return the figures."""
    from ..retrieval.vector_store import fill  # noqa: PLC0415 - an extra

    opened = await shared_resources().encoder_named(encoder)
    splitter = await chunker_for(chunker, opened)
    bar.begin("reading the corpus")
    documents = await asyncio.to_thread(lambda: read_corpus(corpus_path(corpus), on_bad_record=on_bad_record))
    bar.begin("embedding the first chunks")
    chunks = await fill(name, documents, splitter, opened, bar.embedded)
    return {
        "collection": name,
        "documents": len(documents.documents),
        "chunks": chunks,
        "chunker": chunker,
        "next": _ask_command(name, encoder),
        "problems": list(documents.problems),
    }


def check_target(target: Path, *, force: bool) -> None:
    """Raise `UserFault` for a folder that cannot be written or whose content would be lost."""
    if is_index(target):
        if not force:
            raise UserFault(f"There is an index at '{target}': replace it with --force, or give another --out.")
    elif target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserFault(f"'{target}' exists and is not an index: give --out a folder that is new or empty.")
    parent = next((folder for folder in target.absolute().parents if folder.exists()), target)
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise UserFault(f"'{target}' cannot be made, as '{parent}' cannot be written: give another --out.")


@contextlib.contextmanager
def only_writer(target: Path, *, force: bool) -> Iterator[None]:
    """Let no other `dubito index` write the target, which is checked; `UserFault` if one does."""
    check_target(target, force=force)
    place = target.resolve()
    lock = next(folder for folder in place.parents if folder.exists()) / f".{place.name}.lock"
    busy = f"Another `dubito index` is writing '{target}': run the command again when it has ended."
    with exclusive_lock(lock, busy):
        try:
            tidy_beside(target)
            check_target(target, force=force)
            yield
        finally:
            with contextlib.suppress(OSError):  # Windows keeps a file that is open
                lock.unlink()


async def build_index(
    corpus: str,
    target: Path,
    encoder: str,
    chunker: str,
    on_bad_record: Literal["refuse", "skip"],
    *,
    bar: IndexingBar,
    extends: bool,
    replace: bool,
    graph: GraphOptions,
    search: str | None,
) -> dict[str, Any]:
    """Build an index, or extend the index in `target`; save it and return the figures.

    encoder: empty for an index without vectors; search: of a new index, None for `auto`.
    """
    opened = await shared_resources().encoder_named(encoder) if encoder else None
    if graph.neighbours:
        await shared_resources().check_graph(graph.encoder)
    before = None
    if extends:
        bar.begin("opening the index")
        before = await Index.load(target, opened)
    splitter = await chunker_for(chunker, opened) if opened else open_chunker(chunker)
    bar.begin("reading the corpus")
    documents = await asyncio.to_thread(lambda: read_corpus(corpus_path(corpus), on_bad_record=on_bad_record))
    bar.begin("embedding the first chunks" if opened else "splitting the documents")
    if before is None:
        index = await Index.build(documents, splitter, opened, bar.embedded, bar.sentences_embedded)
    else:
        index = await before.extended(documents, splitter, bar.embedded, bar.sentences_embedded, replace=replace)
    name = search or (None if extends else "auto")
    figures = await _stored(index, target, before, bar=bar, graph=graph, search=name)
    return {**figures, "documents_added": len(documents.documents), "next": _ask_command(str(target), encoder)}


async def change_index(
    target: Path,
    add: Literal["encoder", "bm25", "graph", "search"] | None,
    delete: Sequence[str],
    encoder: str,
    *,
    bar: IndexingBar,
    force: bool,
    graph: GraphOptions,
    search: str | None,
) -> dict[str, Any]:
    """Add a part to an index, or delete documents; save it and return the figures.

    encoder: of vectors to be added; search: the kind to be added, None for `auto`.
    """
    bar.begin("opening the index")
    index = before = await Index.stored(target)
    name = shlex.quote(str(target))
    if graph.neighbours:
        if not before.manifest.encoder:
            raise UserFault(f"A graph compares vectors: add them first, with `dubito index --add encoder {name}`.")
        await shared_resources().check_graph(graph.encoder)
    if add == "encoder":
        if before.manifest.encoder and not force:
            raise UserFault(
                f"The index '{target}' has vectors of '{before.manifest.encoder}' already: replace them with --force."
            )
        bar.begin("embedding the first chunks")
        index = await before.under(await shared_resources().encoder_named(encoder), bar.embedded)
    if add == "search" and not before.manifest.encoder:
        raise UserFault(f"A search compares vectors: add them first, with `dubito index --add encoder {name}`.")
    if delete:
        known = {chunk["doc_id"] for chunk in before.chunks}
        # an id may have a comma, as a title has
        ids = [name for given in delete for name in ([given] if given in known else given.split(","))]
        index = await before.without([name if name in known else name.strip() for name in ids])
    named = search or ("auto" if add in {"encoder", "search"} else None)
    return await _stored(index, target, before, bar=bar, graph=graph, search=named, words=add == "bm25")


async def _stored(
    index: Index,
    target: Path,
    before: Index | None,
    *,
    bar: IndexingBar,
    graph: GraphOptions,
    search: str | None,
    words: bool = False,
) -> dict[str, Any]:
    """Save an index with what the cache folder keeps of it, and return the figures.

    search: None for the kind that the index had before; words: prepare BM25.
    """
    manifest = index.manifest
    if manifest.encoder and (index is not before or search):
        bar.begin("preparing the search")
        index = await index.searched_by(search or _kept_search(index, before), bar.arranged, before)
        manifest = index.manifest
    # before saving: if it fails, the same command can be run again
    if words or not manifest.encoder:
        from ..retrieval.bm25 import open_bm25  # noqa: PLC0415 - seldom needed

        bar.begin("reading the words")
        await open_bm25(index, settings().cache, bar.read)
    if graph.neighbours:
        bar.begin("comparing the chunks")
        await shared_resources().graph_of(
            index, graph.encoder, graph.neighbours, progress=bar.compared, embedding=bar.embedded, before=before
        )
    bar.begin("saving")
    if index is not before:
        if before is not None and await asyncio.to_thread(read_index_manifest, target) != before.manifest:
            raise UserFault(f"The index '{target}' was changed in the meantime: run the command again.")
        await index.save(target)
    return {
        "index": str(target),
        "documents": manifest.documents,
        "documents_added": 0,
        "documents_before": before.manifest.documents if before else 0,
        "chunks": manifest.chunks,
        "dimension": manifest.dimension or None,
        "encoder": manifest.encoder or None,
        "chunker": manifest.chunker,
        "search": manifest.search.model_dump() if manifest.search else None,
        "graph_neighbours": graph.neighbours,
        "graph_encoder": graph.encoder if graph.neighbours else None,
        "bytes": sum(file.stat().st_size for file in target.iterdir()),  # noqa: ASYNC240 - three files
        "next": _ask_command(str(target), manifest.encoder),
        "problems": list(index.problems),
    }


def _kept_search(index: Index, before: Index | None) -> str:
    """The kind that the index had, or the exact search if too few chunks are left."""
    known = before and before.manifest.search
    return known.kind if known and index.manifest.chunks >= FEWEST else "flat"


def _ask_command(corpus: str, encoder: str) -> str:
    with_encoder = "" if encoder == "embedded" else f" --encoder {shlex.quote(encoder)}"
    if not encoder:
        with_encoder = " --graph vanilla_rag --set first_stage=bm25"
    return f'dubito ask "..." --corpus {shlex.quote(corpus)}{with_encoder}'


class IndexingBar(ProgressBar):
    """The bar of `dubito index`; the work calls its methods as it goes on."""

    def embedded(self, done: int, total: int) -> None:
        """Show the number of embedded chunks."""
        self._show_things("embedding", done, total, "chunks")

    def sentences_embedded(self, done: int, total: int) -> None:
        """Show the number of embedded sentences, which the semantic chunker joins to chunks."""
        self._show_things("comparing", done, total, "sentences")
        if done == total:
            self.begin("embedding the first chunks")

    def compared(self, done: int, total: int) -> None:
        """Show the number of chunks whose neighbours are known."""
        self._show_things("comparing", done, total, "chunks")

    def arranged(self, done: int, total: int) -> None:
        """Show the number of chunks in the structure of an approximate search."""
        self._show_things("arranging", done, total, "chunks")

    def read(self, done: int, total: int) -> None:
        """Show the number of chunks whose words are read."""
        self._show_things("reading", done, total, "chunks")

    def _show_things(self, work: str, done: int, total: int, things: str) -> None:
        self.show(work, done, total, f"{done:,} of {total:,} {things}, {self.pace(done, total - done)}")


def _show(screen: Console, figures: dict[str, Any]) -> None:
    problems, documents = figures["problems"], figures["documents"]
    for problem in problems[:MOST_PROBLEMS]:
        screen.print(Text("Skipped: " + one_line(problem), "yellow"))
    if len(problems) > MOST_PROBLEMS:
        screen.print(Text(f"and {counted(len(problems) - MOST_PROBLEMS, 'more record')} skipped", "yellow"))
    if before := figures.get("documents_before"):
        added = figures["documents_added"]
        removed = before + added - documents
        both = (added, "added"), (removed, "deleted")
        changes = [f"{counted(number, 'document')} {what}" for number, what in both if number]
        if changes:
            screen.print(f"{', '.join(changes)}; the index now holds")
    facts = [counted(documents, "document"), f"{counted(figures['chunks'], 'chunk')} ({figures['chunker']})"]
    if "bytes" in figures:
        vectors = f"dimension {figures['dimension']}" if figures["dimension"] else "no vectors"
        facts += [vectors, megabytes(figures["bytes"])]
    screen.print(", ".join([*facts, duration(figures["seconds"])]))
    if search := figures.get("search"):
        screen.print(
            f"Search by {search['kind']} ({search['factory']}, {search['parameter']} {search['value']}): recall@"
            f"{search['k']} {search['recall']:.3f} against exact search, for {search['queries']} of the chunks."
        )
    if neighbours := figures.get("graph_neighbours"):
        encoder = shlex.quote(f"graph_encoder={figures['graph_encoder']}")
        screen.print(
            f"The {counted(neighbours, 'nearest neighbour')} of every chunk are in the cache folder. To use this "
            "corpus graph:"
        )
        screen.print(Text(one_line(f"--set graph_neighbours={neighbours} --set {encoder}"), "bold"), soft_wrap=True)
    screen.print(Text.assemble("Now: ", (one_line(figures["next"]), "bold")), soft_wrap=True)
