"""How fast this machine is. Limits in seconds are meant for an ordinary one, and tests run on slower ones too."""

from __future__ import annotations

import time

ORDINARY = 0.06
"""Seconds in which an ordinary machine of 2024 adds a million numbers in plain Python 3.11."""


def slowness() -> float:
    """How many times as long as an ordinary machine this one takes for plain Python; at least 1."""
    return max(1.0, min(_seconds() for _ in range(5)) / ORDINARY)


def _seconds() -> float:
    begun, total = time.process_time(), 0
    for number in range(1_000_000):
        total += number
    return time.process_time() - begun
