"""`dubito corpus`: the corpora that the papers use, from the HuggingFace hub into a file for `dubito index`."""

import os
import shlex
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import UserFault
from ..render.screen import console, print_json, show
from .options import AsJson, Quiet

EXAMPLES = (
    "dubito corpus",
    "dubito corpus musique",
    "dubito corpus wikipedia-2018 --out wiki.jsonl",
    "dubito index musique.jsonl --out musique.index",
)


def _names(incomplete: str) -> list[str]:
    from ..evals.datasets.corpora import CORPORA  # noqa: PLC0415 - keeps `--help` quick

    return [name for name in CORPORA if name.startswith(incomplete)]


def corpus(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="The corpus; without a name they are listed.", autocompletion=_names),
    ] = None,
    *,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The file of JSON lines to write.  [default: NAME.jsonl in this folder]"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Fetch a corpus that the papers use, for `dubito index`; or list these corpora.

    A download that was cut off goes on where it was. HF_ENDPOINT names a mirror of the HuggingFace hub.
    """
    from ..evals.datasets.corpora import CORPORA, corpus_named, fetch_corpus  # noqa: PLC0415 - keeps `--help` quick

    if name is None:
        if out or force:
            raise UserFault(f"--out and --force need the name of a corpus: give one of {', '.join(CORPORA)}.")
        _list(as_json=as_json)
        return
    corpus_named(name)
    target = (out or Path(f"{name}.jsonl")).expanduser()
    _check(target, force=force)
    from ..presenters.words import counted, duration, megabytes  # noqa: PLC0415
    from .bars import ProgressBar  # noqa: PLC0415

    screen, began = console(), time.monotonic()
    with ProgressBar(screen, "asking the hub", quiet=quiet, as_json=as_json) as bar:
        figures = fetch_corpus(
            name,
            target,
            lambda work, done, total: bar.show(work, done, total, f"{megabytes(done)} of {megabytes(total)}"),
        )
    figures |= {
        "seconds": time.monotonic() - began,
        "next": f"dubito index {shlex.quote(str(target))} --out {shlex.quote(str(target.with_suffix('.index')))}",
    }
    if as_json:
        print_json(figures)
        return
    facts = counted(figures["documents"], "document"), megabytes(figures["bytes"]), duration(figures["seconds"])
    screen.print(f"{target}: {', '.join(facts)}", soft_wrap=True)
    screen.print(f"From {figures['source']} at {figures['revision']}, licence: {figures['licence']}", soft_wrap=True)
    screen.print(f"Now: {figures['next']}", soft_wrap=True)


def _check(target: Path, *, force: bool) -> None:
    """Raise `UserFault` for a file that cannot be written or would be lost."""
    if target.suffix != ".jsonl":
        raise UserFault(f"A corpus is written as JSON lines: give --out a name that ends with .jsonl, not '{target}'.")
    if target.exists() and not (force and target.is_file()):
        raise UserFault(f"'{target}' exists: replace it with --force, or give another --out.")
    if not target.absolute().parent.is_dir() or not os.access(target.absolute().parent, os.W_OK):
        raise UserFault(f"'{target.parent}' is not a folder that can be written: give another --out.")


def _list(*, as_json: bool) -> None:
    from ..evals.datasets.corpora import CORPORA  # noqa: PLC0415
    from ..presenters.words import megabytes  # noqa: PLC0415

    if as_json:
        print_json({"corpora": [_described(name) for name in CORPORA]})
        return
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for column in ("name", "download"):
        table.add_column(column, no_wrap=True)
    table.add_column("content, papers, licence, source", overflow="fold")
    for told in map(_described, CORPORA):
        about = "\n".join([told["content"], f"{told['papers']}; {told['licence']}", told["source"]])
        table.add_row(told["name"], megabytes(told["bytes"]), about)
    show(console(), table)


def _described(name: str) -> dict[str, Any]:
    from ..evals.datasets.corpora import CORPORA  # noqa: PLC0415

    one = CORPORA[name]
    source = f"{one.repository}: {one.file}"
    return {
        "name": name,
        "bytes": one.size,
        "content": one.content,
        "papers": one.papers,
        "licence": one.licence,
        "source": source,
    }
