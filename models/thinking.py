"""Keeps a reasoning model's thinking out of its answers."""

from __future__ import annotations

import re

OPEN, CLOSE = "<think>", "</think>"
_THOUGHT = re.compile(f"{OPEN}.*?{CLOSE}", re.DOTALL)


def strip_thinking(text: str) -> str:
    """Return the answer in a reply: what stands outside `<think>...</think>`, trimmed.

    Of a text that begins inside a thought the part after the last `</think>` is kept; a thought that was never closed
    takes everything after its `<think>` with it. A text without such marks comes back unchanged.
    """
    answer = _THOUGHT.sub("", text).rpartition(CLOSE)[2].partition(OPEN)[0]
    return answer if answer == text else answer.strip()
