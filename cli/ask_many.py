"""Many questions asked one after the other for `dubito calibrate`: where their outcomes are kept, how far they are."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bars
from rich.text import Text

from ..errors import DubitoError, UserFault
from ..evals.calibration import identity, is_calibration, settings_of
from ..evals.questions import GoldQuestion
from ..evals.records import Record, Records, ask_all, key_of
from ..models.background import run_in_background
from ..models.metering import Meter, current_meter
from ..state.context import BaseContext
from .screen import clean, counted, duration, shorten

MOST_FAILURES_SHOWN = 5
"""Questions that failed and are listed; the others are counted."""


def records_beside(out: Path) -> Path:
    """Where what is found for each question is kept: x.questions.jsonl beside x.json."""
    return out.with_name(f"{out.name.removesuffix('.json')}.questions.jsonl")


def check_target(out: Path) -> None:
    """Refuse a file that would be lost and a place that cannot be written, before anything is computed."""
    if out.exists() and not is_calibration(out):
        raise UserFault(f"'{out}' is there and is no calibration: give another --out.")
    folder = out.absolute().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UserFault(f"'{out}' cannot be written, as '{folder}' is no folder to write to: give another --out.")


def keys_of(technique: str, context: BaseContext, questions: Sequence[GoldQuestion]) -> dict[str, str]:
    """Each question under the key of all that its outcome depends on, in their order."""
    settings = {**settings_of(context), "llm": identity(context.llm), "corpus": context.corpus}
    return {key_of(technique, settings, one.question): one.question for one in questions}


def ask_them(
    keys: Mapping[str, str],
    open_it: Callable[[], Awaitable[None]],
    ask: Callable[[str], Awaitable[dict[str, Any]]],
    records: Records,
    *,
    at_once: int,
    screen: Console,
    quiet: bool,
) -> None:
    """Ask the questions that have no outcome yet; open_it: opens the models, and refuses what cannot be opened.

    Says what was done before; if it is interrupted, what is kept.
    """
    before = done_of(keys, records)
    if before == len(keys):
        return
    if before and not quiet:
        screen.print(f"{before} of {counted(len(keys), 'question')} were done before.")
    with Bar(screen, before, len(keys), moves=screen.is_interactive and not quiet) as bar:

        async def all_of_them() -> None:
            current_meter.set(Meter(on_progress=bar.prepare))
            await open_it()
            current_meter.set(None)
            bar.begin()
            await ask_all(
                keys, ask, records, at_once=at_once, on_end=lambda record: bar.end(failed=record["found"] is None)
            )

        try:
            run_in_background(all_of_them())
        except KeyboardInterrupt:
            done = done_of(keys, records)
            kept = f"{done} of {counted(len(keys), 'question')} are done and kept: run the same again to go on."
            sys.stderr.write(kept + "\n")
            raise


def failures_of(keys: Iterable[str], records: Records) -> list[Record]:
    """The questions that failed; `DubitoError` if all did."""
    keys = list(keys)
    failed = [record for key in keys if (record := records.get(key)) is not None and record["found"] is None]
    if len(failed) == len(keys):
        raise DubitoError(
            f"None of {counted(len(keys), 'question')} was answered, the first one so: {failed[0]['error']}"
        )
    return failed


def show_failures(screen: Console, failed: Sequence[Record]) -> None:
    """The first of them, and how many more there are."""
    for record in failed[:MOST_FAILURES_SHOWN]:
        screen.print(Text(f"Failed: {shorten(record['question'], 60)}: {clean(record['error'] or '')}", "yellow"))
    if len(failed) > MOST_FAILURES_SHOWN:
        screen.print(Text(f"and {counted(len(failed) - MOST_FAILURES_SHOWN, 'more question')} failed", "yellow"))


def done_of(keys: Mapping[str, str], records: Records) -> int:
    """How many questions have an outcome."""
    return sum(records.found(key) is not None for key in keys)


class Bar:
    """How many questions are done, what they cost, and how long the others will take. In a pipe nothing."""

    def __init__(self, screen: Console, before: int, total: int, *, moves: bool) -> None:
        """before: questions that were done earlier; moves: is there someone to watch?"""
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=None), TextColumn("{task.fields[so_far]}"))
        self._bars = Bars(*columns, console=screen, transient=True, disable=not moves, expand=True)
        self._task = self._bars.add_task("opening models and corpus", total=None, so_far="")
        self._total, self._before, self._done, self._failed = total, before, 0, 0
        self._calls = self._tokens = 0
        self._begun = time.monotonic()

    def __enter__(self) -> Self:
        """Begin to draw."""
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Take it away."""
        self._bars.stop()

    def prepare(self, what: str, done: int, total: int) -> None:
        """A preparation got so far."""
        self._bars.update(
            self._task, description=clean(what), completed=done, total=total, so_far=f"{done:,} of {total:,}"
        )

    def begin(self) -> None:
        """The first question is asked."""
        self._begun = time.monotonic()
        self._show()

    def end(self, *, failed: bool, usage: Mapping[str, Any] | None = None) -> None:
        """A question is done, or failed; usage: what it cost, where that is known."""
        self._done += 1
        self._failed += failed
        if usage is not None:
            self._calls += usage["calls"]
            self._tokens += usage["prompt_tokens"] + usage["completion_tokens"]
        self._show()

    def _show(self) -> None:
        done, taken = self._before + self._done, time.monotonic() - self._begun
        so_far = [f"{done:,} of {self._total:,}"]
        if self._done:
            so_far.append(rate(self._done, taken))
            so_far.append(f"{duration((self._total - done) * taken / self._done)} left")
        if self._calls:
            so_far.append(f"{self._calls:,} calls, {self._tokens:,} tokens")
        if self._failed:
            so_far.append(f"{self._failed} failed")
        text = ", ".join(so_far)
        self._bars.update(self._task, description="questions", completed=done, total=self._total, so_far=text)


def rate(count: int, seconds: float) -> str:
    """'3.1 a second', '12 a minute'."""
    each = count / max(seconds, 1e-9)
    return f"{each:.1f} a second" if each >= 1 else f"{each * 60:.1f} a minute"
