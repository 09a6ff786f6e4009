"""How the steps of SUNAR look on the terminal, beside those of neighbourhood-aware retrieval."""

from __future__ import annotations

from collections.abc import Mapping

from rich.text import Text

from .screen import clean, counted
from .steps import Renderer, Shown, Step
from .view_neighbourhood import ENDINGS, exploration, titles


def is_sunar(step: Step) -> bool:
    """Does the step belong to SUNAR, and not to a graph with a node of the same name?"""
    return "hops" in step.input


def decompose(step: Step) -> Shown:
    """The next sub-question, or the answer that the path arrives at."""
    if step.running:
        return Shown()
    query = step.update["query"]
    if query is not None:
        words = f"sub-question {len(step.input['hops']) + 1}: {clean(query)}"
    else:
        words = f"the path arrives at: {_said(step.update['sequential_answer'])}"
    warnings = [Text(clean(one), "yellow") for one in step.update.get("warnings", [])]
    return Shown(words, Text("\n").join(warnings) if warnings else None)


def neighbourhood(step: Step) -> Shown:
    """What is looked up; afterwards how far the look-up went, as its answer is shown already."""
    if step.running:
        return Shown(clean(step.input["query"]))
    return Shown(f"{exploration(step.update)}: {ENDINGS[step.update['stopped']]}")


def note(step: Step) -> Shown:
    """Nothing: the look-up has been shown."""
    return Shown(passing=True)


def gather(step: Step) -> Shown:
    """What is read again."""
    if step.running:
        return Shown()
    found = step.update["meta_evidence"]
    words = f"{counted(len(found), 'document')} of all sub-questions to read again"
    return Shown(words, Text(titles(found), "dim") if found else None)


def reason(step: Step) -> Shown:
    """The final answer, and whether it is the path's."""
    if step.running:
        return Shown()
    final = _said(step.update["answer"])
    if not step.update["changed"]:
        return Shown(f"the answer stays: {final}")
    before = Text(f"≠ what the path arrives at: {_said(step.input['sequential_answer'])}", "yellow")
    return Shown(f"the answer changes: {final}", before)


def conclude(step: Step) -> Shown:
    """That the path's answer stands."""
    return Shown("" if step.running else "the path's answer stands, nothing is read again")


RENDERERS: Mapping[str, Renderer] = {
    "decompose": decompose,
    "neighbourhood": neighbourhood,
    "note": note,
    "gather": gather,
    "reason": reason,
    "conclude": conclude,
}


def _said(text: str) -> str:
    return clean(text) or "(no answer)"
