"""A run as text files without passages and traces: small enough to keep beside a report, and read like the run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import UserFault
from ..traces.files import write_file
from .run_folder import MANIFEST, QUESTIONS, RESULTS, EvaluationRun
from .store import OUTCOMES, Store

LEFT_OUT = frozenset({"text", "rephrasings"})
"""Keys of an output whose values hold passages, or passages in other words."""

BEGINNING = b'{"system": '
"""How the file of outcomes begins."""


def keep_run(run: EvaluationRun, store: Store, folder: Path) -> int:
    """Write the run's questions, answers, measurements and signals into a folder; returns the bytes.

    `UserFault` if the folder holds a run or another file of these names, and if it cannot be written.
    """
    there = {name for name in (MANIFEST, QUESTIONS, OUTCOMES, RESULTS) if (folder / name).exists()}
    if RESULTS in there or (there and OUTCOMES not in there):
        raise UserFault(
            f"'{folder}' holds a run of dubito eval or a file that --keep did not write: name another folder."
        )
    lines = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in _lines(store))
    copied = {name: (run.folder / name).read_bytes() for name in (QUESTIONS, MANIFEST)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise UserFault(f"'{folder}' cannot be written ({fault.strerror}): choose another folder.") from fault
    # first the outcomes, which tell a kept run that is not complete from a run; a lone surrogate has no UTF-8
    size = write_file(folder / OUTCOMES, lines.encode(errors="backslashreplace"), "file of outcomes", BEGINNING)
    return size + sum(write_file(folder / name, content, "kept run") for name, content in copied.items())


def _lines(store: Store) -> Iterator[dict[str, Any]]:
    for outcome in store.outcomes():
        fields = {name: value for name, value in vars(outcome).items() if name != "trace"}
        yield {**fields, "output": _without_passages(outcome.output)}
    for metric in store.metrics():
        for (system, question), value in store.measurements(metric).items():
            yield {"system": system, "question": question, "metric": metric, "value": value}


def _without_passages(value: Any) -> Any:  # noqa: ANN401 - any JSON
    if isinstance(value, dict):
        return {key: type(part)() if key in LEFT_OUT else _without_passages(part) for key, part in value.items()}
    return [_without_passages(part) for part in value] if isinstance(value, list) else value
