"""How the steps of SeaKR and its baselines look on the terminal: each sentence, U against δ, what was looked up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..state.baselines import IterRetgenContext
from ..state.reasoning import Attempt, Ending, ReasoningContext
from ..state.reasoning import Step as Sentence
from ..state.records import Chunk
from ..state.seakr import SeaKRContext, Strategy
from .screen import clean, counted, shorten
from .steps import Renderer, Shown, Step, one_line, rows
from .view_shared import under_way

ENDINGS: Mapping[Ending, str] = {
    "answered": "a sentence gave the answer",
    "max_steps": "the steps are spent",
    "max_docs": "the documents are spent",
    "query_repeated": "what would be searched for has been",
    "repeated": "a sentence said what an earlier one said",
    "nothing_found": "nothing was written and nothing found",
}
"""Why the reasoning ended, in words."""

NAMES: Mapping[Strategy, str] = {"rationales": "the sentences", "knowledge": "the snippets that were kept"}

WIDTH = 24
"""Cells of a bar."""


def is_reasoning(step: Step) -> bool:
    """Does the step belong to SeaKR or one of its baselines?"""
    return isinstance(step.settings, ReasoningContext | IterRetgenContext)


def draft(step: Step) -> Shown:
    """The sentence that the model would write; for SeaKR how uncertain it is there, and whether that is too much."""
    if step.running:
        return Shown()
    written = step.update["draft"]
    if not isinstance(step.settings, SeaKRContext) or not step.settings.self_aware_retrieval:
        return Shown(_sentence(written["rationale"]))
    return Shown(_sentence(written["rationale"]), against(written["uncertainty"], step.input["threshold"]))


def against(uncertainty: float | None, threshold: float) -> RenderableType:
    """U and δ as a bar that is filled up to U, with δ in its middle."""
    if uncertainty is None:
        return Text("U unknown: something is looked up", "yellow")
    above = uncertainty > threshold
    cells = round(WIDTH / 2 * (1 + max(-1.0, min(1.0, (uncertainty - threshold) / max(1.0, abs(threshold) / 2)))))
    bar = "".join("│" if cell == WIDTH // 2 else "█" if cell < cells else "░" for cell in range(WIDTH + 1))
    said = f"U {uncertainty:.2f} {'>' if above else '≤'} δ {threshold:.2f}"
    return Text.assemble((bar, "yellow" if above else "green"), "  ", said)


def query(step: Step) -> Shown:
    """What is searched for."""
    if step.running:
        return Shown()
    asked = clean(step.update["query"])
    if step.update.get("ended"):
        return Shown(f"{asked}: {ENDINGS[step.update['ended']]}")
    return Shown(asked)


def search(step: Step) -> Shown:
    """What was found."""
    if step.running:
        return under_way(step)
    found = step.update["snippets"]
    return Shown(counted(len(found), "new snippet") if found else "nothing new", _titles(found) if found else None)


def try_snippet(step: Step) -> Shown:
    """Each snippet, the sentence it leads to, and what it does to U; the one that is kept is marked once all are in."""
    if step.running:
        return Shown()
    attempts: list[Attempt] = [end.update["attempts"][0] for end in step.ends]
    titles = {task.start.input["snippet"]["id"]: task.start.input["snippet"]["title"] for task in step.tasks.values()}
    table = rows("snippet", "U", "change", "sentence")
    before = (step.state.get("draft") or {}).get("uncertainty")
    for attempt in attempts:
        uncertainty = attempt["uncertainty"]
        change = "" if uncertainty is None or before is None else f"{uncertainty - before:+.2f}"
        value = "?" if uncertainty is None else f"{uncertainty:.2f}"
        style = "green" if change.startswith("-") else ""
        table.add_row(
            Text(shorten(titles[attempt["chunk_id"]], 30)),
            Text(value),
            Text(change, style),
            one_line(attempt["rationale"] or "(nothing)"),
        )
    return Shown(f"{counted(len(attempts), 'snippet')} tried", table)


def rerank(step: Step) -> Shown:
    """What is kept."""
    if step.running:
        return Shown()
    if not step.update["kept"]:
        return Shown("nothing to keep")
    (kept,) = step.update["knowledge"]
    return Shown(f"keeps {clean(kept['title']) or clean(kept['id'])}")


def keep(step: Step) -> Shown:
    """The same, for the baselines."""
    return rerank(step)


def write(step: Step) -> Shown:
    """The sentence, with what was kept."""
    if step.running:
        return Shown()
    return Shown(_sentence((step.update.get("kept") or step.update["draft"])["rationale"]))


def append(step: Step) -> Shown:
    """Why the reasoning ends, if it does; the sentence has been shown."""
    if step.running or not step.update["ended"]:
        return Shown(passing=True)
    return Shown(f"step {len(step.input['steps']) + 1} is the last: {ENDINGS[step.update['ended']]}")


def conclude(step: Step) -> Shown:
    """A strategy's answer and U."""
    if step.running or "conclusions" not in step.update:
        return Shown()
    (one,) = step.update["conclusions"]
    measured = "" if one["uncertainty"] is None else f", U {one['uncertainty']:.2f}"
    return Shown(f"{clean(one['answer']) or '(no answer)'}, from {NAMES[one['strategy']]}{measured}")


def choose(step: Step) -> Shown:
    """Whose answer stands."""
    if step.running:
        return Shown()
    return Shown(f"the answer from {NAMES[step.update['strategy']]} stands")


def retrieve(step: Step) -> Shown:
    """A round's search."""
    if step.running:
        return under_way(step)
    found = step.update["evidence"]
    words = f"{counted(len(found), 'chunk')} for: {clean(step.update['query'])}"
    return Shown(words, _titles(found) if found else None)


def generate(step: Step) -> Shown:
    """A round's answer."""
    return Shown() if step.running else Shown(clean(step.update["answer"]) or "(no answer)")


RENDERERS: Mapping[str, Renderer] = {
    "pseudo_generate": draft,
    "draft": draft,
    "query": query,
    "search": search,
    "try_snippet": try_snippet,
    "rerank": rerank,
    "keep": keep,
    "write": write,
    "append": append,
    "conclude": conclude,
    "reason_over_knowledge": conclude,
    "choose": choose,
    "retrieve": retrieve,
    "generate": generate,
}


def path(output: Mapping[str, Any]) -> list[RenderableType]:
    """The sentences that led to the answer, and for which of them something was looked up."""
    steps: Sequence[Sentence] = output["steps"]
    titles = {chunk["id"]: chunk["title"] for chunk in output["evidence"]}
    table = Table.grid(padding=(0, 2, 0, 0))
    for position, step in enumerate(steps, 1):
        source = step["chunk_id"]
        looked_up = [("  from " + clean(titles.get(source) or source), "dim")] if source else []
        table.add_row(Text(f"{position:>2}", "dim"), Text.assemble(_sentence(step["rationale"]), *looked_up))
    heading = f"The reasoning, {counted(len(steps), 'step')}; it ended because {ENDINGS[output['ended']]}:"
    return [Text(heading, "dim"), table, *_conclusions(output)]


def _conclusions(output: Mapping[str, Any]) -> list[RenderableType]:
    found = output.get("conclusions") or []
    if len(found) < 2:
        return []
    said = [
        f"{clean(one['answer']) or 'no answer'} from {NAMES[one['strategy']]}"
        + ("" if one["uncertainty"] is None else f" (U {one['uncertainty']:.2f})")
        for one in sorted(found, key=lambda one: bool(one["strategy"] != output["strategy"]))
    ]
    return [Group(Text(f"Chosen: {said[0]}; not {said[1]}.", "dim"))]


def _sentence(text: str) -> str:
    return clean(text) or "(nothing)"


def _titles(chunks: Sequence[Chunk]) -> Text:
    return Text(", ".join(dict.fromkeys(clean(chunk["title"]) or clean(chunk["id"]) for chunk in chunks)), "dim")
