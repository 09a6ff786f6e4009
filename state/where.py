"""Filters over chunks in the form of MongoDB's queries: {"year": {"$gte": 2020}, "lang": "en"}.

A field is one of a chunk's metadata, or `title` or `doc_id`. Numbers are compared with numbers and texts with texts, so
dates written as 2024-05-31 compare as dates do. A chunk without the field passes `$ne`, `$nin` and
`{"$exists": false}`.
"""

import json
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import closest, either
from ..json_files import BrokenJson, parsed
from .records import Chunk

LONGEST = 10_000
"""Characters of a filter."""

OWN_FIELDS = ("title", "doc_id")
"""Fields of a chunk that are not metadata."""

Scalar = str | int | float | bool


@dataclass(frozen=True)
class Test:
    """A comparison of a field; `value` is a list for `$in` and `$nin`, a truth value for `$exists`."""

    field: str
    operator: str
    value: Any


@dataclass(frozen=True)
class Combined:
    """All or any of several conditions, or that none of them passes. how: `$and`, `$or` or `$not`."""

    how: str
    parts: Sequence["Condition"]


Condition = Test | Combined


def passes(condition: Condition, chunk: Chunk) -> bool:
    """Does the chunk pass?"""
    if isinstance(condition, Combined):
        results = (passes(part, chunk) for part in condition.parts)
        if condition.how == "$and":
            return all(results)
        return any(results) if condition.how == "$or" else not any(results)
    fields: Mapping[str, Any] = chunk if condition.field in OWN_FIELDS else chunk.get("metadata", {})
    found = fields.get(condition.field)
    return OPERATORS[condition.operator](found, condition.value)


def _same(found: Any, value: Scalar) -> bool:  # noqa: ANN401 - any metadata
    return isinstance(found, bool) == isinstance(value, bool) and bool(found == value)


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def compared(found: Any, value: Any) -> bool:  # noqa: ANN401 - any metadata
        texts = isinstance(found, str) and isinstance(value, str)
        return (texts or (_is_number(found) and _is_number(value))) and compare(found, value)

    return compared


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "$eq": _same,
    "$ne": lambda found, value: not _same(found, value),
    "$gt": _ordered(operator.gt),
    "$gte": _ordered(operator.ge),
    "$lt": _ordered(operator.lt),
    "$lte": _ordered(operator.le),
    "$in": lambda found, values: any(_same(found, value) for value in values),
    "$nin": lambda found, values: not any(_same(found, value) for value in values),
    "$exists": lambda found, value: (found is not None) == value,
}

ORDERED = ("$gt", "$gte", "$lt", "$lte")


def as_text(value: object) -> object:
    """A filter that was given as an object, as JSON; anything else as it is."""
    if isinstance(value, Mapping):
        return json.dumps(value) if value else ""
    return value


def condition_of(text: str) -> Condition:
    """The condition of a filter; ValueError with a clause for one that cannot be read."""
    if len(text) > LONGEST:
        raise ValueError(f"where has {len(text):,} characters, and may have {LONGEST:,}")
    try:
        value = parsed(text.encode())
    except BrokenJson as fault:
        raise ValueError(f'where is not JSON ({fault}): write it like {{"year": {{"$gte": 2020}}}}') from fault
    return _all_of(value)


def _all_of(value: Any) -> Condition:  # noqa: ANN401 - any JSON
    if not isinstance(value, dict) or not value:
        raise ValueError(f'where has {json.dumps(value)[:60]} for an object such as {{"year": {{"$gte": 2020}}}}')
    return Combined("$and", [part for name, given in value.items() for part in _parts(name, given)])


def _parts(name: str, given: Any) -> Sequence[Condition]:  # noqa: ANN401 - any JSON
    if name in {"$and", "$or"}:
        if not isinstance(given, list) or not given:
            raise ValueError(f"where's {name} takes a list of conditions")
        return [Combined(name, [_all_of(part) for part in given])]
    if name == "$not":
        return [Combined(name, [_all_of(given)])]
    if name.startswith("$"):
        known = ["$and", "$or", "$not"]
        raise ValueError(f"where has no '{name}' around fields: use {either(known)}{closest(name, known)}")
    tests = given if isinstance(given, dict) else {"$eq": given}
    if not tests:
        raise ValueError(f'where asks nothing of \'{name}\': compare it, as in {{"{name}": {{"$gte": 2020}}}}')
    return [_test(name, compare, value) for compare, value in tests.items()]


def _test(field: str, compare: str, value: Any) -> Test:  # noqa: ANN401 - any JSON
    if compare not in OPERATORS:
        known = list(OPERATORS)
        raise ValueError(f"where has no operator '{compare}': use {either(known)}{closest(compare, known)}")
    if compare in {"$in", "$nin"}:
        is_right, takes = isinstance(value, list) and all(isinstance(one, Scalar) for one in value), "a list of values"
    elif compare == "$exists":
        is_right, takes = isinstance(value, bool), "true or false"
    elif compare in ORDERED:
        is_right, takes = isinstance(value, str) or _is_number(value), "a number or a text"
    else:
        is_right, takes = isinstance(value, Scalar), "a number, a text or a truth value"
    if not is_right:
        raise ValueError(f"where's {compare} of '{field}' takes {takes}")
    return Test(field, compare, value)
