"""Makes a graph's context from texts: options and `name=value` assignments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserFault
from ..state.wrong_settings import no_setting
from .registry import context_type

if TYPE_CHECKING:
    from ..state.context import BaseContext
    from .registry import Graph


def context_for(
    graph: Graph, options: Mapping[str, str | None], assignments: Sequence[str], *, check: bool = True
) -> BaseContext:
    """The graph's context from options (None: not given) and `name=value` assignments.

    check: refuse a setting that has no effect. Raises `UserFault` for unknown, repeated and invalid settings.
    """
    schema = context_type(graph)
    values = given_values(graph, options, assignments)
    # pydantic reads numbers and truth values from text
    return schema(**values) if check else schema.unchecked(values)


def given_values(graph: Graph, options: Mapping[str, str | None], assignments: Sequence[str]) -> dict[str, Any]:
    """The settings that the options and assignments name, as texts; raises as `context_for`, but for their values.

    The option `prompts` is a folder, which is read, and the option `calibration` a file, whose settings are those that
    nothing else names. An assignment, which may come from a page, reads none.
    """
    fields = context_type(graph).model_fields
    values: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if folder := values.get("prompts"):
        from ..prompt_templates import read_folder  # noqa: PLC0415 - keeps `--help` quick

        values["prompts"] = read_folder(Path(folder).expanduser())
    if unknown := next((name for name in values if name not in fields), None):
        raise UserFault(f"{graph.name} has no setting '{unknown}': leave --{unknown} out.")
    for assignment in assignments:
        name, sign, value = assignment.partition("=")
        if not sign:
            raise UserFault(f"--set takes name=value, such as --set k=3, and got '{assignment}'.")
        if name not in fields:
            raise UserFault(no_setting(name, fields, graph.name))
        if name in values:
            raise UserFault(f"The setting {name} is given twice: give it once.")
        values[name] = value
    if file := options.get("calibration"):
        from ..state.calibration import AnswerCalibration  # noqa: PLC0415

        calibrated = AnswerCalibration.read(file, graph.name).context
        values = {**{name: value for name, value in calibrated.items() if name in fields}, **values}
    return values
