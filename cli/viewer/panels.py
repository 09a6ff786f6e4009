"""What a page shows of a technique beside its steps: a panel by graph name. A new technique adds a file and a line."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...traces.recording import Recording
from . import panel_baselines, panel_dense, panel_df_rag, panel_seakr, panel_seper, panel_sunar
from .blocks import Block, Words

Panel = Callable[[Recording], list[Block]]

PANELS: Mapping[str, Panel] = {
    "vanilla_rag": panel_baselines.vanilla_rag,
    "iter_retgen": panel_baselines.iter_retgen,
    "df_rag": panel_df_rag.panel,
    "dense": panel_dense.dense,
    "dense_rag": panel_dense.dense_rag,
    "sunar": panel_sunar.sunar,
    "neighbourhood": panel_sunar.neighbourhood,
    "seakr": panel_seakr.panel,
    "cot": panel_seakr.panel,
    "ircot": panel_seakr.panel,
    "flare": panel_seakr.panel,
    "seper": panel_seper.panel,
}
"""Each says what it can of a run that did not come to its end, too."""


def blocks(recording: Recording) -> list[Block]:
    """The panel of the trace's graph; empty for a graph that has none."""
    panel = PANELS.get(recording.graph)
    if panel is None:
        return []
    try:
        return panel(recording)
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError):
        # another release's state of the same graph, or a file somebody edited
        return [Words(f"This trace's {recording.graph} differs from the one known here; its steps are below.", "warn")]
