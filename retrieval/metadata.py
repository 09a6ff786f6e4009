"""What a source says of a document beside its text: address, page, date, any other field of its record."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ..state.records import Metadata

MOST_FIELDS = 50

LONGEST_NAME = 100
"""Characters."""

LARGEST = 2.0**63
"""No number is this large."""

LONGEST_VALUE = 2_000
"""Characters; a longer text is cut."""


def metadata_of(fields: Mapping[Any, Any], without: Collection[str] = ()) -> Metadata:
    """The fields as metadata: texts, numbers and truth values as they are, lists and objects as JSON.

    Empty fields are left out, and what is beyond the limits above. without: names of fields that are something else.
    """
    found: Metadata = {}
    for key, value in fields.items():
        is_number = isinstance(value, bool | int | float)
        if str(key) in without or value is None or value == "" or (is_number and not abs(value) < LARGEST):
            continue
        if len(found) == MOST_FIELDS:
            break
        text = value if is_number or isinstance(value, str) else _json(value)
        found[_clean(str(key))[:LONGEST_NAME]] = text if is_number else _clean(text)[:LONGEST_VALUE]
    return found


def shared(of_chunks: Sequence[Metadata]) -> Metadata:
    """The fields that all chunks of a document have with one value."""
    first, *others = of_chunks
    return {name: value for name, value in first.items() if all(other.get(name) == value for other in others)}


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _json(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):
        return str(type(value).__name__)
