"""What a report takes from the run beside the outcomes: the traces in short, and what some plots are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...traces.recording import Recording, last_update
from ..bench import Bench
from ..store import Store
from .plots import Measured
from .steps import Told, recorded, told_of


@dataclass(frozen=True)
class Material:
    """steps: by system and question, those that are told, and how many more there are."""

    measured: Measured
    steps: Mapping[tuple[str, str], tuple[Sequence[Told], int]]


def material_of(bench: Bench, store: Store) -> Material:
    """From the traces, one at a time, and from what was measured beside the outcomes."""
    levels, steps = {}, {}
    explored = {system.label for system in bench.systems if system.graph == "df_rag"}
    for system in bench.systems:
        for asked in bench.questions:
            key = system.label, asked.id
            if (trace := store.trace(*key)) is None:
                continue
            recording = recorded(" ".join(key), trace)
            steps[key] = told_of(recording)
            if system.label in explored and (sets := levels_of(recording)):
                levels[key] = sets
    deltas = {
        key: [float(one["delta"]) for one in found["steps"] if one["what"] == "known"]
        for key, found in store.measurements("seper_steps").items()
    }
    return Material(Measured(levels, deltas), steps)


def levels_of(recording: Recording) -> dict[float, frozenset[str]]:
    """The chunks that DF-RAG selected at each level of diversity."""
    found = last_update(recording.steps, "candidates").get("candidates") or []
    return {float(level): frozenset(one["chunk_ids"]) for one in found for level in one["lambdas"]}
