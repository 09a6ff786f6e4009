"""The report as one page of HTML that needs nothing beside itself: tables, figures, and every question to look into."""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment

from ...traces.pages import environment
from ..bench import Asked, System
from ..scores import MAIN, RETRIEVAL, RIGHT, SEPER, Scored, chunks_of
from ..signals import SIGNALS
from .about import command, differing, header, left_out, notes
from .drawing import Drawn
from .markdown import interval, part
from .steps import Told
from .summary import Pair, Section, Summary
from .words import amount, called, chance, counted, number, plain, share, shortened, signed

BEGINNING = "<!doctype html>"

LONGEST_ANSWER, LONGEST_TITLE = 1500, 90
ROOM_FOR_STEPS = 5_000_000
"""Characters that the steps of all traces may take; where there are many, less of what each put out is told."""

LEAST_TEXT = 40

OUTCOMES = {"r": ("right", "✓"), "w": ("wrong", "✗"), "f": ("failed", "!"), "n": ("not asked yet", "·")}
"""Of a question under a system: letter, word and sign."""


@dataclass(frozen=True)
class Result:
    """A system's outcome on a question, as it is shown.

    outcome: a key of `OUTCOMES`; evidence: titles, and whether they are of gold documents; steps: the number of its
    trace.
    """

    label: str
    outcome: str
    answer: str
    figures: Sequence[tuple[str, str]]
    evidence: Sequence[tuple[str, bool]]
    warnings: Sequence[str]
    steps: int | None


@dataclass(frozen=True)
class Item:
    """A question of the list. outcomes: a letter for each system, in their order."""

    asked: Asked
    outcomes: str
    results: Sequence[Result]


@dataclass(frozen=True)
class Cell:
    """The test of two systems: the difference, p, and which is better beyond chance."""

    text: str
    p: str
    tone: str
    tip: str


def page_of(
    summary: Summary,
    figures: Sequence[Drawn],
    steps: Mapping[tuple[str, str], tuple[Sequence[Told], int]],
    remark: str = "",
) -> bytes:
    """The page, UTF-8; all text of models, datasets and people is escaped. remark: why there are no figures."""
    numbers = {key: place for place, key in enumerate(steps)}
    script = (files(__package__) / "templates" / "report.js").read_text(encoding="utf-8")
    template = _environment().get_template("report.jinja")
    said = template.render(
        summary=summary,
        facts=header(summary),
        command=command(summary.bench),
        notes=[*notes(summary), *left_out(summary), *([remark] if remark else [])],
        different=differing(summary.bench),
        settings={one.label: _settings(one) for one in summary.bench.systems},
        groups=[("Answers", MAIN), ("Retrieval", RETRIEVAL), ("Belief in the right answer", SEPER)],
        figures=figures,
        matrix=_matrix,
        items={section.dataset: _items(summary, section, numbers) for section in summary.sections},
        labels=[one.label for one in summary.bench.systems],
        outcomes=OUTCOMES,
        right=RIGHT,
        steps=_as_json(list(steps.values())),
        script=script,
        digest=b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )
    return said.encode()


def _settings(system: System) -> dict[str, str]:
    return {name: plain(value) for name, value in system.context.items()}


def _items(summary: Summary, section: Section, numbers: Mapping[tuple[str, str], int]) -> list[Item]:
    found = []
    for asked in section.questions:
        results = [
            _result(label, graph, asked, summary.scores.get((label, asked.id)), numbers.get((label, asked.id)))
            for label, graph in ((one.label, one.graph) for one in summary.bench.systems)
        ]
        found.append(Item(asked, "".join(one.outcome for one in results), results))
    return found


def _result(label: str, graph: str, asked: Asked, scored: Scored | None, steps: int | None) -> Result:
    if scored is None:
        return Result(label, "n", "", [], [], [], None)
    if scored.failed:
        kind, message = scored.error
        return Result(label, "f", shortened(f"{kind}: {message}", LONGEST_ANSWER), [], [], [], steps)
    warnings = [shortened(str(one), LONGEST_ANSWER) for one in scored.output.get("warnings") or []]
    titled = [(str(one.get("title") or one.get("id") or ""), one.get("doc_id")) for one in chunks_of(scored.output)]
    evidence = [(shortened(title, LONGEST_TITLE), document in asked.gold_documents) for title, document in titled]
    return Result(
        label,
        "r" if scored.right else "w",
        shortened(scored.answer or "", LONGEST_ANSWER),
        _figures(graph, scored),
        evidence,
        warnings,
        steps,
    )


def _figures(graph: str, scored: Scored) -> list[tuple[str, str]]:
    shown = ("exact_match", "f1", "accuracy", "recall@5", "seper", "delta_seper")
    found = [(called(name), number(scored.metrics[name], 2)) for name in shown if name in scored.metrics]
    if graph in SIGNALS:
        found.append((SIGNALS[graph].name, number(scored.doubt)))
    if "lambda_star" in scored.output:
        found.append(("λ*", number(scored.output["lambda_star"], 1)))
    if scored.cost is not None:
        cost = scored.cost
        found.append(("calls", f"{cost.calls:,}" + (f" ({cost.remembered:,} remembered)" if cost.remembered else "")))
        found.append(("tokens", f"{cost.prompt_tokens:,} read, {cost.completion_tokens:,} written"))
        found.append(("seconds", f"{cost.seconds:.1f}"))
    return found


def _matrix(section: Section) -> list[tuple[str, list[Cell | None]]]:
    """Every system against every other, row less column; None on the diagonal."""
    pairs: dict[tuple[str, str], tuple[Pair, int]] = {}
    for pair in section.pairs:
        pairs[pair.first, pair.second] = pair, 1
        pairs[pair.second, pair.first] = pair, -1
    labels = [row.label for row in section.rows]
    return [(row, [_cell(pairs.get((row, column)), row, column) for column in labels]) for row in labels]


def _cell(found: tuple[Pair, int] | None, row: str, column: str) -> Cell | None:
    if found is None:
        return None
    pair, sign = found
    if pair.mean is None or pair.p is None:
        return Cell("-", "", "dim", f"{row} and {column} have no answered question in common")
    mean = sign * pair.mean
    tone = "" if pair.p >= 0.05 else "up" if mean > 0 else "down"
    return Cell(signed(mean, 2), chance(pair.p), tone, f"{row} less {column}, {counted(pair.n, 'question')}")


def _as_json(traces: Sequence[tuple[Sequence[Told], int]]) -> str:
    """For the page's script: of each trace its steps, each a list, and how many more there are."""
    total = sum(len(told) for told, _ in traces)
    length = max(LEAST_TEXT, ROOM_FOR_STEPS // max(total, 1) - 60)
    rows = [[[_as_row(one, length) for one in told], more] for told, more in traces]
    text = json.dumps(rows, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _as_row(one: Told, length: int) -> list[Any]:
    cost = (one.depth, one.node, one.runs, round(one.seconds, 2), one.calls, one.prompt_tokens, one.completion_tokens)
    return [*cost, shortened(one.text, length), shortened(one.fault, LONGEST_ANSWER)]


def pieces(label: str) -> list[str]:
    """Between which a line may end: behind a label's marks rather than in its words."""
    return [one for one in re.findall(r"[^:,=/_-]*[:,=/_-]?", label) if one]


@cache
def _environment() -> Environment:
    made = environment(("dubito.evals.reports", "templates"))
    made.filters |= {
        "amount": amount,
        "pieces": pieces,
        "called": called,
        "counted": counted,
        "interval": interval,
        "number": number,
        "part": part,
        "share": share,
    }
    return made
