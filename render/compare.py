"""Two traces of one question side by side: settings, answers, evidence, steps, cost."""

from collections.abc import Sequence
from difflib import SequenceMatcher

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..errors import UserFault
from ..presenters.words import names_of
from ..traces.recording import Recording
from .answer import answer_text
from .facts import answer_of, cost_of, evidence_of, refuses_unshowable, settings_of, state_of, times
from .sanitize import one_line, shortened
from .terminal import columns

LONGEST_SETTING = 60
"""Characters of a setting's value."""


@refuses_unshowable
def comparison(a: Recording, b: Recording) -> RenderableType:
    """The differences of the traces.

    Raises `UserFault` for traces of different questions.
    """
    if a.question != b.question:
        raise UserFault(
            f"The traces are of different questions ('{shortened(a.question, 60)}' and '{shortened(b.question, 60)}'): "
            "give two traces of the same question."
        )
    parts: list[RenderableType] = [Text(one_line(a.question), "bold")]
    for name, trace in (("A", a), ("B", b)):
        path, graph = one_line(str(trace.path)), one_line(trace.graph)
        parts.append(Text.assemble((f"{name}  ", "bold"), path, (f"  {graph}", "dim")))
        if state := state_of(trace):
            parts.append(Text(f"   {one_line(state)}", "yellow"))
    for heading, shown in (
        ("Settings", _settings(a, b)),
        ("Answer", _answers(a, b)),
        ("Evidence: rank in A, rank in B", _evidence(a, b)),
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
    table = columns("", "A", "B")
    for name in names:
        values = [shortened(side[name], LONGEST_SETTING) if name in side else "-" for side in (left, right)]
        table.add_row(Text(one_line(name)), *(Text(value) for value in values))
    return table


def _answers(a: Recording, b: Recording) -> RenderableType:
    left, right = (answer_text(answer_of(trace)) for trace in (a, b))
    if left.plain == right.plain:
        return Text.assemble("the same: ", left)
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_row(Text("A", "bold"), left)
    table.add_row(Text("B", "bold"), right)
    return table


def _evidence(a: Recording, b: Recording) -> RenderableType:
    """Every chunk with its rank in each trace, the chunks of A first."""
    ranks_of = [{str(chunk.get("id")): rank for rank, chunk in enumerate(evidence_of(trace), 1)} for trace in (a, b)]
    titles = names_of([*evidence_of(a), *evidence_of(b)])
    if not titles:
        return Text("none")
    table = columns("A", "B", "")
    for chunk, title in titles.items():
        ranks = [by_chunk.get(chunk) for by_chunk in ranks_of]
        style = "" if None not in ranks else "yellow"
        table.add_row(*(Text("-" if rank is None else str(rank)) for rank in ranks), Text(one_line(title), style))
    return table


def _steps(a: Recording, b: Recording) -> RenderableType:
    """As a diff of two files: steps in A only with a minus, steps in B only with a plus."""
    left, right = _lines(a), _lines(b)
    if left == right:
        return Text(f"the same {len(left)}")
    shown = Text()
    for kind, i, j, k, m in SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        if kind == "equal":
            shown.append("".join(f"  {line}\n" for line in left[i:j]), "dim")
            continue
        shown.append("".join(f"- {line}\n" for line in left[i:j]), "red")
        shown.append("".join(f"+ {line}\n" for line in right[k:m]), "green")
    shown.rstrip()
    return shown


def _lines(recording: Recording) -> list[str]:
    return [f"{one_line(' / '.join([*path, step.node]))} {times(step)}".rstrip() for path, step in recording.walk()]


def _cost(a: Recording, b: Recording) -> RenderableType:
    left, right = cost_of(a.calls), cost_of(b.calls)
    table = columns("", "A", "B", "B - A")
    for column in table.columns[1:]:
        column.justify = "right"
    counts: Sequence[tuple[str, int, int]] = (
        ("steps", len(_lines(a)), len(_lines(b))),
        ("model calls", left.calls, right.calls),
        ("tokens read", left.read, right.read),
        ("tokens written", left.written, right.written),
    )
    for name, in_a, in_b in counts:
        table.add_row(Text(name), f"{in_a:,}", f"{in_b:,}", f"{in_b - in_a:+,}")
    table.add_row(Text("seconds"), f"{a.seconds:.1f}", f"{b.seconds:.1f}", f"{b.seconds - a.seconds:+.1f}")
    return table
