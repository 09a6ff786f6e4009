"""`dubito calibrate`: a threshold from questions with gold answers; a command for each technique that has one."""

from __future__ import annotations

import inspect
import pkgutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from .. import evals
from ..render.screen import help_lines
from .exits import MEANINGS
from .options import (
    AsJson,
    Assignments,
    AtOnce,
    Chunker,
    ConfigFile,
    Corpus,
    Encoder,
    K,
    Llm,
    Preset,
    Prompts,
    Quiet,
    Repair,
)

if TYPE_CHECKING:
    from pydantic import BaseModel

MODULES = "_calibration"
"""The end of the names of the modules in `evals` that calibrate a technique."""

SETTINGS = ("corpus", "llm", "encoder", "chunker", "preset", "k", "prompts")
"""The settings with an option of their own; a technique that has no such setting refuses it."""


def _common(
    questions: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help='JSON lines such as {"question": "...", "answers": ["..."]}, or KIND:FILE.'
        ),
    ],
    *,
    corpus: Corpus = None,
    llm: Llm = None,
    encoder: Encoder = None,
    chunker: Chunker = None,
    preset: Preset = None,
    prompts: Prompts = None,
    k: K = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The calibration file.  [default: TECHNIQUE.calibration.json]")
    ] = None,
    assignments: Assignments = None,
    right: Annotated[
        str, typer.Option(metavar="RULE", help="When an answer is right: f1:T (F1 at least T) or exact.")
    ] = "f1:0.5",
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="Only the file's first N questions.")] = None,
    at_once: AtOnce = 4,
    config_file: ConfigFile = None,
    quiet: Quiet = False,
    repair: Repair = False,
    as_json: AsJson = False,
) -> None:
    """The options of every technique."""


class _Techniques(TyperGroup):
    """The techniques with a calibration as commands, each made when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401 - click's own signature
        names = [module.name for module in pkgutil.iter_modules(evals.__path__)]
        return sorted(name.removesuffix(MODULES) for name in names if name.endswith(MODULES))

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        """Name the techniques without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, f"Options: dubito calibrate {name} --help") for name in self.list_commands(ctx)])

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401
        return _command(cmd_name) if cmd_name in self.list_commands(ctx) else None


calibrate = typer.Typer(
    cls=_Techniques,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Find a technique's threshold from questions with gold answers.",
)


@calibrate.callback()
def _calibrate() -> None:
    """Find a technique's threshold from questions with gold answers."""


def _command(technique: str) -> Any:  # noqa: ANN401 - a click command
    from ..evals.calibration import calibrator_of  # noqa: PLC0415 - heavy imports
    from .calibrating import run_calibration  # noqa: PLC0415

    calibrator = calibrator_of(technique)
    own = calibrator.options.model_fields

    def verb(**given: Any) -> None:  # noqa: ANN401
        del given["config_file"]  # its callback has read it
        run_calibration(
            technique,
            calibrator,
            options={name: given.pop(name) for name in SETTINGS},
            own={name: given.pop(name) for name in own},
            **given,
        )

    common = inspect.signature(_common, eval_str=True).parameters
    parameters = [*common.values(), *_options_of(calibrator.options)]
    verb.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    verb.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    app.command(
        technique,
        help=inspect.getdoc(calibrator),
        epilog=help_lines("Examples", *calibrator.examples) + "\n\n" + MEANINGS,
    )(verb)
    return typer.main.get_command(app)


def _options_of(model: type[BaseModel]) -> list[inspect.Parameter]:
    """An option for each field of a pydantic model. A field's title is the name of its value in the help."""
    return [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=Annotated[field.annotation, typer.Option(help=field.description, metavar=field.title)],
            default=field.get_default(),
        )
        for name, field in model.model_fields.items()
    ]
