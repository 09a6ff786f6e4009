"""The figures of a report, each where the run has something for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ..reliability import parts, risk_coverage
from ..scores import Scored
from ..signals import SIGNALS
from .drawing import COLOURS, INK, Plot, colour, dash, label_of, legend, one_panel, panels
from .oracle import Oracle
from .summary import Section, Summary, of_system
from .words import called

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DSE_CUTS = (0.0, 0.2, 0.5, 0.8, 1.2)
"""Between the bins of DSE, in nats; the first bin is agreement of all answers."""


@dataclass(frozen=True)
class Measured:
    """What plots need beside the scores, for each system and question.

    levels: the chunk sets that df_rag selected, by λ; steps: ΔSePer after each step.
    """

    levels: Mapping[tuple[str, str], Mapping[float, frozenset[str]]]
    steps: Mapping[tuple[str, str], Sequence[float]]


def plots_of(summary: Summary, measured: Measured) -> list[Plot]:
    """The figures that the run has something for, dataset by dataset."""
    found = []
    for number, section in enumerate(summary.sections, 1):
        stem = f"{number}-{re.sub(r'[^A-Za-z0-9]+', '-', section.dataset).strip('-')[:60]}"
        for make in (_by_dse, _levels, _overlap, _spread_of_u, _by_step, _coverage):
            if (made := make(summary, section, measured)) is not None:
                name, title, note, draw = made
                found.append(Plot(f"{stem}-{name}", section.dataset, title, note, draw))
    return found


Made = tuple[str, str, str, Callable[[], "Figure"]]


def _by_dse(summary: Summary, section: Section, measured: Measured) -> Made | None:
    metric = summary.metric
    doubtful = _with_doubt(summary, section, "DSE")
    some = {
        label: scored
        for label, known in doubtful.items()
        if (scored := [one for one in known if metric in one.metrics])
    }
    if not some:
        return None

    def draw() -> Figure:
        figure, axis = one_panel()
        names = ["0", *(f"{low:g} to {high:g}" for low, high in pairwise(DSE_CUTS))]
        names.append(f"over {DSE_CUTS[-1]:g}")
        width = 0.8 / len(some)
        for i, (label, known) in enumerate(some.items()):
            bins = parts(_doubts(known), [one.metrics[metric] for one in known], DSE_CUTS)
            places = [place - 0.4 + (i + 0.5) * width for place, one in enumerate(bins) if one.questions]
            bars = axis.bar(
                places,
                [one.score for one in bins if one.score is not None],
                width * 0.94,
                color=colour(i),
                label=label_of(label),
            )
            axis.bar_label(bars, [f"{one.questions}" for one in bins if one.questions], padding=2)
        axis.set_xticks(range(len(names)), names)
        axis.set(xlabel="DSE in nats", ylabel=f"mean {called(metric)}")
        axis.margins(y=0.1)
        legend(figure)
        return figure

    note = "Mean score of the answers by their DSE; above a bar, how many answers it is of."
    return "dse", f"{called(metric)} by DSE", note, draw


def _levels(summary: Summary, section: Section, measured: Measured) -> Made | None:
    chosen = {
        system.label: [
            one.output["lambda_star"]
            for one in of_system(summary.scores, system.label, section.questions)
            if one.output.get("lambda_star") is not None
        ]
        for system in summary.bench.systems
        if system.graph == "df_rag"
    }
    chosen = {label: values for label, values in chosen.items() if values}
    if not chosen:
        return None
    for oracle in section.chosen:
        chosen[f"{oracle.label}, of λ = {_known(oracle)}"] = list(oracle.chosen.values())

    def draw() -> Figure:
        figure, axis = one_panel()
        levels = [round(0.1 * i, 1) for i in range(11)]
        width = 0.08 / len(chosen)
        for i, (label, values) in enumerate(chosen.items()):
            near = [_nearest(value, levels) for value in values]
            shares = [near.count(level) / len(near) for level in levels]
            places = [level - 0.04 + (i + 0.5) * width for level in levels]
            axis.bar(
                places, shares, width * 0.94, color=colour(i), label=f"{label_of(label)} ({len(values)} questions)"
            )
        axis.set_xticks(levels)
        axis.set(xlabel="chosen λ", ylabel="share of questions")
        legend(figure)
        return figure

    beside = " against the Oracle's, which knows the gold answer" if section.chosen else ""
    return "lambda", "Chosen λ", f"How often DF-RAG chose each level of diversity{beside}.", draw


def _overlap(summary: Summary, section: Section, measured: Measured) -> Made | None:
    ids = [one.id for one in section.questions]
    found = {
        system.label: overlaps(sets)
        for system in summary.bench.systems
        if (sets := [measured.levels[system.label, one] for one in ids if (system.label, one) in measured.levels])
    }
    if not found:
        return None

    def draw() -> Figure:
        figure, axes = panels(len(found), 4.2, 3.7)
        for axis, (label, (levels, shares)) in zip(axes, found.items(), strict=False):
            edges = np.arange(len(levels) + 1)
            # not an image, which the page would not show
            axis.pcolormesh(edges, edges, shares, vmin=0, vmax=1, cmap="Blues")
            for row, column in np.ndindex(*shares.shape):
                ink = "white" if shares[row, column] > 0.55 else "#1b1f24"
                axis.text(column + 0.5, row + 0.5, f"{shares[row, column]:.1f}", color=ink, ha="center", va="center",
                          fontsize=7)  # fmt: skip
            axis.set_xticks(edges[:-1] + 0.5, [f"{level:g}" for level in levels])
            axis.set_yticks(edges[:-1] + 0.5, [f"{level:g}" for level in levels])
            axis.set(title=label_of(label), xlabel="λ", ylabel="λ")
        return figure

    note = "How much the chunk sets of two levels of diversity have in common (Jaccard), as a mean over questions."
    return "overlap", "Overlap of the chunk sets", note, draw


def _spread_of_u(summary: Summary, section: Section, measured: Measured) -> Made | None:
    some = _with_doubt(summary, section, "highest U")
    if not some:
        return None

    def draw() -> Figure:
        figure, axes = panels(len(some), 4.6, 3.1)
        for axis, (label, known) in zip(axes, some.items(), strict=False):
            split = [_doubts(one for one in known if one.right == wanted) for wanted in (True, False)]
            names = [f"right ({len(split[0])})", f"wrong ({len(split[1])})"]
            axis.hist(split, bins=14, label=names, color=[COLOURS[0], COLOURS[1]])
            for delta in {one.threshold for one in known if one.threshold is not None}:
                axis.axvline(delta, color=INK, linestyle="--", linewidth=1, label=f"δ = {delta:.3g}")
            axis.set(title=label_of(label), xlabel="U of the most uncertain step", ylabel="questions")
            axis.legend()
        return figure

    note = "The most uncertain step of each question, of right and of wrong answers; above δ something is looked up."
    return "u", "Uncertainty of right and wrong answers", note, draw


def _by_step(summary: Summary, section: Section, measured: Measured) -> Made | None:
    ids = [one.id for one in section.questions]
    found = {
        system.label: deltas
        for system in summary.bench.systems
        if (deltas := [measured.steps[system.label, one] for one in ids if measured.steps.get((system.label, one))])
    }
    if not found:
        return None

    def draw() -> Figure:
        figure, axis = one_panel()
        for i, (label, deltas) in enumerate(found.items()):
            means = [np.mean(at) for at in by_place(deltas)]
            axis.plot(range(1, len(means) + 1), means, marker="o", color=colour(i), label=label_of(label), ls=dash(i))
        axis.axhline(0, color=INK, linewidth=0.8)
        axis.set_xticks(range(1, 1 + max(len(one) for deltas in found.values() for one in deltas)))
        axis.set(xlabel="step", ylabel="mean ΔSePer")
        legend(figure)
        return figure

    note = (
        "How much belief in the right answer is added by what a step had retrieved; later steps have fewer questions."
    )
    return "steps", "ΔSePer by step", note, draw


def _coverage(summary: Summary, section: Section, measured: Measured) -> Made | None:
    some = {label: known for name in _signal_names() for label, known in _with_doubt(summary, section, name).items()}
    if not some:
        return None

    def draw() -> Figure:
        figure, axis = one_panel()
        for i, (label, known) in enumerate(some.items()):
            curve = risk_coverage(_doubts(known), [1 - one.metrics["f1"] for one in known])
            axis.plot(curve.coverage, curve.risk, color=colour(i), ls=dash(i), marker="." if len(known) < 15 else "",
                      label=f"{label_of(label)} (AURC {curve.aurc:.3f})")  # fmt: skip
        axis.set(xlabel="share of questions answered, the most certain first", ylabel="risk: mean of 1 − F1",
                 xlim=(0, 1.02), ylim=(0, 1.02))  # fmt: skip
        legend(figure)
        return figure

    note = "The risk of answering only the questions that a system is most certain of; lower is better, flat is chance."
    return "risk-coverage", "Risk and coverage", note, draw


def overlaps(sets: Sequence[Mapping[float, frozenset[str]]]) -> tuple[list[float], Any]:
    """The levels that all of at least one questions have, and the mean Jaccard index of each two of them, [L, L]."""
    levels = sorted(set.intersection(*(set(one) for one in sets)))
    means = [[float(np.mean([_jaccard(one[a], one[b]) for one in sets])) for b in levels] for a in levels]
    return levels, np.array(means).reshape(len(levels), len(levels))


def by_place(rows: Sequence[Sequence[float]]) -> list[list[float]]:
    """The first values of all rows, the second ones of those that have two, ..."""
    return [[row[place] for row in rows if len(row) > place] for place in range(max(map(len, rows)))]


def _jaccard(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / len(one | other) if one | other else 1.0


def _known(oracle: Oracle) -> str:
    return ", ".join(f"{level:g}" for level in oracle.levels)


def _signal_names() -> list[str]:
    return list(dict.fromkeys(signal.name for signal in SIGNALS.values()))


def _with_doubt(summary: Summary, section: Section, signal: str) -> dict[str, list[Scored]]:
    """The answers of the systems with that signal that have one."""
    found = {
        system.label: [
            one for one in of_system(summary.scores, system.label, section.questions) if one.doubt is not None
        ]
        for system in summary.bench.systems
        if system.graph in SIGNALS and SIGNALS[system.graph].name == signal
    }
    return {label: known for label, known in found.items() if known}


def _doubts(known: Iterable[Scored]) -> list[float]:
    return [one.doubt for one in known if one.doubt is not None]


def _nearest(value: float, levels: Sequence[float]) -> float:
    return min(levels, key=lambda level: abs(level - value))
