"""Commands in processes of their own that are ended with kill -9."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path

import pytest

PATIENCE_S = 60.0

PRELOADED = [
    "dubito.cli.evaluating",
    "dubito.cli.indexing",
    "dubito.cli.calibrating",
    "dubito.cli.watch",
    "dubito.evals.retrieval_threshold_calibration",
    "dubito.graphs.cot",
    "dubito.models.openai_chat",
    "openai.resources.chat.completions",
    "openai.resources.embeddings",
]
"""What commands import for seconds. A process that is forked after them begins at once."""

_forks = get_context("forkserver")
_forks.set_forkserver_preload(PRELOADED)


def _command(arguments: list[str], hold: str) -> None:
    from dubito.cli import app  # noqa: PLC0415 - in the child

    if hold:
        place, _, signal_file = hold.partition(" ")
        module, _, name = place.rpartition(".")

        def wait(*_: object, **__: object) -> None:
            Path(signal_file).touch()
            time.sleep(2 * PATIENCE_S)

        pytest.MonkeyPatch().setattr(import_module(module), name, wait)
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1)
    os.dup2(devnull, 2)
    app(arguments)


def killed(arguments: list[object], reached: Callable[[], bool], hold: str = "") -> None:
    """Begin a command and kill it as soon as `reached`.

    hold: 'MODULE.FUNCTION FILE'; the command makes the file and waits where it would call the function.
    """
    process = _forks.Process(target=_command, args=([str(one) for one in arguments], hold), daemon=True)
    process.start()
    until = time.monotonic() + PATIENCE_S
    while not reached() and process.is_alive() and time.monotonic() < until:
        time.sleep(0.002)
    was_alive = process.is_alive()
    assert process.pid is not None
    if was_alive:
        os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert was_alive, "the command ended before it was killed"
