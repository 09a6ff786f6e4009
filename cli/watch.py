"""Shows a run on the terminal while it runs. Running steps and the growing answer are redrawn, finished steps stay.

A pipe gets the finished steps and the answer.
"""

import contextlib
import time
from pathlib import Path
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live

from ..render.answer import answer_panel, answer_text, below_answer, settings_line
from ..render.facts import shown_answer
from ..render.screen import show
from ..render.terminal import step_block
from ..traces.events import AnswerPiece, Event, NodeEnd
from ..traces.run import Run
from ..traces.steps import Steps
from ..traces.writer import Trace


def follow(run: Run, trace: Path | None, screen: Console | None) -> None:
    """Run to the end; show the steps on the screen and write them to the trace, if given."""
    with contextlib.ExitStack() as stack:
        recorder = None if trace is None else stack.enter_context(Trace(trace, run))
        watch = None if screen is None else stack.enter_context(Watch(run, screen))
        for event in run:
            if recorder is not None:
                recorder.on(event)
            if watch is not None:
                watch.on(event)
    if watch is not None:
        watch.finish()


class Watch:
    """Shows one run; a context manager that restores the terminal."""

    def __init__(self, run: Run, console: Console) -> None:
        """Running steps are shown only on a terminal that can redraw."""
        self._run, self._console = run, console
        self._steps = Steps(run.graph.name, run.graph, run.context)
        self._stopped = False
        self._answer = ""
        self._live: Live | None = None
        if console.is_interactive:
            # redrawn by the thread that changes the steps: another thread could draw a half-changed step
            self._live = Live(console=console, auto_refresh=False, transient=True, get_renderable=self._running_steps)

    def __enter__(self) -> Self:
        """Show the settings and begin to draw."""
        show(self._console, settings_line(self._run))
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the running steps from the screen."""
        self._stopped = True
        if self._live is not None:
            self._live.stop()

    def on(self, event: Event | None) -> None:
        """Show the step that the event changed."""
        step = self._steps.on(event)
        if isinstance(event, AnswerPiece):
            self._answer = event.text if event.begins else self._answer + event.text
        if isinstance(event, NodeEnd) and step is not None and not step.running and (shown := step_block(step)):
            show(self._console, shown)
        if self._live is not None:
            self._live.refresh()

    def finish(self) -> None:
        """Show the answer."""
        if self._console.is_terminal:
            self._console.print(answer_panel(self._run))
        else:
            show(self._console, below_answer(self._run))
            # last and not wrapped, for programs that read the pipe
            self._console.print(answer_text(shown_answer(self._run.output)), soft_wrap=True)

    def _running_steps(self) -> RenderableType:
        if self._stopped:
            return Group()
        now = time.monotonic()
        steps = [step_block(step, now) or "" for step in self._steps.under_way]
        return Group(*steps, *([answer_text(self._answer)] if self._answer else []))
