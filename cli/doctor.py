"""`dubito doctor`: check the installation, and say how to repair it."""

from typing import Annotated

import typer

from ..render.sanitize import one_line
from ..render.screen import console, print_json, show, working
from .options import AsJson

EXAMPLES = (
    "dubito doctor",
    'dubito doctor --llm "vllm:http://127.0.0.1:8000/v1#my-model"',
    "dubito doctor --llm embedded --encoder embedded --json",
)

STYLES = {"ok": "green", "missing": "yellow", "failed": "bold red"}


def doctor(
    *,
    llm: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Also test this chat model with one short completion."),
    ] = None,
    encoder: Annotated[str | None, typer.Option(metavar="NAME", help="Also test this encoder with one text.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check the installation: installed extras, weights, GPU, cache folder and models, those configured too.

    The exit code is 0 if the models that are named or configured can run, else 1. Without one it is about the embedded
    models.
    """
    from ..state.context import PRESET  # noqa: PLC0415 - keeps `--help` quick
    from ..state.mixins import EncoderContext  # noqa: PLC0415 - keeps `--help` quick
    from .checks import all_checks, can_run, verdict  # noqa: PLC0415 - keeps `--help` quick

    with working("checking ...", as_json=as_json):
        found = {name: str(one.value) for name, one in EncoderContext.configured().items()}
        configured = {name: value for name, value in found.items() if value != PRESET}
        names = llm or configured.get("llm"), encoder or configured.get("encoder")
        checks = list(all_checks(*names))
    if as_json:
        print_json({"ok": can_run(checks), "checks": [vars(check) for check in checks]})
    else:
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        screen = console()
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for check in checks:
            detail = Text(one_line(check.detail))
            if check.remedy:
                detail.append("\n" + one_line(check.remedy), "bold")
            table.add_row(Text(check.name), Text(check.state, STYLES[check.state]), detail)
        show(screen, table)
        screen.print()
        screen.print(Text(one_line(verdict(checks, *names))))
    if not can_run(checks):
        raise typer.Exit(1)
