"""How the steps of DENSE look on the terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any, TypeVar

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..models.answer_text import normalised
from ..state.context import BaseContext
from ..state.dense import ORIGINAL, REPEATED, DenseContext
from ..state.records import Chunk
from .link_map import LinkMap, Row
from .screen import clean, counted
from .steps import Renderer, Shown, Step, one_line, rows

T = TypeVar("T")

MOST_ROWS = 21
"""Answers shown one a line, as many as a context of 20 chunks has; of more, those that say least are counted."""

AS_IT_IS = "the context as it is"
"""What stands for a title beside r_0."""

LONGEST_TITLE = 26
"""Columns of a chunk's title in a table."""


def rephrase(step: Step) -> Shown:
    """How many chunks are rephrased, and why others are not."""
    if step.running:
        return Shown()
    done = [end.update["rephrased"] for end in step.ends]
    warnings = [warning for end in step.ends for warning in end.update.get("warnings", [])]
    words = f"{len(done) - len(warnings)} of {counted(len(done), 'chunk')} rephrased"
    known = len(step.state["evidence"]) - len(done)
    words += f", {known} known already" if known else ""
    return Shown(words, Text("\n").join([Text(clean(one), "yellow") for one in warnings]) if warnings else None)


def contexts(step: Step) -> Shown:
    """Nothing: `answer` says of how many contexts there are answers."""
    return Shown(passing=True)


def answer(step: Step) -> Shown:
    """r_0 and the r_i as they arrive: what each context has of its own, and its answer."""
    labels = {chunk["id"]: (f"r_{i}", name_of(chunk)) for i, chunk in enumerate(step.state["evidence"], 1)}
    labels[ORIGINAL] = ("r_0", AS_IT_IS)
    replies: dict[str, str] = {}
    for end in step.ends:
        replies |= end.update["replies"]
    keys = [task.start.input["key"] for task in step.tasks.values()]
    wordings = counted(len({normalised(reply) for reply in replies.values()}), "wording")  # of meaning the judge speaks
    words = "" if step.running else f"{wordings} of the answer from {counted(len(keys), 'context')}"
    return Shown(words, answers([(*labels[key], replies.get(key)) for key in keys], replies.get(ORIGINAL)))


def repeat(step: Step) -> Shown:
    """What the model says when it is asked again."""
    words = "asked again, to see whether the answer stays"
    return Shown(words, None if step.running else said(step.update["replies"][REPEATED]))


def entail(step: Step) -> Shown:
    """How many pairs of answers entail each other."""
    if step.running:
        return Shown()
    link = step.update["link"]
    found = [link[a][b] for a, b in combinations(range(len(link)), 2)]
    both, one_way = sum(one == 1 for one in found), sum(0 < one < 1 for one in found)
    words = f"of {counted(len(found), 'pair')} of answers {both} entail each other"
    words += f", {one_way} one way only" if one_way else ""
    return Shown(words if found else "one answer alone")


def measure(step: Step) -> Shown:
    """DSE, whether the answer is certain, and where its uncertainty comes from."""
    if step.running:
        return Shown()
    update, evidence, link = step.update, step.input["evidence"], step.input["link"]
    n = len(link)
    most = math.log(n) / n if n > 1 else 1.0  # an answer that no other agrees with
    found = [Row("r_0", _levels(link[0]), None, "", one_line(AS_IT_IS, "dim"))]
    given = zip(evidence, update["shares"], update["rephrasings"], strict=True)
    for i, (chunk, share, rephrasing) in enumerate(given, 1):
        words = one_line(name_of(chunk))
        if rephrasing == chunk["text"]:
            words = one_line(f"not probed: {name_of(chunk)}", "yellow")
        found.append(Row(f"r_{i}", _levels(link[i]), share / most, f"{share:.2f}", words))
    warnings = [Text(clean(one), "yellow") for one in update["warnings"]]
    drawn: RenderableType = LinkMap(found)
    return Shown(verdict(update, step.settings), Group(drawn, *warnings) if warnings else drawn)


RENDERERS: Mapping[str, Renderer] = {
    "rephrase": rephrase,
    "contexts": contexts,
    "answer": answer,
    "repeat": repeat,
    "entail": entail,
    "measure": measure,
}


def verdict(figures: Mapping[str, Any], settings: BaseContext) -> str:
    """'DSE 0.45 (uncertain: above 0.2)', of a state or an output that holds a DSE."""
    dse = figures["dse"]
    if not isinstance(settings, DenseContext):
        return f"DSE {dse:.2f} ({'certain' if figures['certain'] else 'uncertain'})"
    if figures["certain"]:
        return f"DSE {dse:.2f} (certain: at most {settings.threshold:g})"
    reason = f"above {settings.threshold:g}" if dse > settings.threshold else "no chunk could be rephrased"
    return f"DSE {dse:.2f} (uncertain: {reason})"


def name_of(chunk: Chunk) -> str:
    """A chunk's title, or its id where it has none."""
    return clean(chunk["title"]) or clean(chunk["id"])


def said(text: str, style: str = "") -> Text:
    """An answer in one line."""
    return one_line(text, style) if text.strip() else Text("(no answer)", "dim")


def answers(found: Sequence[tuple[str, str, str | None]], r_0: str | None) -> Table:
    """Label, title and answer (None: not there yet), one a line; what differs from r_0 stands out."""

    def says_least(one: tuple[str, str, str | None]) -> bool:
        return one[0] != "r_0" and (r_0 is None or one[2] is None or same(one[2], r_0))

    kept, dropped = most(found, MOST_ROWS, says_least)
    table = titled("", "", "", "")
    for label, title, text in kept:
        if text is None:
            table.add_row(Text(label, "dim"), one_line(title), "", Text("...", "dim"))
        elif r_0 is None or label == "r_0":
            table.add_row(Text(label, "dim"), one_line(title), "", said(text, "bold" if label == "r_0" else ""))
        elif same(text, r_0):
            table.add_row(Text(label, "dim"), one_line(title, "dim"), Text("=", "dim"), said(text, "dim"))
        else:
            table.add_row(Text(label, "dim"), one_line(title), Text("≠", "bold yellow"), said(text, "bold yellow"))
    if dropped:
        table.add_row("", Text(f"and {dropped} more", "dim"))
    return table


def same(text: str, r_0: str) -> bool:
    """Is it the same answer, but for how it is written?"""
    return normalised(text) == normalised(r_0)


def most(found: Sequence[T], count: int, dull: Callable[[T], bool]) -> tuple[list[T], int]:
    """As many as `count` in their order, dull ones last to be chosen; and how many are left out."""
    chosen = sorted(range(len(found)), key=lambda i: dull(found[i]))[:count]
    return [found[i] for i in sorted(chosen)], len(found) - len(chosen)


def titled(*columns: str) -> Table:
    """A table of chunks, whose second column holds titles."""
    table = rows(*columns)
    table.columns[1].max_width = LONGEST_TITLE
    return table


def _levels(links: Sequence[float]) -> list[int]:
    return [2 if link >= 1 else int(link > 0) for link in links]
