"""The command line: `dubito ask | ui | eval | report | compare | trace | seper | index | calibrate | serve | ...`.

A package and not one cli.py, because that many verbs and a live view do not fit one readable file. Each verb's own file
holds its options; what is heavy is imported when the verb runs, so that `--help` answers at once.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated

import typer

from .. import __version__
from .ask import EXAMPLES as ASK_EXAMPLES
from .ask import ask
from .calibrate import calibrate
from .compare import EXAMPLES as COMPARE_EXAMPLES
from .compare import compare
from .doctor import EXAMPLES as DOCTOR_EXAMPLES
from .doctor import doctor
from .draw import EXAMPLES as DRAW_EXAMPLES
from .draw import draw
from .eval import EXAMPLES as EVAL_EXAMPLES
from .eval import evaluate
from .exits import INTERRUPTED, MEANINGS, Verbs
from .index import EXAMPLES as INDEX_EXAMPLES
from .index import index
from .report import EXAMPLES as REPORT_EXAMPLES
from .report import report
from .screen import help_lines
from .seper import EXAMPLES as SEPER_EXAMPLES
from .seper import seper
from .serve import EXAMPLES as SERVE_EXAMPLES
from .serve import serve
from .traces import EXAMPLES as TRACE_EXAMPLES
from .traces import trace
from .ui_verb import EXAMPLES as UI_EXAMPLES
from .ui_verb import ui

app = typer.Typer(
    cls=Verbs,
    name="dubito",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=help_lines("Start here", "dubito doctor", 'dubito ask "..."') + "\n\n" + MEANINGS,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dubito {__version__}")
        raise typer.Exit


@app.callback()
def _dubito(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Retrieval-augmented generation that knows when the model does not know, as LangGraph state machines."""


for _verb, _examples in (
    (ask, ASK_EXAMPLES),
    (trace, TRACE_EXAMPLES),
    (seper, SEPER_EXAMPLES),
    (report, REPORT_EXAMPLES),
    (compare, COMPARE_EXAMPLES),
    (index, INDEX_EXAMPLES),
    (serve, SERVE_EXAMPLES),
    (ui, UI_EXAMPLES),
    (draw, DRAW_EXAMPLES),
    (doctor, DOCTOR_EXAMPLES),
):
    app.command(epilog=_examples + "\n\n" + MEANINGS)(_verb)
app.command("eval", epilog=EVAL_EXAMPLES + "\n\n" + MEANINGS)(evaluate)
app.add_typer(calibrate, name="calibrate")


def main() -> None:
    """Run the command line and leave the process with one of the documented exit codes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without λ gets a question mark, not a stack trace
    try:
        app(prog_name="dubito")
    except SystemExit as leaving:
        if leaving.code == INTERRUPTED:
            # model calls may still run in threads that a normal exit would wait for
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(INTERRUPTED)
        raise
