"""Writes the reference of the command line from its own commands, in place of `<!-- verbs -->`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from html import escape
from typing import Any

import typer
from dubito.cli import app
from dubito.cli.exits import MEANINGS

PLACE = "<!-- verbs -->"


def on_page_markdown(markdown: str, **_: Any) -> str:  # noqa: ANN401 - mkdocs' own signature
    """Write the commands into the page that has the mark."""
    if PLACE not in markdown:
        return markdown
    return markdown.replace(
        PLACE, "\n".join([*_exit_codes(), *_commands(_context("dubito", typer.main.get_command(app)))])
    )


def _exit_codes() -> Iterator[str]:
    yield "| exit code | what happened |\n|---|---|"
    for line in MEANINGS.splitlines()[2:]:
        code, meaning = line.split(maxsplit=1)
        yield f"| {code} | {meaning} |"
    yield ""


def _context(name: str, verb: Any, group: Any = None) -> Any:  # noqa: ANN401 - the typer package's own click
    return verb.make_context(name, [], parent=group, resilient_parsing=True)


def _commands(group: Any, level: int = 2) -> Iterator[str]:  # noqa: ANN401
    for name in group.command.list_commands(group):
        verb = group.command.get_command(group, name)
        context = _context(name, verb, group)
        yield f"{'#' * level} {context.command_path}\n"
        yield inspect.cleandoc(verb.help) + "\n"
        if hasattr(verb, "list_commands"):
            yield from _commands(context, level + 1)
        else:
            yield f"```console\n$ {' '.join([context.command_path, *verb.collect_usage_pieces(context)])}\n```\n"
            yield from _options(context)
        yield from _epilog(verb.epilog or "")


def _options(context: Any) -> Iterator[str]:  # noqa: ANN401
    yield "| option | what it does |\n|---|---|"
    for parameter in context.command.get_params(context):
        if record := parameter.get_help_record(context):
            name, text = (escape(part, quote=False).replace("|", "&#124;") for part in record)
            yield f"| <code>{name}</code> | {text} |"
    yield ""


def _epilog(text: str) -> Iterator[str]:
    for part in filter(None, text.split("\n\n")):
        heading, *lines = part.replace("\b\n", "").splitlines()
        if heading != "Exit codes:":  # the same for all commands
            yield "```console\n" + "\n".join(f"$ {line.strip()}" for line in lines) + "\n```\n"
