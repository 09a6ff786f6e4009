"""Make text of models and documents safe to draw."""

import re

_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # control sequences: colours, cursor
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x90\x98\x9c-\x9f]*(?:\x07|\x1b\\|\x9c)"  # window titles, links
    r"|\x1b[ -/]*[0-~]?"
)
_OVERRIDES = map(ord, "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_CONTROLS = (code for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t")
_REMOVED = dict.fromkeys([*_OVERRIDES, *_CONTROLS, *range(0xD800, 0xE000)])


def sanitize(text: str) -> str:
    """Remove terminal escapes, control characters, bidirectional overrides and lone surrogates; leave the rest."""
    if text.isascii() and text.isprintable():  # nothing to remove, and a page has many thousand such texts
        return text
    return _ESCAPES.sub("", text).translate(_REMOVED)


def one_line(text: str) -> str:
    """The same, with all white space as single spaces."""
    return " ".join(_ESCAPES.sub("", text).split()).translate(_REMOVED)


def shortened(text: str, length: int) -> str:
    """One sanitized line of at most `length` characters."""
    line = one_line(text)
    return line if len(line) <= length else line[: length - 3].rstrip() + "..."
