"""A trace as one page of HTML that needs nothing beside itself: no script, no network, no fonts."""

from pathlib import Path

from ..presenters.presenter import answer_block, citations, figures_of, presenter_of, why
from ..presenters.words import duration
from ..traces.files import write_file
from ..traces.recording import Recording
from .cards import cards
from .facts import cost_of, evidence_of, refuses_unshowable, settings_of, state_of, warnings_of
from .html import environment
from .path_taken import figures
from .timeline import timeline

BEGINNING = b"<!doctype html>"


def write(recording: Recording, path: Path) -> int:
    """Write the page and return its size in bytes.

    Raises `UserFault` for a path that cannot be written, or that holds something other than a page.
    """
    return write_file(path, render(recording), "page", BEGINNING)


@refuses_unshowable
def render(recording: Recording) -> bytes:
    """The page, UTF-8; all text of the trace is escaped."""
    cost = cost_of(recording.calls)
    page = environment().get_template("page.jinja")
    said = page.render(
        recording=recording,
        presenter=presenter_of(recording.graph),
        state=state_of(recording),
        answer=answer_block(recording.output or {}),
        why=why(recording),
        citations=citations(recording.output or {}),
        warnings=warnings_of(recording),
        evidence=evidence_of(recording),
        settings=settings_of(recording),
        facts=[
            ("steps", f"{sum(1 for _ in recording.walk()):,}"),
            ("model calls", f"{cost.calls:,}"),
            ("tokens read", f"{cost.read:,}"),
            ("tokens written", f"{cost.written:,}"),
            ("time", duration(recording.seconds)),
        ],
        blocks=figures_of(recording),
        figures=figures(recording),
        timeline=timeline(recording),
        cards=cards(recording),
    )
    # half a surrogate pair has no UTF-8
    return said.encode("utf-8", errors="replace")
