"""The end of a command: its exit code, and one sentence instead of a stack trace."""

import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from typer.core import TyperGroup

from ..config import config
from ..errors import DubitoError, UserFault, sentence_of
from ..render.sanitize import sanitize
from ..render.screen import help_lines, print_json
from ..settings import settings

ANSWERED, FAILED, USER_FAULT, UNEXPECTED, INTERRUPTED = 0, 1, 2, 70, 130

MEANINGS = help_lines(
    "Exit codes",
    "0    done",
    "1    a model or its server failed, or `doctor` misses what is needed",
    "2    a wrong question, setting, file or option, or a missing package",
    "70   an error in dubito itself; DUBITO_DEBUG=1 shows where",
    "130  interrupted",
)


def epilog(examples: Sequence[str]) -> str:
    """The end of a command's help: its examples, and the exit codes."""
    return "\n\n".join([help_lines("Examples", *examples), MEANINGS])


class Interrupted(Exception):
    """Ctrl-C or SIGTERM, as an exception that typer does not catch."""


class Commands(TyperGroup):
    """The commands. An exception of any command becomes a sentence and an exit code here."""

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - typer's own signature
        """Run a command. SIGTERM and SIGHUP end it as Ctrl-C does: files are closed and children ended."""
        try:
            with interruptible():
                return super().invoke(ctx)
        except KeyboardInterrupt as key:
            raise Interrupted from key

    def main(self, args: Sequence[str] | None = None, *more: Any, **named: Any) -> Any:  # noqa: ANN401
        """Run the command line and exit."""
        arguments = list(sys.argv[1:] if args is None else args)
        try:
            with _configuration_of_one_command():
                _bind_keys([*arguments, os.environ.get("DUBITO_LLM", "")])
                code = super().main(arguments, *more, **{**named, "standalone_mode": False})
        except Exception as fault:
            code = _report(fault, as_json="--json" in _options(arguments))
        sys.exit(code if isinstance(code, int) else ANSWERED)


@contextmanager
def _configuration_of_one_command() -> Iterator[None]:
    """Forget what --config names at the end of the command, for a program that calls several."""
    before = os.environ.get("DUBITO_CONFIG")
    try:
        yield
    finally:
        if os.environ.get("DUBITO_CONFIG") != before:
            os.environ.pop("DUBITO_CONFIG") if before is None else os.environ.update(DUBITO_CONFIG=before)
            config.cache_clear()
            settings.cache_clear()


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP raise `KeyboardInterrupt` in the main thread; nothing changes for other threads."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    is_main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGTERM, signal.SIGHUP) if is_main else ()
    with handling([n for n in numbers if signal.getsignal(n) is not signal.SIG_IGN], interrupt):  # nohup
        yield


@contextmanager
def handling(numbers: Sequence[signal.Signals], handler: Any) -> Iterator[None]:  # noqa: ANN401 - of `signal.signal`
    """Handle these signals in this way."""
    before = [signal.signal(number, handler) for number in numbers]
    try:
        yield
    finally:
        for number, previous in zip(numbers, before, strict=True):
            signal.signal(number, previous)


def _bind_keys(texts: Sequence[str]) -> None:
    """Let the keys of the environment go to the servers that the command line names."""
    if any("://" in text for text in texts):
        from ..server_url import bind_general_keys  # noqa: PLC0415 - keeps `--help` quick

        bind_general_keys(texts)


def explain(fault: Exception) -> tuple[int, str, str]:
    """The exit code, the kind and the sentence of a fault."""
    kind = type(fault).__name__
    if isinstance(fault, Interrupted):
        return INTERRUPTED, kind, "Interrupted."
    if isinstance(fault, UserFault):
        return USER_FAULT, kind, str(fault)
    if isinstance(fault, DubitoError):
        return FAILED, kind, str(fault)
    if usage := getattr(fault, "format_message", None):  # typer's exceptions for wrong options
        sentence = str(usage())
        if sentence and kind != "NoArgsIsHelpError":  # its message is the help text
            sentence = f"{sentence.rstrip('.')}. See --help."
        return USER_FAULT, kind, sentence
    return UNEXPECTED, kind, sentence_of(fault)


def _report(fault: Exception, *, as_json: bool) -> int:
    code, kind, sentence = explain(fault)
    if os.environ.get("DUBITO_DEBUG") and code != INTERRUPTED:
        traceback.print_exception(fault)
    if as_json:
        print_json({"error": {"type": kind, "message": sentence}})
    elif sentence:
        sys.stderr.write(sanitize(sentence) + "\n")
    return code


def _options(arguments: list[str]) -> list[str]:
    return arguments[: arguments.index("--")] if "--" in arguments else arguments
