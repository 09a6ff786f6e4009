"""Removing a reasoning model's thoughts from its answers, and finding stop strings in them."""

import re
from collections.abc import Iterable

OPEN, CLOSE = "<think>", "</think>"
_THOUGHT = re.compile(f"{OPEN}.*?{CLOSE}", re.DOTALL)


def strip_thinking(text: str) -> str:
    """The answer in a reply: the text outside `<think>...</think>`, trimmed.

    If the text begins inside a thought, the part after the last `</think>` is kept. A thought that is never closed is
    removed up to the end. A text without these marks is returned unchanged.
    """
    answer = _THOUGHT.sub("", text).rpartition(CLOSE)[2].partition(OPEN)[0]
    return answer if answer == text else answer.strip()


def first_stop(text: str, stops: Iterable[str], start: int = 0) -> int | None:
    """The position of the first stop string at or behind `start`; None without one. Empty stop strings are ignored."""
    return min((at for stop in stops if stop and (at := text.find(stop, start)) >= 0), default=None)
