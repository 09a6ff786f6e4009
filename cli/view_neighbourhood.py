"""How the steps of neighbourhood-aware retrieval look on the terminal: one block a batch, which `promote` shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..models.answer_text import normalised
from ..nodes.promote import penalty, ranked
from ..state.neighbourhood import Ending, NeighbourhoodContext, Pool, Scored
from ..state.records import Chunk
from .screen import clean, counted, shorten
from .steps import Renderer, Shown, Step, one_line, rows
from .view_dense import name_of
from .view_shared import under_way

ENDINGS: Mapping[Ending, str] = {
    "budget": "the budget is spent",
    "exhausted": "nothing is left to score",
    "converged": "the best documents get no better",
    "batches": "there were too many batches",
}
"""Why an exploration ended, in words."""

MOST_ENTERED = 5
"""Documents shown of those that a batch brings among the best; the others are counted."""

MOST_TITLES = 5
"""Titles in a line of evidence; the others are counted."""

MOST_ANSWERS = 5
"""Distinct sampled answers shown; the others are counted."""

LONGEST_ANSWER = 30
"""Characters of a sampled answer beside others."""

_FROM: Mapping[Pool, str] = {"first_stage": "from the first stage", "frontier": "neighbours"}


def is_look_up(step: Step) -> bool:
    """Does the step belong to neighbourhood-aware retrieval, and not to a graph with a node of the same name?"""
    return "asked" in step.input


def retrieve(step: Step) -> Shown:
    """How many documents the first stage found."""
    if step.running:
        return under_way(step)
    found = step.update["first_stage"]
    words = f"{counted(len(found), 'document')} from {step.update['source']}" if found else "no documents"
    return Shown(clean(words))


def explore(step: Step) -> Shown:
    """Nothing: `promote` tells what the batch was, and `answer` or the panel why no other follows."""
    return Shown(passing=True)


def rerank(step: Step) -> Shown:
    """What is being scored."""
    return Shown(f"{_batch(step)} to score", passing=True)


def sample(step: Step) -> Shown:
    """What is being asked."""
    return Shown(f"{counted(_settings(step).samples, 'answer')} to batch {step.input['iteration'] + 1}", passing=True)


def cluster(step: Step) -> Shown:
    """What is being compared; afterwards only what went wrong."""
    if step.running:
        return Shown(f"{counted(len(_distinct(step.input['answers'])), 'distinct answer')} to compare", passing=True)
    warnings = [Text(clean(one), "yellow") for one in step.update["warnings"]]
    return Shown(f"batch {step.input['iteration'] + 1}", Text("\n").join(warnings)) if warnings else Shown(passing=True)


def promote(step: Step) -> Shown:
    """The batch as a whole: what was scored, whether answers wavered, what came among the best, what is near them."""
    if step.running:
        return Shown()
    context, before, fresh = _settings(step), step.input["scored"], step.update["scored"]
    words = f"{_batch(step)}, {len(before) + len(fresh):,} of {context.budget:,} scored"
    parts: list[RenderableType] = [] if context.penalty == "none" else [_wavering(step)]
    new = entered(before, fresh, context.k)
    frontier = f"{counted(len(step.update['frontier']), 'document')} in the frontier"
    parts.append(Text(f"{len(new) or 'nothing'} new among the best {context.k}; {frontier}"))
    return Shown(words, Group(*parts, _table(new, step.input["documents"])) if new else Group(*parts))


def answer(step: Step) -> Shown:
    """A sub-question's answer, and what it is made from; a question's own is in the panel."""
    if step.running or not step.path:
        return Shown()
    evidence = step.update["evidence"]
    found = titles(evidence)
    return Shown(clean(step.update["answer"]) or "(no answer)", Text(f"from {found}", "dim") if evidence else None)


RENDERERS: Mapping[str, Renderer] = {
    "retrieve": retrieve,
    "explore": explore,
    "rerank": rerank,
    "sample": sample,
    "cluster": cluster,
    "promote": promote,
    "answer": answer,
}


def exploration(output: Mapping[str, Any]) -> str:
    """'48 scored, 16 from the frontier', of documents."""
    scored: Sequence[Scored] = output["scored"]
    return f"{len(scored):,} scored, {sum(one['pool'] == 'frontier' for one in scored):,} from the frontier"


def titles(chunks: Sequence[Chunk]) -> str:
    """The first titles, each once: 'Salt; The Lune (2); and 3 more'."""
    times = Counter(name_of(chunk) for chunk in chunks)
    named = [title if count == 1 else f"{title} ({count})" for title, count in times.items()]
    more = [f"and {len(named) - MOST_TITLES} more"] if len(named) > MOST_TITLES else []
    return "; ".join([*named[:MOST_TITLES], *more])


def entered(before: Sequence[Scored], fresh: Sequence[Scored], k: int) -> list[tuple[int, Scored]]:
    """What a batch brings among the k best, with its rank there from 1."""
    known = {one["chunk_id"] for one in before}
    best = enumerate(ranked([*before, *fresh])[:k], 1)
    return [(rank, one) for rank, one in best if one["chunk_id"] not in known]


def _settings(step: Step) -> NeighbourhoodContext:
    if not isinstance(step.settings, NeighbourhoodContext):
        raise TypeError("not the settings of neighbourhood-aware retrieval")
    return step.settings


def _batch(step: Step) -> str:
    """'batch 2: 16 neighbours'."""
    return f"batch {step.input['iteration'] + 1}: {len(step.input['batch'])} {_FROM[step.input['pool']]}"


def _distinct(answers: Sequence[str]) -> list[tuple[str, int]]:
    """Sampled answers but for how they are written, the most frequent first, each as it was first written."""
    first = {normalised(text): text for text in reversed(answers) if text}
    times = Counter(normalised(text) for text in answers if text)
    return [(first[one], count) for one, count in times.most_common()]


def _wavering(step: Step) -> Text:
    """The sampled answers, and what follows for the batch's scores."""
    answers, sets = step.input["answers"], step.input["sets"]
    distinct, empty = _distinct(answers), sum(not text for text in answers)
    said = [f"{shorten(text, LONGEST_ANSWER)} ({count})" for text, count in distinct[:MOST_ANSWERS]]
    said += [f"{len(distinct) - MOST_ANSWERS} more"] if len(distinct) > MOST_ANSWERS else []
    listed = ", ".join([*said, f"{empty} empty"] if empty else said)
    if sets is None:
        return Text(f"no penalty: {listed}", "yellow")
    if sets == 1:
        return Text(f"1 semantic set: {listed}")
    return Text(f"{sets} semantic sets, scores × {penalty(sets, _settings(step)):.2f}: {listed}", "yellow")


def _table(new: Sequence[tuple[int, Scored]], documents: Mapping[str, Chunk]) -> Table:
    table = rows("", "", "", "")
    for position in (0, 1):
        table.columns[position].no_wrap, table.columns[position].justify = True, "right"
    for rank, one in new[:MOST_ENTERED]:
        via = "" if one["via"] is None else f"via {name_of(documents[one['via']])}"
        title = one_line(name_of(documents[one["chunk_id"]]))
        table.add_row(Text(f"{rank}", "dim"), Text(f"{one['score']:#.3g}"), title, one_line(via, "dim"))
    if len(new) > MOST_ENTERED:
        table.add_row("", "", Text(f"and {len(new) - MOST_ENTERED} more", "dim"), "")
    return table
