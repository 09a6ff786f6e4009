"""The answer in a reply: without a reasoning model's thoughts, up to a stop string, or none and why."""

from collections.abc import Iterable

OPEN, CLOSE = "<think>", "</think>"

CUT = frozenset({"length", "max_tokens", "max_output_tokens", "model_length"})
"""Finish reasons of replies that were cut at the length limit."""

_ENDED = frozenset({"stop", "end_turn", "stop_sequence", "eos", "eos_token", "complete", "completed"})
"""Finish reasons of replies that the model ended itself."""


def strip_thinking(text: str) -> str:
    """The answer in a reply: the text outside `<think>...</think>`, trimmed.

    If the text begins inside a thought, the part after the last `</think>` is kept. A thought that is never closed is
    removed up to the end. A text without these marks is returned unchanged.
    """
    outside, at = "", 0
    # not by a regular expression, whose time would grow with the square of the thoughts that are never closed
    while (start := text.find(OPEN, at)) >= 0 and (end := text.find(CLOSE, start)) >= 0:
        outside += text[at:start]
        at = end + len(CLOSE)
    answer = (outside + text[at:]).rpartition(CLOSE)[2].partition(OPEN)[0]
    return answer if answer == text else answer.strip()


def why_empty(ended: object, *, has_thoughts: bool, refusal: object = None) -> str:
    """Why a reply without text has none, as a clause about the reply; empty if the model simply said nothing.

    ended: the finish reason, in any server's words; refusal: the server's separate text of a refusal.
    """
    reason = str(ended or "stop").lower()
    if refusal:
        return "it is a refusal"
    if reason in CUT:
        return "it was cut off at the length limit" + (" while the model was thinking" if has_thoughts else "")
    if reason not in _ENDED:
        return f"the server ended it with '{reason[:40]}'"
    return "it holds only the model's thoughts" if has_thoughts else ""


def first_stop(text: str, stops: Iterable[str], start: int = 0) -> int | None:
    """The position of the first stop string at or behind `start`; None without one. Empty stop strings are ignored."""
    return min((at for stop in stops if stop and (at := text.find(stop, start)) >= 0), default=None)
