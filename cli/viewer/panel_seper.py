"""SePer on the page: the two beliefs, every response with its weight and what it entails, the clusters."""

from __future__ import annotations

from collections.abc import Sequence

from ...state.seper import Belief
from ...traces.recording import Recording, last_update
from ..view_seper import counts
from .blocks import Bar, Bars, Block, Cell, Row, Table, Words, num

SIDES = {"with_context": "With the chunks", "without_context": "Without the chunks"}


def panel(recording: Recording) -> list[Block]:
    """One measurement."""
    update = last_update(recording.steps, "measure")
    if "delta" not in update:
        return [Words("The run ended before anything was measured.")]
    shown = [Bar(title, update[key]["seper"], f"{update[key]['seper']:.3f}") for key, title in SIDES.items()]
    note = f"ΔSePer {update['delta']:+.3f}: what the chunks add to the belief in the right answer, from −1 to 1."
    blocks: list[Block] = [Bars("SePer", shown, 1.0, "full belief", note)]
    golds: Sequence[str] = last_update(recording.steps, "prepare")["golds"]
    for key, title in SIDES.items():
        blocks.append(_responses(title, update[key], golds))
        if update[key]["clusters"]:
            blocks.append(_clusters(title, update[key], golds))
    return blocks


def _responses(title: str, belief: Belief, golds: Sequence[str]) -> Table:
    hard, back = bool(belief["clusters"]), any(one["entailed"] for one in belief["responses"])
    columns = ["weight", "response", *(["meaning"] if hard else [])]
    for gold in golds:
        columns += [f"entails {gold}", *([f"entailed by {gold}"] if back else [])]
    rows = []
    for one in sorted(belief["responses"], key=lambda one: -one["weight"]):
        cells = [num(one["weight"], f"{one['weight']:.3f}", one["weight"]), Cell(one["text"] or "(no answer)")]
        cells += [Cell(str(one["cluster"]))] if hard else []
        for place in range(len(golds)):
            cells += [_probability(one["entails"][place])]
            cells += [_probability(one["entailed"][place])] if back else []
        rows.append(Row(cells, marked=counts(one, belief) >= 0.5))
    note = f"SePer {belief['seper']:.3f}. Marked: what counts as right for a half or more."
    return Table(columns, rows, f"{title}: responses", note)


def _probability(value: float | None) -> Cell:
    return Cell("?", tip="the judge could not say") if value is None else num(value, f"{value:.2f}", value)


def _clusters(title: str, belief: Belief, golds: Sequence[str]) -> Table:
    rows = [
        Row(
            [
                Cell(str(place)),
                num(one["weight"], f"{one['weight']:.3f}", one["weight"]),
                Cell(one["first"] or "(no answer)"),
                *(Cell("matches" if match else "") for match in one["matches"]),
            ],
            marked=any(one["matches"]),
        )
        for place, one in enumerate(belief["clusters"])
    ]
    note = "A cluster's first response stands for it."
    return Table(["meaning", "weight", "first response", *golds], rows, f"{title}: meanings", note)
