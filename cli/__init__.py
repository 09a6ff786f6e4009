"""The command line: `dubito ask | ui | mcp | eval | report | compare | trace | corpus | index | calibrate | ...`.

The options of each command are in its own file. Slow imports stay inside functions, so that `--help` answers at once.
"""

import io
import os
import sys
from typing import Annotated

import typer

from .. import __version__
from ..render.screen import help_lines
from .ask import ask
from .calibrate import calibrate
from .compare import compare
from .corpus import corpus
from .doctor import doctor
from .draw import draw
from .eval import evaluate
from .exits import INTERRUPTED, MEANINGS, Commands, epilog
from .index import index
from .list_settings import settings
from .mcp import mcp
from .prompts import prompts
from .report import report
from .seper import seper
from .serve import serve
from .traces import trace
from .ui import ui

app = typer.Typer(
    cls=Commands,
    name="dubito",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=help_lines("Start here", "dubito doctor", 'dubito ask "..."') + "\n\n" + MEANINGS,
)


def _print_version(is_given: bool) -> None:
    if is_given:
        typer.echo(f"dubito {__version__}")
        raise typer.Exit


@app.callback()
def _dubito(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Retrieval-augmented generation that knows when the model does not know, as LangGraph state machines."""


for _command in (
    ask,
    trace,
    seper,
    evaluate,
    report,
    compare,
    corpus,
    index,
    serve,
    ui,
    mcp,
    draw,
    prompts,
    settings,
    doctor,
):
    _examples = sys.modules[_command.__module__].EXAMPLES
    app.command("eval" if _command is evaluate else None, epilog=epilog(_examples))(_command)
app.add_typer(calibrate, name="calibrate")


def main() -> None:
    """Run the command line and exit with one of the documented exit codes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without λ shows a question mark
    try:
        app(prog_name="dubito")
    except SystemExit as leaving:
        if leaving.code == INTERRUPTED:
            # a normal exit would wait for threads that still call models
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(INTERRUPTED)
        raise
