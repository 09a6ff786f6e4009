"""The report as Markdown, with its figures in files beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..reliability import Part
from ..scores import MAIN, RETRIEVAL, RIGHT, SEPER
from .about import command, differing, header, left_out, notes
from .drawing import Plot
from .summary import Doubt, Figure, Row, Section, Spent, Summary
from .words import amount, called, chance, code, counted, markdown, number, share, shortened, signed, table

BEGINNING = "<!-- dubito report -->"
LONGEST_REASON = 300


def markdown_of(summary: Summary, plots: Sequence[Plot], remark: str = "") -> str:
    """The report. plots: as files in plots/ beside it; remark: why there are none."""
    lines = [BEGINNING, "# Evaluation", "", table(["", ""], [[n, markdown(v)] for n, v in header(summary)], texts=2)]
    if said := command(summary.bench):
        lines += ["", "The command that makes it again:", "", code(said)]
    lines += ["", *(markdown(one) for one in notes(summary)), *(f"- {markdown(one)}" for one in left_out(summary))]
    if remark:
        lines += ["", markdown(remark)]
    lines += ["", "## Systems", "", _systems(summary)]
    for section in summary.sections:
        own = [plot for plot in plots if plot.dataset == section.dataset]
        lines += ["", f"## {markdown(section.dataset)}", *_section(summary, section, own)]
    return "\n".join(lines) + "\n"


def _systems(summary: Summary) -> str:
    different = differing(summary.bench)
    rows = [
        [
            markdown(one.label),
            one.graph,
            markdown(", ".join(f"{name} {value}" for name, value in different[one.label].items())),
        ]
        for one in summary.bench.systems
    ]
    return table(["system", "graph", "settings that differ between systems"], rows, texts=3)


def _section(summary: Summary, section: Section, plots: Sequence[Plot]) -> list[str]:
    blocks: list[tuple[str, str]] = []
    for title, wanted in (("Answers", MAIN), ("Retrieval", RETRIEVAL), ("Belief in the right answer", SEPER)):
        if metrics := section.metrics(wanted):
            blocks.append((title, _means(section, metrics)))
    if section.oracles:
        said = "*oracle*: of each question the λ with the best F1 among the systems with gMMR; what could be reached."
        blocks.append(("", said))
    if len(section.rows) > 1:
        blocks.append((f"Differences in {called(summary.metric)}", _matrix(summary, section)))
    if section.failures:
        rows = [
            [
                markdown(one.system),
                markdown(one.kind),
                markdown(shortened(one.message, LONGEST_REASON)),
                *(f"{count:,}" for count in (one.questions, one.calls, one.tokens)),
            ]
            for one in section.failures
        ]
        columns = ["system", "fault", "reason", "questions", "calls before", "tokens"]
        blocks.append(("Failures", table(columns, rows, texts=3)))
    if section.spent:
        blocks += [("Cost of a question", _costs(section.spent)), ("Cost by stage", _stages(section.spent))]
    if section.doubts:
        blocks.append(("The systems' own uncertainty", _doubts(section.doubts)))
    blocks += [(plot.title, f"![{plot.note}](plots/{plot.name}.png)\n\n{plot.note}") for plot in plots]
    return [line for title, content in blocks for line in (["", f"### {title}"] if title else []) + ["", content]]


def _means(section: Section, metrics: Sequence[str]) -> str:
    def cells(row: Row) -> list[str]:
        counts = [f"{row.answered}", f"{row.failed}" + (f" (+{row.left} not asked)" if row.left else "")]
        return [markdown(row.label), *counts, *(_mean(section, row, metric) for metric in metrics)]

    rows = [*map(cells, section.rows), *([f"*{cell}*" if i == 0 else cell for i, cell in enumerate(cells(one))]
                                         for one in section.oracles)]  # fmt: skip
    return table(["system", "answered", "failed", *map(called, metrics)], rows)


def _mean(section: Section, row: Row, metric: str) -> str:
    figure = row.metrics.get(metric)
    if figure is None:
        return "-"
    mean = f"**{number(figure.mean)}**" if section.is_best(row, metric) else number(figure.mean)
    of = f", n {figure.n}" if figure.n != row.answered else ""
    return f"{mean} ({interval(figure)}{of})"


def interval(figure: Figure) -> str:
    """'0.40 to 0.61'."""
    return f"{number(figure.low, 2)} to {number(figure.high, 2)}"


def _matrix(summary: Summary, section: Section) -> str:
    pairs = {(one.first, one.second): one for one in section.pairs}
    labels = [row.label for row in section.rows]

    def cell(row: str, column: str) -> str:
        pair = pairs.get((row, column))
        if pair is None:
            return ""
        if pair.mean is None or pair.p is None:
            return "-"
        strong = "**" if pair.p < 0.05 else ""
        return f"{strong}{signed(pair.mean)}{strong} ({chance(pair.p)})"

    rows = [
        [f"{place}: {markdown(row)}", *(cell(row, column) for column in labels[1:])]
        for place, row in enumerate(labels[:-1], 1)
    ]
    least = min(pair.n for pair in section.pairs)
    said = (
        f"Row less column, over the questions that both answered (at least {least}); in brackets p of a paired "
        f"permutation test, corrected for {counted(len(section.pairs), 'pair')} by Holm; bold where below 0.05."
    )
    heads = ["", *(f"{place}" for place in range(2, len(labels) + 1))]
    heads[-1] += f": {markdown(labels[-1])}"
    return f"{table(heads, rows)}\n\n{said}"


def _costs(spent: Sequence[Spent]) -> str:
    tokens = ["prompt tokens", "completion tokens"]
    heads = ["system", "n", "calls", *tokens, "seconds", "calls remembered", "their seconds"]
    rows = [
        [
            markdown(one.system),
            f"{one.n}",
            *map(amount, (one.calls, one.prompt_tokens, one.completion_tokens, one.seconds)),
            share(one.remembered),
            amount(one.remembered_seconds),
        ]
        for one in spent
    ]
    said = "Means over answered questions. Remembered calls are counted with their tokens, as if they had been made."
    if any(one.remembered for one in spent):
        said += " The seconds are too few where calls were remembered: their own former seconds stand beside."
    return f"{table(heads, rows)}\n\n{said}"


def _stages(spent: Sequence[Spent]) -> str:
    rows = [
        [markdown(one.system), markdown(node), *map(amount, (s.calls, s.prompt_tokens, s.completion_tokens, s.seconds))]
        for one in spent
        for node, s in one.stages.items()
    ]
    heads = ["system", "stage", "calls", "prompt tokens", "completion tokens", "seconds"]
    return f"{table(heads, rows, texts=2)}\n\nA question's means; the seconds of parallel runs add up."


def _doubts(doubts: Sequence[Doubt]) -> str:
    figures: Sequence[tuple[str, Callable[[Doubt], str]]] = (
        ("n", lambda one: f"{one.n}" + (f" ({one.unmeasured} unknown)" if one.unmeasured else "")),
        ("AUROC (EM)", lambda one: number(one.auroc_em)),
        (f"AUROC (F1 < {RIGHT:g})", lambda one: number(one.auroc)),
        ("ECE", lambda one: number(one.ece)),
        ("AURC", lambda one: number(one.aurc)),
        ("mean risk", lambda one: number(one.mean_risk)),
        ("threshold", lambda one: number(one.threshold, 2)),
        ("certain: F1 (n)", lambda one: part(one.certain)),
        ("uncertain: F1 (n)", lambda one: part(one.uncertain)),
    )
    rows = [[markdown(one.system), one.signal, *(tell(one) for _, tell in figures)] for one in doubts]
    said = (
        "AUROC: the probability that a wrong answer is more uncertain than a right one, 0.5 is chance. AURC: the area "
        "under the risk-coverage curve of 1 − F1; the mean risk is what an uncertainty that says nothing reaches. ECE: "
        "of confidences fitted to the other answers."
    )
    return f"{table(['system', 'uncertainty', *(name for name, _ in figures)], rows, texts=2)}\n\n{said}"


def part(one: Part | None) -> str:
    """'0.61 (12)'."""
    return "-" if one is None else f"{number(one.score, 2)} ({one.questions})"
