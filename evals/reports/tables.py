"""The tables of a report as blocks: terminal, Markdown and page draw the same."""

from collections.abc import Sequence

from ...presenters.blocks import Block, Cell, Fold, Pairs, Row, Table, Tone, Words
from ...presenters.words import counted, shortened
from ..reliability import UncertaintyBin
from ..scores import CITED, JUDGED, MAIN, PLAN, RETRIEVAL, RIGHT, SEPER
from .about import differing
from .summary import GIVEN_LEVEL, MeanCost, Pair, Reference, Section, Summary, SystemFigures
from .words import amount, called, chance, number, plain, signed, too_few

LONGEST_REASON = 300

GROUPS = (
    ("Answers", MAIN),
    ("Retrieval", RETRIEVAL),
    ("The plan (DF-RAG)", PLAN),
    ("Citations", CITED),
    ("Belief in the right answer", SEPER),
    ("Ratings by a model", JUDGED),
)
"""The tables of means, and their metrics."""

ORACLE_NOTE = "Oracle: for each question, the λ with the best F1 among the systems that select by gMMR; an upper bound."
COST_NOTE = "Means over answered questions. Cached calls and their tokens are counted like other calls."
CACHE_NOTE = "The seconds do not include cached calls; the last column says how long these took when they were made."
STAGE_NOTE = "Means over questions. The seconds of parallel runs add up."
UNCERTAINTY_NOTE = (
    "AUROC: the probability that a wrong answer is more uncertain than a right one; 0.5 is chance. The interval is of "
    "the second AUROC. AURC: the area under the risk-coverage curve of 1 − F1; an uninformative uncertainty reaches "
    "the mean risk. ECE: of confidences fitted to the other answers; by chance: within which it would be in 95% of "
    "cases, were these confidences exact. A withheld answer is scored as if it had been given."
)


def systems_blocks(summary: Summary) -> list[Block]:
    """Every system with its graph and the settings that differ, and all settings folded."""
    different = differing(summary.run)
    rows = [
        Row(_cells(system.label, system.graph, ", ".join(f"{k} {v}" for k, v in different[system.label].items())))
        for system in summary.run.systems
    ]
    folds = [
        Fold(
            f"All settings of {system.label}", [Pairs([(name, plain(value)) for name, value in system.context.items()])]
        )
        for system in summary.run.systems
    ]
    return [Table(["system", "graph", "settings that differ between systems"], rows), *folds]


def section_blocks(section: Section, summary: Summary) -> list[Block]:
    """A dataset's means, differences, failures, costs and uncertainties."""
    means = [means_table(section, metrics, title) for title, names in GROUPS if (metrics := section.metrics(names))]
    blocks: list[Block] = [*means, *([Words(ORACLE_NOTE, "dim")] if section.oracles else [])]
    if section.gaps:
        blocks.append(_gaps(section))
    if len(section.systems) > 1:
        table = _differences if summary.against is None else _differences_from_one
        blocks.append(table(section, summary.metric))
    if section.failures:
        blocks.append(_failures(section))
    if section.costs:
        blocks += [costs_table(section.costs), Fold("Cost by stage", [_stages(section.costs)])]
    if section.given:
        blocks.append(_given(section))
    if section.uncertainties:
        blocks.append(_uncertainties(section))
    if summary.reference is not None:
        blocks.append(parted_table(section, summary.metric, summary.reference))
    return blocks


def parted_table(section: Section, metric: str, reference: Reference) -> Table:
    """A row a system: its means on the questions of which one system is certain, and on the others."""
    columns, rows = ["system"], []
    for threshold in reference.thresholds:
        columns += [f"up to {threshold:g} (n)", f"above {threshold:g} (n)"]
    for system in section.systems:
        parts = [part for one in section.parts if one.system == system.label for part in (one.certain, one.uncertain)]
        cells = numbers(*("-" if part is None else f"{number(part.mean)} ({part.n})" for part in parts))
        rows.append(Row([Cell(system.label), *cells]))
    title = f"{called(metric)} by the uncertainty of {reference.system}"
    note = f"{reference.signal} of {reference.system}, for the questions that it answered; unknown counts as above."
    return Table(columns, rows, title, note)


def means_table(
    section: Section, metrics: Sequence[str], title: str = "", intervals: Sequence[str] | None = None
) -> Table:
    """A row a system and oracle: its mean of each metric; the best mean of a metric stands out.

    intervals: the metrics that have their interval beside the mean; all if none are given.
    """
    rows = []
    for row in [*section.systems, *section.oracles]:
        tone: Tone = "dim" if row in section.oracles else ""
        counts = numbers(f"{row.answered}", f"{row.failed}" + (f" (+{row.left} not asked)" if row.left else ""))
        means = [_mean(section, row, metric, has_interval=metric in (intervals or metrics)) for metric in metrics]
        rows.append(Row([Cell(row.label, tone=tone), *counts, *means]))
    return Table(["system", "answered", "failed", *map(called, metrics)], rows, title)


def _mean(section: Section, row: SystemFigures, metric: str, *, has_interval: bool) -> Cell:
    figure = row.metrics.get(metric)
    if figure is None:
        return Cell("-", number=True)
    parts = [_interval((figure.low, figure.high))] if has_interval else []
    parts += [f"n {figure.n}"] if figure.n != row.answered else []
    tone: Tone = "strong" if section.is_best(row, metric) else ""
    return Cell(number(figure.mean) + (f" ({', '.join(parts)})" if parts else ""), tone=tone, number=True)


def _interval(ends: tuple[float, float] | None) -> str:
    """'0.40 to 0.61'; '-' if unknown."""
    return f"{number(ends[0], 2)} to {number(ends[1], 2)}" if ends else "-"


def _differences(section: Section, metric: str) -> Table:
    """Every system against every other, row minus column."""
    pairs: dict[tuple[str, str], tuple[Pair, int]] = {}
    for pair in section.pairs:
        pairs[pair.first, pair.second] = pair, 1
        pairs[pair.second, pair.first] = pair, -1
    labels = [system.label for system in section.systems]
    rows = [
        Row([Cell(f"{place}: {row}"), *(_difference(pairs.get((row, column)), row, column) for column in labels)])
        for place, row in enumerate(labels, 1)
    ]
    least = min((pair.n for pair in section.tested), default=0)
    note = (
        f"Row minus column, over the questions that both answered (at least {least}). "
        f"In brackets: p of a paired permutation test, corrected for {counted(len(section.tested), 'pair')} by Holm; "
        f"differences with p below 0.05 stand out.{too_few(section.tested)}"
    )
    columns = ["", *(f"{place}" for place in range(1, len(labels) + 1))]
    return Table(columns, rows, f"Differences in {called(metric)}", note)


def _differences_from_one(section: Section, metric: str) -> Table:
    """Every system against the same one."""
    rows = []
    for pair in section.pairs:
        if pair.difference is None or pair.p is None:
            rows.append(Row([Cell(pair.first), *numbers("0", "-", "-", "-")]))
            continue
        mean, low, high = (signed(end) for end in (pair.difference.mean, pair.difference.low, pair.difference.high))
        tone: Tone = "" if pair.p >= 0.05 else "good" if pair.difference.mean > 0 else "bad"
        figures = [Cell(mean, tone=tone, number=True), *numbers(f"{low} to {high}", chance(pair.p))]
        rows.append(Row([Cell(pair.first), *numbers(f"{pair.n}"), *figures]))
    note = (
        f"System minus {section.pairs[0].second}, over the questions that both answered. p: of a paired permutation "
        f"test, corrected for {counted(len(section.tested), 'pair')} by Holm.{too_few(section.tested)}"
    )
    return Table(["system", "n", "difference", "95% interval", "p"], rows, f"Differences in {called(metric)}", note)


def _difference(signed_pair: tuple[Pair, int] | None, row: str, column: str) -> Cell:
    if signed_pair is None:
        return Cell("", number=True)
    pair, sign = signed_pair
    if pair.difference is None or pair.p is None:
        return Cell("-", tone="dim", tip=f"{row} and {column} have no answered question in common", number=True)
    mean = sign * pair.difference.mean
    tone: Tone = "" if pair.p >= 0.05 else "good" if mean > 0 else "bad"
    low, high = sorted((sign * pair.difference.low, sign * pair.difference.high))
    tip = f"{row} minus {column}, {counted(pair.n, 'question')}: {signed(low)} to {signed(high)}"
    return Cell(f"{signed(mean)} ({chance(pair.p)})", tone=tone, tip=tip, number=True)


def _failures(section: Section) -> Table:
    rows = []
    for failure in section.failures:
        reason = _cells(failure.system, failure.kind, shortened(failure.message, LONGEST_REASON))
        rows.append(Row([*reason, *numbers(f"{failure.questions:,}", f"{failure.calls:,}", f"{failure.tokens:,}")]))
    return Table(["system", "fault", "reason", "questions", "calls before", "tokens"], rows, "Failures")


def costs_table(costs: Sequence[MeanCost]) -> Table:
    """A row a system: the mean cost of a question."""
    columns = ["system", "n", "calls", "prompt tokens", "completion tokens", "seconds", "cached calls", "their seconds"]
    rows = []
    for cost in costs:
        means = map(amount, (cost.calls, cost.prompt_tokens, cost.completion_tokens, cost.seconds))
        cached = f"{cost.remembered:.0%}", amount(cost.remembered_seconds)
        rows.append(Row([Cell(cost.system), *numbers(f"{cost.n}", *means, *cached)]))
    note = f"{COST_NOTE} {CACHE_NOTE}" if any(cost.remembered for cost in costs) else COST_NOTE
    return Table(columns, rows, "Cost of a question", note)


def _stages(costs: Sequence[MeanCost]) -> Table:
    rows = []
    for cost in costs:
        for node, stage in cost.stages.items():
            means = map(amount, (stage.calls, stage.prompt_tokens, stage.completion_tokens, stage.seconds))
            rows.append(Row([*_cells(cost.system, node), *numbers(*means)]))
    columns = ["system", "stage", "calls", "prompt tokens", "completion tokens", "seconds"]
    return Table(columns, rows, note=STAGE_NOTE)


def _uncertainties(section: Section) -> Table:
    columns = [
        "system",
        "uncertainty",
        "n",
        "AUROC (EM)",
        f"AUROC (F1 < {RIGHT:g})",
        "95% interval",
        "ECE",
        "by chance",
        "AURC",
    ]
    rows = []
    for quality in section.uncertainties:
        n = f"{quality.n}" + (f" ({quality.unmeasured} unknown)" if quality.unmeasured else "")
        areas = [*map(number, (quality.auroc_em, quality.auroc)), _interval(quality.auroc_interval)]
        errors = number(quality.ece), _interval(quality.chance_ece)
        figures = [*areas, *errors, *map(number, (quality.aurc, quality.mean_risk))]
        bins = number(quality.threshold, 2), bin_text(quality.certain), bin_text(quality.uncertain)
        rows.append(Row([*_cells(quality.system, quality.signal), *numbers(n, *figures, *bins)]))
    columns += ["mean risk", "threshold", "certain: F1 (n)", "uncertain: F1 (n)"]
    return Table(columns, rows, "The systems' own uncertainty", UNCERTAINTY_NOTE)


def _gaps(section: Section) -> Table:
    rows = []
    for gap in section.gaps:
        share = "-" if gap.share is None else f"{gap.share:.0%}"
        figures = numbers(f"{gap.n}", *map(number, (gap.plain, gap.f1, gap.best)), share)
        rows.append(Row([Cell(gap.system), *_cells(gap.baseline, gap.oracle), *figures]))
    f1 = ["F1 of plain RAG", "of the system", "of the oracle", "of the gap closed"]
    columns = ["system", "plain RAG", "oracle", "questions", *f1]
    return Table(columns, rows, "The gap to the oracle", "Over the questions that all three answered.")


def _given(section: Section) -> Table:
    rows = []
    for one in section.given:
        share = number(one.wrong / one.given, 2) if one.given else "-"
        counts = map(str, (one.n, one.given, one.wrong))
        cells = numbers(*counts, share, _interval(one.interval))
        rows.append(Row([Cell(one.system), *cells, *_cells(one.right or f"f1:{RIGHT:g}", one.promise or "-")]))
    columns = ["system", "answers", "given", "of these wrong", "share", f"{GIVEN_LEVEL:.0%} interval", "right"]
    note = "Right: the calibration's rule for right answers. The answers that are not given were not certain enough."
    for one in section.given:
        if one.uncertified:
            note += f" {one.system}: {counted(one.uncertified, 'further answer')}, of which nothing is certified."
        if one.calibrated_on:
            note += (
                f" {one.system}: {counted(one.calibrated_on, 'question')} of these were calibrated on, so the share of "
                "wrong answers among the others may be higher."
            )
    return Table([*columns, "the promise"], rows, "Answers given", note)


def bin_text(answers: UncertaintyBin | None) -> str:
    """'0.61 (12)'."""
    return "-" if answers is None else f"{number(answers.score, 2)} ({answers.questions})"


def _cells(*texts: str) -> list[Cell]:
    return [Cell(text) for text in texts]


def numbers(*texts: str) -> list[Cell]:
    """Cells with numbers."""
    return [Cell(text, number=True) for text in texts]
