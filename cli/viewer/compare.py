"""Two traces of one question side by side: settings, answers, evidence, steps, cost."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ...errors import UserFault
from ...traces.recording import Recording
from ..screen import clean, shorten
from ..steps import rows
from .facts import cost_of, evidence_of, names_of, settings_of, state_of, times
from .terminal import answer_text

LONGEST_SETTING = 60
"""Characters of a setting's value."""


def comparison(a: Recording, b: Recording) -> RenderableType:
    """What is the same in both, what in one of them only.

    Raises `UserFault` for traces of different questions.
    """
    if a.question != b.question:
        raise UserFault(
            f"The traces are of different questions ('{shorten(a.question, 60)}' and '{shorten(b.question, 60)}'): "
            "give two of the same one."
        )
    parts: list[RenderableType] = [Text(clean(a.question), "bold")]
    for mark, one in (("A", a), ("B", b)):
        parts.append(Text.assemble((f"{mark}  ", "bold"), clean(str(one.path)), (f"  {clean(one.graph)}", "dim")))
        if said := state_of(one):
            parts.append(Text(f"   {clean(said)}", "yellow"))
    for heading, shown in (
        ("Settings", _settings(a, b)),
        ("Answer", _answers(a, b)),
        ("Evidence: its place in each", _evidence(a, b)),
        ("Steps: - only in A, + only in B", _steps(a, b)),
        ("Cost", _cost(a, b)),
    ):
        parts += [Text(), Text(heading, "dim"), shown]
    return Group(*parts)


def _settings(a: Recording, b: Recording) -> RenderableType:
    left, right = settings_of(a), settings_of(b)
    names = [name for name in dict.fromkeys([*left, *right]) if left.get(name) != right.get(name)]
    if not names:
        return Text("the same")
    table = rows("", "A", "B")
    for name in names:
        values = [shorten(side[name], LONGEST_SETTING) if name in side else "-" for side in (left, right)]
        table.add_row(Text(clean(name)), *(Text(value) for value in values))
    return table


def _answers(a: Recording, b: Recording) -> RenderableType:
    left, right = answer_text(a), answer_text(b)
    if left.plain == right.plain:
        return Text.assemble("the same: ", left)
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_row(Text("A", "bold"), left)
    table.add_row(Text("B", "bold"), right)
    return table


def _evidence(a: Recording, b: Recording) -> RenderableType:
    """Every chunk with its place in each, those of A first."""
    places = [{str(one.get("id")): rank for rank, one in enumerate(evidence_of(side), 1)} for side in (a, b)]
    titles = names_of([*evidence_of(a), *evidence_of(b)])
    if not titles:
        return Text("none")
    table = rows("A", "B", "")
    for chunk, title in titles.items():
        ranks = [places[side].get(chunk) for side in (0, 1)]
        style = "" if None not in ranks else "yellow"
        table.add_row(*(Text("-" if rank is None else str(rank)) for rank in ranks), Text(clean(title), style))
    return table


def _steps(a: Recording, b: Recording) -> RenderableType:
    """As of two files: what A alone has with a minus, what B alone has with a plus."""
    left, right = _lines(a), _lines(b)
    if left == right:
        return Text(f"the same {len(left)}")
    shown = Text()
    for what, i, j, k, m in SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        if what == "equal":
            shown.append("".join(f"  {line}\n" for line in left[i:j]), "dim")
            continue
        shown.append("".join(f"- {line}\n" for line in left[i:j]), "red")
        shown.append("".join(f"+ {line}\n" for line in right[k:m]), "green")
    shown.rstrip()
    return shown


def _lines(recording: Recording) -> list[str]:
    return [f"{clean(' / '.join([*path, step.node]))} {times(step)}".rstrip() for path, step in recording.walk()]


def _cost(a: Recording, b: Recording) -> RenderableType:
    left, right = cost_of(a.calls), cost_of(b.calls)
    table = rows("", "A", "B", "B - A")
    for column in table.columns[1:]:
        column.justify = "right"
    counts: Sequence[tuple[str, int, int]] = (
        ("steps", len(_lines(a)), len(_lines(b))),
        ("model calls", left.calls, right.calls),
        ("tokens read", left.read, right.read),
        ("tokens written", left.written, right.written),
    )
    for name, one, other in counts:
        table.add_row(Text(name), f"{one:,}", f"{other:,}", f"{other - one:+,}")
    table.add_row(Text("seconds"), *(f"{one:.1f}" for one in (a.seconds, b.seconds)), f"{b.seconds - a.seconds:+.1f}")
    return table
