"""`dubito calibrate`: thresholds for graphs and SeaKR's δ, and SUNAR's p-values, from questions with gold answers."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from ..graphs.registry import graph_names
from .completion import GRAPH_OF_SETTING
from .exits import epilog
from .options import AsJson, Assignments, AtOnce, ConfigFile, Quiet, Repair, set_parameters, with_graph_options

if TYPE_CHECKING:
    from pydantic import BaseModel


def _common(
    questions: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help='JSON lines such as {"question": "...", "answers": ["..."]}, or KIND:FILE; or the folder of an '
            "evaluation.",
        ),
    ],
    *,
    settings: Mapping[str, str | None],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The calibration file.  [default: GRAPH.calibration.json]")
    ] = None,
    assignments: Assignments = None,
    right: Annotated[
        str | None,
        typer.Option(metavar="RULE", help="When an answer is right: exact, or METRIC:T.  [default: f1:0.5]"),
    ] = None,
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="Only the file's first N questions.")] = None,
    system: Annotated[
        str | None, typer.Option(metavar="LABEL", help="Of an evaluation: the system, if several have the graph.")
    ] = None,
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
        return sorted([*graph_names(), *GRAPH_OF_SETTING])

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        """Name the techniques without importing them."""
        with formatter.section("Commands"):
            graphs = ", ".join(graph_names())
            formatter.write_dl(
                [
                    (graphs, "which of its answers to give"),
                    ("retrieval_threshold", "when SeaKR retrieves (δ)"),
                    ("penalty", "the p-values of SUNAR's penalty=conformal"),
                ]
            )

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
    from ..evals.answer_calibration import calibrator_for  # noqa: PLC0415 - heavy imports
    from ..evals.penalty_calibration import PenaltyCalibrator  # noqa: PLC0415
    from ..evals.retrieval_threshold_calibration import ThresholdCalibrator  # noqa: PLC0415
    from .calibrating import run_calibration  # noqa: PLC0415

    of_settings: dict[str, Any] = {"retrieval_threshold": ThresholdCalibrator, "penalty": PenaltyCalibrator}
    calibrator: Any = of_settings.get(technique) or calibrator_for(technique)
    own = calibrator.options.model_fields

    def verb(settings: Mapping[str, str | None], **given: Any) -> None:  # noqa: ANN401
        del given["config_file"]  # its callback has read it
        run_calibration(
            technique,
            calibrator,
            options=settings,
            own={name: given.pop(name) for name in own},
            **given,
        )

    common = inspect.signature(_common, eval_str=True).parameters
    set_parameters(verb, [*common.values(), *_options_of(calibrator.options)])
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    command = app.command(technique, help=inspect.getdoc(calibrator), epilog=epilog(calibrator.examples))
    command(with_graph_options(verb))
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
