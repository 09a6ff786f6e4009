"""Text of others, fit for a page."""

from __future__ import annotations

_TURNS = dict.fromkeys(map(ord, "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"))
_CONTROLS = dict.fromkeys([*(code for code in range(32) if chr(code) not in "\n\t"), *range(127, 160)])


def harmless(value: object) -> object:
    """Text without control characters, turned writing directions and halves of characters; all else as it is."""
    if type(value) is not str:
        return value
    return value.translate(_TURNS | _CONTROLS).encode("utf-8", errors="replace").decode()
