"""`dubito doctor`: what is installed, what works, and what to do about the rest."""

from __future__ import annotations

import contextlib
import sys
from typing import Annotated

import typer

from .screen import clean, console, help_lines, print_json, show

EXAMPLES = help_lines(
    "Examples",
    "dubito doctor",
    'dubito doctor --llm "vllm:http://127.0.0.1:8000/v1#my-model"',
    "dubito doctor --llm embedded --encoder embedded --json",
)

STYLES = {"ok": "green", "missing": "yellow", "failed": "bold red"}


def doctor(
    *,
    llm: Annotated[
        str | None,
        typer.Option(metavar="NAME", envvar="DUBITO_LLM", help="Also try this chat model, with one short completion."),
    ] = None,
    encoder: Annotated[
        str | None, typer.Option(metavar="NAME", envvar="DUBITO_ENCODER", help="Also try this encoder, with one text.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Show what works, what is missing and what to do.

    The exit code is 0 if the embedded default can run, else 1.
    """
    from .checks import checks, fit_for_default  # noqa: PLC0415 - what is heavy loads when it is needed

    screen = console()
    with contextlib.ExitStack() as stack:
        if as_json:
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        elif screen.is_interactive:
            stack.enter_context(screen.status("looking ..."))
        found = list(checks(llm, encoder))
    fit = fit_for_default(found)
    if as_json:
        print_json({"ok": fit, "checks": [vars(one) for one in found]})
    else:
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for one in found:
            said = Text(clean(one.detail))
            if one.remedy:
                said.append("\n" + clean(one.remedy), "bold")
            table.add_row(Text(one.name), Text(one.state, STYLES[one.state]), said)
        show(screen, table)
        screen.print()
        if fit:
            screen.print('The embedded default can run: dubito ask "..."')
        else:
            screen.print("The embedded default cannot run yet: see what is missing or failed above.")
    if not fit:
        raise typer.Exit(1)
