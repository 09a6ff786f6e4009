"""The plots of a report. Each is made only if the run has data for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ..reliability import by_uncertainty, risk_coverage
from ..scores import NodeCost, ScoredOutcome
from .drawing import COLOURS, INK, Plot, label_of, legend, panels
from .inputs import ReportInputs
from .summary import Section, Summary, of_system
from .words import called

if TYPE_CHECKING:
    from matplotlib.figure import Figure

T = TypeVar("T")

DSE = "DSE"
DSE_CUTS = (0.0, 0.2, 0.5, 0.8, 1.2)
"""Edges between the bins of DSE, in nats. In the first bin all answers agree."""

DIGITS = 6
"""Digits after which two levels of diversity are the same."""


def plots_of(summary: Summary, inputs: ReportInputs) -> list[Plot]:
    """The plots of all sections."""
    plots: list[Plot] = []
    for number, section in enumerate(summary.shown, 1):
        stem = f"{number}-{re.sub(r'[^A-Za-z0-9]+', '-', section.dataset).strip('-')[:60]}"
        kinds = (_by_dse, _levels, _overlap, _right_and_wrong, _by_step, _risk_coverage, _cost, _stages)
        made = (plot_of(summary, section, inputs) for plot_of in kinds)
        plots += [replace(plot, name=f"{stem}-{plot.name}") for plot in made if plot is not None]
    return plots


def _by_dse(summary: Summary, section: Section, inputs: ReportInputs) -> Plot | None:
    metric = summary.metric
    by_system = {
        label: scored
        for label, outcomes in _with_uncertainty(summary, section).items()
        if _signal(outcomes) == DSE and (scored := [outcome for outcome in outcomes if metric in outcome.metrics])
    }
    if not by_system:
        return None

    def draw() -> Figure:
        figure, (axis,) = panels()
        names = ["0", *(f"{low:g} to {high:g}" for low, high in pairwise(DSE_CUTS))]
        names.append(f"over {DSE_CUTS[-1]:g}")
        width = 0.8 / len(by_system)
        for i, (label, outcomes) in enumerate(by_system.items()):
            bins = by_uncertainty(_values(outcomes), [outcome.metrics[metric] for outcome in outcomes], DSE_CUTS)
            places = [place - 0.4 + (i + 0.5) * width for place, part in enumerate(bins) if part.questions]
            means = [part.score for part in bins if part.score is not None]
            bars = axis.bar(places, means, width * 0.94, label=label_of(label))
            axis.bar_label(bars, [f"{part.questions}" for part in bins if part.questions], padding=2)
        axis.set_xticks(range(len(names)), names)
        axis.set(xlabel="DSE in nats", ylabel=f"mean {called(metric)}")
        axis.margins(y=0.1)
        legend(figure)
        return figure

    note = "Mean score of the answers by their DSE. Above each bar: the number of answers."
    return Plot("dse", section.dataset, f"{called(metric)} by DSE", note, draw)


def _levels(summary: Summary, section: Section, inputs: ReportInputs) -> Plot | None:
    chosen = _by_system(summary, section, lambda outcome: outcome.output.get("lambda_star"))
    if not chosen:
        return None
    for oracle in section.chosen:
        levels = ", ".join(f"{level:g}" for level in oracle.levels)
        chosen[f"{oracle.label}, of λ = {levels}"] = list(oracle.chosen.values())

    def draw() -> Figure:
        figure, (axis,) = panels()
        grid = grid_of(level for levels in chosen.values() for level in levels)
        room = 0.8 * min((high - low for low, high in pairwise(grid)), default=0.1)
        width = room / len(chosen)
        for i, (label, levels) in enumerate(chosen.items()):
            rounded = [round(level, DIGITS) for level in levels]
            shares = [rounded.count(point) / len(rounded) for point in grid]
            places = [point - room / 2 + (i + 0.5) * width for point in grid]
            axis.bar(places, shares, width * 0.94, label=f"{label_of(label)} ({len(levels)} questions)")
        axis.set_xticks(grid, [f"{point:g}" for point in grid])
        axis.set(xlabel="chosen λ", ylabel="share of questions")
        legend(figure)
        return figure

    beside = ", beside the Oracle, which knows the gold answers" if section.chosen else ""
    return Plot("lambda", section.dataset, "Chosen λ", f"How often each λ was chosen{beside}.", draw)


def _overlap(summary: Summary, section: Section, inputs: ReportInputs) -> Plot | None:
    sets = _by_system(summary, section, lambda outcome: inputs.levels.get((outcome.system, outcome.question)))
    by_system = {label: overlaps(by_level) for label, by_level in sets.items()}
    if not by_system:
        return None

    def draw() -> Figure:
        figure, axes = panels(len(by_system), 4.2, 3.7)
        for axis, (label, (levels, shares)) in zip(axes, by_system.items(), strict=False):
            edges = np.arange(len(levels) + 1)
            # a mesh and not an image, which the page's content policy blocks
            axis.pcolormesh(edges, edges, shares, vmin=0, vmax=1, cmap="Blues")
            for row, column in np.ndindex(*shares.shape):
                ink = "white" if shares[row, column] > 0.55 else "#1b1f24"
                axis.text(column + 0.5, row + 0.5, f"{shares[row, column]:.1f}", color=ink, ha="center", va="center",
                          fontsize=7)  # fmt: skip
            axis.set_xticks(edges[:-1] + 0.5, [f"{level:g}" for level in levels])
            axis.set_yticks(edges[:-1] + 0.5, [f"{level:g}" for level in levels])
            axis.set(title=label_of(label), xlabel="λ", ylabel="λ")
        return figure

    note = "Jaccard index of the chunk sets of two λ, mean over questions."
    return Plot("overlap", section.dataset, "Overlap of the chunk sets", note, draw)


def _right_and_wrong(summary: Summary, section: Section, inputs: ReportInputs) -> Plot | None:
    """Histograms of the uncertainty of right and wrong answers. DSE has a plot of its own."""
    by_system = {
        label: outcomes
        for label, outcomes in _with_uncertainty(summary, section).items()
        if _signal(outcomes) != DSE and any(outcome.threshold is not None for outcome in outcomes)
    }
    if not by_system:
        return None

    def draw() -> Figure:
        figure, axes = panels(len(by_system), 4.6, 3.1)
        for axis, (label, outcomes) in zip(axes, by_system.items(), strict=False):
            split = [_values(outcome for outcome in outcomes if outcome.right is right) for right in (True, False)]
            names = [f"right ({len(split[0])})", f"wrong ({len(split[1])})"]
            axis.hist(split, bins=14, label=names)
            for threshold in {outcome.threshold for outcome in outcomes if outcome.threshold is not None}:
                axis.axvline(threshold, color=INK, linestyle="--", linewidth=1, label=f"threshold {threshold:.3g}")
            axis.set(title=label_of(label), xlabel=_signal(outcomes), ylabel="questions")
            axis.legend()
        return figure

    note = "The uncertainty of right and of wrong answers. Above its threshold the system calls itself uncertain."
    return Plot("uncertainty", section.dataset, "Uncertainty of right and wrong answers", note, draw)


def _by_step(summary: Summary, section: Section, inputs: ReportInputs) -> Plot | None:
    by_system = _by_system(
        summary, section, lambda outcome: inputs.deltas.get((outcome.system, outcome.question)) or None
    )
    if not by_system:
        return None

    def draw() -> Figure:
        figure, (axis,) = panels()
        for label, deltas in by_system.items():
            means = [np.mean(values) for values in by_place(deltas)]
            axis.plot(range(1, len(means) + 1), means, marker="o", label=label_of(label))
        axis.axhline(0, color=INK, linewidth=0.8)
        axis.set_xticks(range(1, 1 + max(len(steps) for deltas in by_system.values() for steps in deltas)))
        axis.set(xlabel="step", ylabel="mean ΔSePer")
        legend(figure)
        return figure

    note = "How much belief in the right answer the evidence known after a step adds. Later steps have fewer questions."
    return Plot("steps", section.dataset, "ΔSePer by step", note, draw)


def _risk_coverage(summary: Summary, section: Section, inputs: ReportInputs) -> Plot | None:
    by_system = _with_uncertainty(summary, section)
    if not by_system:
        return None
    answered = _by_system(summary, section, lambda outcome: None if outcome.failed else outcome)

    def draw() -> Figure:
        figure, (axis,) = panels()
        for label, outcomes in by_system.items():
            known = len(outcomes) / len(answered[label])  # an answer of unknown uncertainty is never given
            curve = risk_coverage(_values(outcomes), [1 - outcome.metrics["f1"] for outcome in outcomes])
            name, marker = f"{label_of(label)} (AURC {curve.aurc:.3f})", "." if len(outcomes) < 15 else ""
            axis.plot([known * share for share in curve.coverage], curve.risk, marker=marker, label=name)
        axis.set(xlabel="share of questions answered, the most certain first", ylabel="risk: mean of 1 − F1",
                 xlim=(0, 1.02), ylim=(0, 1.02))  # fmt: skip
        legend(figure)
        return figure

    note = "The risk of answering only the questions that a system is most certain of. Lower is better, flat is chance."
    return Plot("risk-coverage", section.dataset, "Risk and coverage", note, draw)


def _cost(summary: Summary, section: Section, inputs: ReportInputs) -> Plot | None:
    """What a question costs in tokens, and how good the answers are, with a line along the `frontier`."""
    metric = summary.metric
    figures = {row.label: row.metrics[metric] for row in section.systems if metric in row.metrics}
    costs = [
        (cost.prompt_tokens + cost.completion_tokens, cost.system) for cost in section.costs if cost.system in figures
    ]
    if len(costs) < 2:
        return None

    def draw() -> Figure:
        from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter  # noqa: PLC0415 - an extra

        figure, (axis,) = panels()
        for tokens, label in sorted(costs):
            score = figures[label]
            bars = [[score.mean - score.low], [score.high - score.mean]]
            axis.errorbar([tokens], [score.mean], yerr=bars, marker="o", capsize=3, label=label_of(label))
        best = frontier([(tokens, figures[label].mean) for tokens, label in costs])
        axis.plot(*zip(*best, strict=True), color=INK, linewidth=0.8, zorder=0)
        axis.set_xscale("log")
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.set(xlabel="tokens a question, read and written", ylabel=f"mean {called(metric)}")
        legend(figure)
        return figure

    note = "The line joins the systems that no other beats in both quality and cost. Bars: the intervals of the means."
    return Plot("cost", section.dataset, "Cost and quality", note, draw)


def _stages(summary: Summary, section: Section, inputs: ReportInputs) -> Plot | None:
    """A bar a system, of the share of its time that each step takes."""
    all_shares = {cost.system: time_shares(cost.stages) for cost in section.costs}
    shares = {label: parts for label, parts in all_shares.items() if parts and max(parts.values()) < 0.99}
    if not shares:
        return None

    def draw() -> Figure:
        figure, (axis,) = panels(width=8.5, height=0.8 + 0.34 * len(shares))
        for place, parts in enumerate(shares.values()):
            begin = 0.0
            for number, (node, share) in enumerate(parts.items()):
                colour = COLOURS[number % len(COLOURS)]
                axis.barh(place, share, left=begin, color=colour, alpha=0.6, edgecolor="white")
                if share >= 0.011 * len(node):  # the name fits
                    axis.text(begin + share / 2, place, node, ha="center", va="center", fontsize=7)
                begin += share
        axis.set_yticks(range(len(shares)), [label_of(label) for label in shares])
        axis.set_ylim(len(shares) - 0.5, -0.5)
        axis.xaxis.set_major_formatter("{x:.0%}")
        axis.set(xlabel="share of the seconds of all steps, parallel ones added up", xlim=(0, 1))
        return figure

    note = "The steps of a question in their order, of systems with several long ones. Cached calls take no time."
    return Plot("stages", section.dataset, "Where the time goes", note, draw)


def time_shares(stages: Mapping[str, NodeCost]) -> dict[str, float]:
    """The share of the time that each stage takes, in their order, without those that take none."""
    total = sum(stage.seconds for stage in stages.values())
    return {node: stage.seconds / total for node, stage in stages.items() if stage.seconds > 0}


def grid_of(levels: Iterable[float]) -> list[float]:
    """The distinct levels, ascending; all tenths from 0 to 1 if each is one of them."""
    tenths = [round(0.1 * place, 1) for place in range(11)]
    found = {round(level, DIGITS) for level in levels}
    return tenths if found <= set(tenths) else sorted(found)


def frontier(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points (cost, score) that score higher than every other point of equal or lower cost, the cheapest first."""
    kept: list[tuple[float, float]] = []
    for cost, score in sorted(points, key=lambda point: (point[0], -point[1])):
        if not kept or score > kept[-1][1]:
            kept.append((cost, score))
    return kept


def overlaps(sets: Sequence[Mapping[float, frozenset[str]]]) -> tuple[list[float], Any]:
    """The L levels that all questions have, and the mean Jaccard index of each two of them, [L, L]."""
    levels = sorted(set.intersection(*(set(by_level) for by_level in sets)))
    means = [
        [float(np.mean([_jaccard(levels_of[a], levels_of[b]) for levels_of in sets])) for b in levels] for a in levels
    ]
    return levels, np.array(means).reshape(len(levels), len(levels))


def by_place(lists: Sequence[Sequence[float]]) -> list[list[float]]:
    """The first values of all lists, the second values of the lists that have two, ..."""
    return [[values[place] for values in lists if len(values) > place] for place in range(max(map(len, lists)))]


def _jaccard(first: frozenset[str], second: frozenset[str]) -> float:
    return len(first & second) / len(first | second) if first | second else 1.0


def _by_system(summary: Summary, section: Section, value_of: Callable[[ScoredOutcome], T | None]) -> dict[str, list[T]]:
    """By system, a value of each outcome; without unknown values and systems that have none."""
    by_system = {
        system.label: [
            value
            for outcome in of_system(summary.scores, system.label, section.questions)
            if (value := value_of(outcome)) is not None
        ]
        for system in summary.run.systems
    }
    return {label: values for label, values in by_system.items() if values}


def _with_uncertainty(summary: Summary, section: Section) -> dict[str, list[ScoredOutcome]]:
    """The outcomes whose uncertainty is known, as if withheld answers had been given."""
    return _by_system(summary, section, lambda outcome: None if outcome.uncertainty is None else outcome.if_given)


def _signal(outcomes: Sequence[ScoredOutcome]) -> str:
    signal = outcomes[0].signal
    return "" if signal is None else signal["signal"]


def _values(outcomes: Iterable[ScoredOutcome]) -> list[float]:
    return [outcome.uncertainty for outcome in outcomes if outcome.uncertainty is not None]
