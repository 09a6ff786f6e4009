"""The report as one page of HTML without other files: tables, plots, and every question with its answers."""

import hashlib
import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from ...presenters.words import WITHHELD, shortened
from ...render.html import environment
from ..run_folder import RunQuestion
from ..scores import RIGHT, ScoredOutcome, chunks_of
from .about import command, header, notes
from .drawing import Drawn
from .inputs import ReportInputs, StepRow
from .summary import Section, Summary
from .tables import section_blocks, systems_blocks
from .words import called, number

BEGINNING = "<!doctype html>"

LONGEST_ANSWER, LONGEST_TITLE = 1500, 90
ROOM_FOR_STEPS = 5_000_000
"""Characters for the steps of all traces. The more steps there are, the less of each step's update is shown."""

LEAST_TEXT = 40

OUTCOMES = {
    "r": ("right", "✓"),
    "w": ("wrong", "✗"),
    "h": ("withheld", "?"),
    "f": ("failed", "!"),
    "n": ("not asked yet", "·"),
}
"""The outcome of a question for a system: letter, word and sign."""

SHOWN = ("exact_match", "f1", "accuracy", "recall@5", "seper", "delta_seper")
"""The metrics shown with each answer."""


@dataclass(frozen=True)
class Result:
    """A system's outcome on a question.

    outcome: a key of `OUTCOMES`; evidence: titles, and whether each is of a gold document; steps: number of its trace.
    """

    label: str
    outcome: str
    answer: str = ""
    figures: Sequence[tuple[str, str]] = ()
    evidence: Sequence[tuple[str, bool]] = ()
    warnings: Sequence[str] = ()
    steps: int | None = None


@dataclass(frozen=True)
class Item:
    """A question of the list. outcomes: a letter for each system, in their order."""

    question: RunQuestion
    outcomes: str
    results: Sequence[Result]


def page_of(summary: Summary, figures: Sequence[Drawn], inputs: ReportInputs, remark: str = "") -> bytes:
    """The page in UTF-8. All text of models, datasets and people is escaped. remark: what is missing, and why."""
    numbers = {key: place for place, key in enumerate(inputs.steps)}
    script = (files(__package__) / "templates" / "report.js").read_text(encoding="utf-8")
    page = (
        environment(("dubito.evals.reports", "templates"))
        .get_template("report.jinja")
        .render(
            summary=summary,
            facts=header(summary),
            command=command(summary.run),
            notes=[*notes(summary), *([remark] if remark else [])],
            systems=systems_blocks(summary),
            blocks={section.dataset: section_blocks(section, summary) for section in summary.shown},
            figures=figures,
            items={section.dataset: _items(summary, section, numbers) for section in summary.sections},
            labels=[system.label for system in summary.run.systems],
            outcomes=OUTCOMES,
            right=RIGHT,
            steps=_as_json(list(inputs.steps.values())),
            script=script,
            digest=b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        )
    )
    return page.encode()


def _items(summary: Summary, section: Section, numbers: Mapping[tuple[str, str], int]) -> list[Item]:
    items = []
    for question in section.questions:
        keys = [(system.label, question.id) for system in summary.run.systems]
        results = [_result(key[0], question, summary.scores.get(key), numbers.get(key)) for key in keys]
        items.append(Item(question, "".join(result.outcome for result in results), results))
    return items


def _result(label: str, question: RunQuestion, scored: ScoredOutcome | None, steps: int | None) -> Result:
    if scored is None:
        return Result(label, "n")
    if scored.failed:
        kind, message = scored.error
        return Result(label, "f", shortened(f"{kind}: {message}", LONGEST_ANSWER), steps=steps)
    evidence = [
        (shortened(str(chunk.get("title") or chunk.get("id") or ""), LONGEST_TITLE), chunk.get("doc_id"))
        for chunk in chunks_of(scored.output)
    ]
    answer, outcome = scored.answer or "", "r" if scored.right else "w"
    if scored.output.get("abstained"):
        answer, outcome = f"{WITHHELD} {scored.output.get('withheld_answer') or ''}".strip(), "h"
    return Result(
        label,
        outcome,
        shortened(answer, LONGEST_ANSWER),
        _figures(scored),
        [(title, document in question.gold_documents) for title, document in evidence],
        [shortened(str(warning), LONGEST_ANSWER) for warning in scored.output.get("warnings") or []],
        steps,
    )


def _figures(scored: ScoredOutcome) -> list[tuple[str, str]]:
    figures = [(called(name), number(scored.metrics[name], 2)) for name in SHOWN if name in scored.metrics]
    if scored.signal is not None:
        figures.append((scored.signal["signal"], number(scored.uncertainty)))
    if "lambda_star" in scored.output:
        level = scored.output["lambda_star"]
        figures.append(("λ*", "-" if level is None else f"{level:g}"))
    if scored.cost is not None:
        cost = scored.cost
        figures.append(("calls", f"{cost.calls:,}" + (f" ({cost.remembered:,} cached)" if cost.remembered else "")))
        figures.append(("tokens", f"{cost.prompt_tokens:,} read, {cost.completion_tokens:,} written"))
        figures.append(("seconds", f"{cost.seconds:.1f}"))
    return figures


def _as_json(traces: Sequence[tuple[Sequence[StepRow], int]]) -> str:
    """For the page's script: for each trace its steps as lists, and how many more there are."""
    total = sum(len(steps) for steps, _ in traces)
    length = max(LEAST_TEXT, ROOM_FOR_STEPS // max(total, 1) - 60)
    rows = [[[_fitted(step, length) for step in steps], more] for steps, more in traces]
    text = json.dumps(rows, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _fitted(step: StepRow, length: int) -> StepRow:
    return step._replace(text=shortened(step.text, length), fault=shortened(step.fault, LONGEST_ANSWER))
