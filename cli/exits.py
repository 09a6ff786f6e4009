"""How a command ends: its exit code, and one sentence in place of a stack trace."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from typer.core import TyperGroup

from ..errors import DubitoError, UserFault
from .screen import clean, help_lines, print_json

ANSWERED, FAILED, USER_FAULT, UNEXPECTED, INTERRUPTED = 0, 1, 2, 70, 130

MEANINGS = help_lines(
    "Exit codes",
    "0    done",
    "1    a model or its server failed, or something needed is missing",
    "2    a question, setting, file or option that cannot be used",
    "70   a fault of dubito itself; DUBITO_DEBUG=1 shows where",
    "130  interrupted",
)


class Interrupted(Exception):
    """Ctrl-C, as an exception that the command-line library leaves alone."""


class Verbs(TyperGroup):
    """The commands, and the one place where what they raise becomes a sentence and an exit code."""

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - typer's own signature
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as key:
            raise Interrupted from key

    def main(self, args: Sequence[str] | None = None, *more: Any, **named: Any) -> Any:  # noqa: ANN401
        """Run the command line and exit."""
        arguments = list(sys.argv[1:] if args is None else args)
        try:
            code = super().main(arguments, *more, **{**named, "standalone_mode": False})
        except Exception as fault:
            code = _report(fault, as_json="--json" in _options(arguments))
        sys.exit(code if isinstance(code, int) else ANSWERED)


def explain(fault: Exception) -> tuple[int, str, str]:
    """Exit code, kind and sentence of a fault."""
    kind = type(fault).__name__
    if isinstance(fault, Interrupted):
        return INTERRUPTED, kind, "Interrupted."
    if isinstance(fault, UserFault):
        return USER_FAULT, kind, str(fault)
    if isinstance(fault, DubitoError):
        return FAILED, kind, str(fault)
    if usage := getattr(fault, "format_message", None):  # what typer raises for options it cannot read
        said = str(usage())
        if said and kind != "NoArgsIsHelpError":  # whose message is the help
            said = f"{said.rstrip('.')}. See --help."
        return USER_FAULT, kind, said
    if kind == "ValidationError":
        return USER_FAULT, kind, _wrong_values(fault)
    first_line = next(iter(str(fault).splitlines()), "")
    return UNEXPECTED, kind, f"Unexpected {kind}: {first_line[:300]} (run again with DUBITO_DEBUG=1 to see where)."


def _report(fault: Exception, *, as_json: bool) -> int:
    code, kind, sentence = explain(fault)
    if os.environ.get("DUBITO_DEBUG") and code != INTERRUPTED:
        traceback.print_exception(fault)
    if as_json:
        print_json({"error": {"type": kind, "message": sentence}})
    elif sentence:
        sys.stderr.write(clean(sentence, lines=True) + "\n")
    return code


def _options(arguments: list[str]) -> list[str]:
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


def _wrong_values(fault: Any) -> str:  # noqa: ANN401 - pydantic is imported by whoever raised it
    """The faults of a validation that no command put into words: those of the settings from the environment."""
    said = []
    for error in fault.errors():
        name = ".".join(str(part) for part in error["loc"])
        name = f"DUBITO_{name.upper()}" if fault.title == "Settings" else name
        said.append(f"{name} is {error['input']!r}: {error['msg']}")
    return "; ".join(said) + "."
