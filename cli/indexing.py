"""What `dubito index` does: check the target, build, show the figures."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bars
from rich.text import Text

from ..errors import UserFault
from ..models.background import run_in_background
from ..models.resources import corpus_path, shared_resources
from ..retrieval.corpus import Corpus, read_corpus
from ..retrieval.index import Index, chunker_for
from ..retrieval.index_files import is_index, read_manifest
from .screen import clean, console, counted, duration, megabytes, print_json

MOST_PROBLEMS = 20
"""Skipped records that are listed; the others are counted."""


@dataclass(frozen=True)
class Job:
    """What to index, how and where to; adds: to the index that is there."""

    corpus: str
    target: Path
    encoder: str
    chunker: str
    on_bad_record: Literal["refuse", "skip"]
    graph_neighbours: int = 0
    graph_encoder: str = "embedded"
    adds: bool = False


@dataclass(frozen=True)
class Built:
    """The index, and the one it was made from by adding."""

    index: Index
    before: Index | None = None


def job_for(
    corpus: str,
    out: Path | None,
    add_to: Path | None,
    *,
    encoder: str | None,
    chunker: str | None,
    on_bad_record: Literal["refuse", "skip"],
    graph_neighbours: int,
    graph_encoder: str | None,
    force: bool,
) -> Job:
    """The job that the options ask for, its target checked; what is not given is that of the index to add to."""
    target = out or add_to
    if target is None or (out and add_to):
        raise UserFault("Say where to: --out DIR for a new index, or --add-to DIR for one that is there; one of them.")
    target = target.expanduser()
    if graph_encoder and not graph_neighbours:
        raise UserFault("--graph-encoder needs --graph-neighbours K: say how many neighbours each chunk is to have.")
    if add_to:
        if force:
            raise UserFault("--force replaces an index and --add-to keeps it: give one of them.")
        manifest = read_manifest(target)
        encoder, chunker = encoder or manifest.encoder, chunker or manifest.chunker
    encoder = encoder or "embedded"
    check_target(target, force=force or add_to is not None)
    return Job(
        corpus,
        target,
        encoder,
        chunker or "words:100",
        on_bad_record,
        graph_neighbours,
        graph_encoder or encoder,
        adds=add_to is not None,
    )


def run(job: Job, *, as_json: bool) -> None:
    """Build the index and say what it holds and what to do next."""
    screen, begun = console(), time.monotonic()
    quiet = contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext()
    with quiet, Bar(screen, moves=screen.is_interactive and not as_json) as bar:
        built = run_in_background(build(job, bar))
    figures = figures_of(built, job, time.monotonic() - begun)
    if as_json:
        print_json({**figures, "problems": list(built.index.problems)})
    else:
        show(screen, figures, built.index.problems)


def fill_collection(
    corpus: str,
    name: str,
    encoder: str | None,
    chunker: str | None,
    on_bad_record: Literal["refuse", "skip"],
    *,
    as_json: bool,
) -> None:
    """Put a corpus into a Qdrant collection and say what to do next."""
    from ..retrieval.qdrant import fill  # noqa: PLC0415 - an extra

    screen, begun = console(), time.monotonic()
    quiet = contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext()
    with quiet, Bar(screen, moves=screen.is_interactive and not as_json) as bar:

        async def filled() -> tuple[Corpus, int]:
            opened = await shared_resources().encoder(encoder or "embedded")
            cutting = await chunker_for(chunker or "words:100", opened)
            bar.begin("reading the corpus")
            read = await asyncio.to_thread(lambda: read_corpus(corpus_path(corpus), on_error=on_bad_record))
            bar.begin("embedding the first chunks")
            return read, await fill(name, read, cutting, opened, bar.move)

        read, chunks = run_in_background(filled())
    with_encoder = "" if encoder in {None, "embedded"} else f" --encoder {shlex.quote(str(encoder))}"
    figures = {
        "collection": name,
        "documents": len(read.documents),
        "chunks": chunks,
        "seconds": time.monotonic() - begun,
        "next": f'dubito ask "..." --corpus {shlex.quote(name)}{with_encoder}',
    }
    if as_json:
        print_json({**figures, "problems": list(read.problems)})
        return
    for problem in read.problems[:MOST_PROBLEMS]:
        screen.print(Text("Skipped: " + clean(problem), "yellow"))
    stored = f"{counted(len(read.documents), 'document')}, {counted(chunks, 'chunk')} stored"
    screen.print(f"{stored} in {duration(time.monotonic() - begun)}")
    screen.print(Text.assemble("Now: ", (clean(str(figures["next"])), "bold")), soft_wrap=True)


def check_target(target: Path, *, force: bool) -> None:
    """Refuse a folder that would be lost, before anything is computed."""
    if is_index(target):
        if not force:
            raise UserFault(f"There is an index at '{target}': replace it with --force, or give another --out.")
    elif target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserFault(f"'{target}' is there and is no index: give --out a folder that is new or empty.")
    above = next((folder for folder in target.absolute().parents if folder.exists()), target)
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise UserFault(f"'{target}' cannot be made, as '{above}' cannot be written: give another --out.")


async def build(job: Job, bar: Bar) -> Built:
    """Read, cut, embed, save."""
    encoder = await shared_resources().encoder(job.encoder)
    if job.graph_neighbours:
        await shared_resources().check_graph(job.graph_encoder)
    before = None
    if job.adds:
        bar.begin("opening the index")
        before = await Index.load(job.target, encoder)
    bar.begin("reading the corpus")
    chunker = await chunker_for(job.chunker, encoder)
    corpus = await asyncio.to_thread(lambda: read_corpus(corpus_path(job.corpus), on_error=job.on_bad_record))
    bar.begin("embedding the first chunks")
    if before is None:
        index = await Index.build(corpus, chunker, encoder, bar.move, bar.compare)
    else:
        index = await before.extended(corpus, chunker, bar.move, bar.compare)
    if near := job.graph_neighbours:  # before saving: if it fails, the same command can be run again
        bar.begin("comparing the chunks")
        await shared_resources().graph_of(
            index, job.graph_encoder, near, progress=bar.relate, embedding=bar.move, before=before
        )
    bar.begin("saving")
    if before is not None and await asyncio.to_thread(read_manifest, job.target) != before.manifest:
        raise UserFault(f"The index '{job.target}' was changed in the meantime: run the command again.")
    await index.save(job.target)
    return Built(index, before)


class Bar:
    """What is under way; while embedding a bar with the speed and the time left. In a pipe nothing."""

    def __init__(self, screen: Console, *, moves: bool) -> None:
        """moves: is there someone to watch?"""
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=None), TextColumn("{task.fields[so_far]}"))
        self._bars = Bars(*columns, console=screen, transient=True, disable=not moves, expand=True)
        self._task = self._bars.add_task("", total=None, so_far="")
        self._begun = time.monotonic()

    def __enter__(self) -> Self:
        """Begin to draw."""
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Take it away."""
        self._bars.stop()

    def begin(self, what: str) -> None:
        """Name what is done now."""
        self._begun = time.monotonic()
        self._bars.update(self._task, description=what)

    def move(self, done: int, total: int) -> None:
        """So many chunks are embedded."""
        self._show("embedding", done, total, "chunks")

    def compare(self, done: int, total: int) -> None:
        """So many sentences are embedded, to be joined to chunks."""
        self._show("comparing", done, total, "sentences")
        if done == total:
            self.begin("embedding the first chunks")

    def relate(self, done: int, total: int) -> None:
        """So many chunks' neighbours are known."""
        self._show("comparing", done, total, "chunks")

    def _show(self, what: str, done: int, total: int, things: str) -> None:
        speed = done / max(time.monotonic() - self._begun, 1e-9)
        so_far = f"{done:,} of {total:,} {things}, {speed:,.0f} a second, {duration((total - done) / speed)} left"
        self._bars.update(self._task, description=what, completed=done, total=total, so_far=so_far)


def figures_of(built: Built, job: Job, seconds: float) -> dict[str, Any]:
    """What came out, and the command that uses it."""
    manifest = built.index.manifest
    here = built.before.manifest.documents if built.before else 0
    with_encoder = "" if job.encoder == "embedded" else f" --encoder {shlex.quote(job.encoder)}"
    return {
        "index": str(job.target),
        "documents": manifest.documents,
        "documents_added": manifest.documents - here,
        "chunks": manifest.chunks,
        "dimension": manifest.dimension,
        "encoder": manifest.encoder,
        "chunker": manifest.chunker,
        "graph_neighbours": job.graph_neighbours,
        "graph_encoder": job.graph_encoder if job.graph_neighbours else None,
        "bytes": sum(file.stat().st_size for file in job.target.iterdir()),
        "seconds": seconds,
        "next": f'dubito ask "..." --corpus {shlex.quote(str(job.target))}{with_encoder}',
    }


def show(screen: Console, figures: dict[str, Any], problems: tuple[str, ...]) -> None:
    """The figures, for a person."""
    for problem in problems[:MOST_PROBLEMS]:
        screen.print(Text("Skipped: " + clean(problem), "yellow"))
    if len(problems) > MOST_PROBLEMS:
        screen.print(Text(f"and {counted(len(problems) - MOST_PROBLEMS, 'more record')} skipped", "yellow"))
    if (added := figures["documents_added"]) != figures["documents"]:
        screen.print(f"{counted(added, 'document')} added; the index now holds")
    screen.print(
        f"{counted(figures['documents'], 'document')}, {counted(figures['chunks'], 'chunk')} ({figures['chunker']}), "
        f"dimension {figures['dimension']}, {megabytes(figures['bytes'])}, {duration(figures['seconds'])}"
    )
    if near := figures["graph_neighbours"]:
        chosen = f"--set graph_neighbours={near} --set {shlex.quote('graph_encoder=' + figures['graph_encoder'])}"
        screen.print(f"The {counted(near, 'nearest other')} of every chunk are in the cache folder. For sunar:")
        screen.print(Text(clean(chosen), "bold"), soft_wrap=True)
    screen.print(Text.assemble("Now: ", (clean(figures["next"]), "bold")), soft_wrap=True)
