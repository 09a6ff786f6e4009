"""Many questions at a time, for `dubito eval` and `dubito calibrate`: the progress bar, what is kept, the failures."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from ..errors import UserFault
from ..evals.run_folder import EvaluationTask
from ..evals.runner import Ask, run_all, unfinished
from ..evals.store import Outcome, Store, repair
from ..models.background import run_in_background
from ..presenters.words import counted
from ..render.sanitize import one_line, shortened
from .bars import ProgressBar

MOST_FAILURES_SHOWN = 5
"""Failed questions that are listed. The others are counted."""


class Bar(ProgressBar):
    """Finished questions, their cost, the time left."""

    def __init__(self, screen: Console, before: int, total: int, *, quiet: bool, as_json: bool) -> None:
        """before: questions finished in an earlier run; quiet, as_json: see `ProgressBar`."""
        super().__init__(screen, "opening models and corpus", quiet=quiet, as_json=as_json)
        self._total, self._before, self._done, self._failed = total, before, 0, 0
        self._calls = self._tokens = 0

    def prepare(self, what: str, done: int, total: int) -> None:
        """Show the progress of a preparation, such as indexing, and after its end the questions that are left."""
        if done >= total and self._before + self._done < self._total:
            self.show_questions()
        else:
            self.show(what, done, total, f"{done:,} of {total:,}")

    def end(self, *, failed: bool, usage: Mapping[str, Any] | None = None) -> None:
        """Count a question. usage: its cost, if known."""
        self._done += 1
        self._failed += failed
        if usage is not None:
            self._calls += usage["calls"]
            self._tokens += usage["prompt_tokens"] + usage["completion_tokens"]
        self.show_questions()

    def show_questions(self) -> None:
        """Show how many questions are finished."""
        done = self._before + self._done
        so_far = [f"{done:,} of {self._total:,}"]
        if self._done:
            so_far.append(self.pace(self._done, self._total - done))
        if self._calls:
            so_far.append(f"{self._calls:,} calls, {self._tokens:,} tokens")
        if self._failed:
            so_far.append(f"{self._failed} failed")
        self.show("questions", done, self._total, ", ".join(so_far))


def open_store(path: Path, *, repairing: bool, repair_with: str = "") -> Store:
    """Open the outcomes of a run to add to them. repairing: first keep only the rows that can be read."""
    if repairing and (repaired := repair(path)):
        sys.stderr.write(f"{repaired}\n")
    store = Store(path, new=True, repair_with=repair_with)
    try:
        store.check()  # a damaged row is found before questions are asked, not when the report is made
    except UserFault:
        store.close()
        raise
    return store


@contextmanager
def progress(
    screen: Console,
    tasks: Sequence[EvaluationTask],
    store: Store,
    *,
    retry_failed: bool,
    quiet: bool,
    as_json: bool,
    resume: str,
) -> Iterator[Bar]:
    """A bar over all tasks. Ctrl-C prints how many are finished and kept.

    quiet, as_json: see `ProgressBar`; resume: how to go on after Ctrl-C.
    """

    def finished() -> int:
        return len(tasks) - len(unfinished(tasks, store, retry_failed=retry_failed))

    before = finished()
    if before and not quiet and not as_json:
        screen.print(f"{before} of {counted(len(tasks), 'question')} were finished before.")
    with Bar(screen, before, len(tasks), quiet=quiet, as_json=as_json) as bar:
        try:
            yield bar
        except KeyboardInterrupt:
            kept = f"{finished()} of {counted(len(tasks), 'question')} are finished and kept"
            sys.stderr.write(f"{kept}: {resume}\n")
            raise


def ask_unfinished(
    tasks: Sequence[EvaluationTask], ask: Ask, store: Store, bar: Bar, *, at_once: int, retry_failed: bool
) -> None:
    """Ask all unfinished tasks and count them on the bar."""

    def on_end(outcome: Outcome) -> None:
        bar.end(failed=outcome.error is not None, usage=(outcome.output or {}).get("usage"))

    bar.begin("questions")
    bar.show_questions()
    run_in_background(run_all(tasks, ask, store, at_once=at_once, retry_failed=retry_failed, on_end=on_end))


def show_failures(screen: Console, failures: Sequence[tuple[str, str]]) -> None:
    """List the first failures and count the others. failures: question and reason."""
    for question, reason in failures[:MOST_FAILURES_SHOWN]:
        screen.print(Text(f"Failed: {shortened(question, 60)}: {one_line(reason)}", "yellow"))
    if len(failures) > MOST_FAILURES_SHOWN:
        screen.print(Text(f"and {counted(len(failures) - MOST_FAILURES_SHOWN, 'more question')} failed", "yellow"))
