"""The filters of `where` in the forms that vector databases take.

A database may find more than passes, such as the text '3' for the number 3: its results are checked again by `passes`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ..errors import UserFault
from ..state.where import OWN_FIELDS, Combined, Condition, Test

if TYPE_CHECKING:
    from qdrant_client.models import FieldCondition, Filter

_OPPOSITES = {"$eq": "$ne", "$ne": "$eq", "$gt": "$lte", "$gte": "$lt", "$lt": "$gte", "$lte": "$gt"}
_DATE = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?)?")


def without_negation(condition: Condition, *, negated: bool = False) -> Condition:
    """The condition, or its negation, of `$and` and `$or` over `$exists` and comparisons alone.

    A comparison passes only fields that are there, as in a database, whose negations leave out what it cannot compare.
    """
    if isinstance(condition, Combined):
        inner = negated != (condition.how == "$not")
        how = "$or" if (condition.how == "$or") != negated else "$and"
        return Combined(how, [without_negation(part, negated=inner) for part in condition.parts])
    field, compare, value = condition.field, condition.operator, condition.value
    present, absent = Test(field, "$exists", value=True), Test(field, "$exists", value=False)
    if compare in {"$in", "$nin"}:
        equal = [Test(field, "$eq", one) for one in value]
        among = Combined("$or", equal) if equal else Combined("$and", [present, absent])  # nothing is among no values
        return without_negation(among, negated=negated != (compare == "$nin"))
    if compare == "$exists":
        return present if value != negated else absent
    if negated:
        compare = _OPPOSITES[compare]
    found = Test(field, compare, value)
    return Combined("$or", [absent, found]) if negated != (condition.operator == "$ne") else found


def qdrant_filter(condition: Condition) -> Filter:
    """The condition in Qdrant's form. `UserFault` for an order of texts, which Qdrant has for dates alone."""
    from qdrant_client.models import Filter  # noqa: PLC0415 - an extra

    if isinstance(condition, Combined):
        parts = [qdrant_filter(part) for part in condition.parts]
        if condition.how == "$and":
            return Filter(must=parts)
        return Filter(should=parts) if condition.how == "$or" else Filter(must_not=parts)
    positive = {"$ne": "$eq", "$nin": "$in"}.get(condition.operator)
    if positive:
        return Filter(must_not=[qdrant_filter(replace(condition, operator=positive))])
    if condition.operator == "$exists" and not condition.value:
        return Filter(must_not=[qdrant_filter(replace(condition, value=True))])
    return Filter(should=[_qdrant_match(f"metadata.{key}", condition) for key in _keys(condition.field)])


def _qdrant_match(key: str, test: Test) -> FieldCondition | Filter:
    from qdrant_client.models import (  # noqa: PLC0415 - an extra
        DatetimeRange,
        FieldCondition,
        Filter,
        IsEmptyCondition,
        MatchValue,
        PayloadField,
        Range,
    )

    value = test.value
    if test.operator == "$exists":
        return Filter(must_not=[IsEmptyCondition(is_empty=PayloadField(key=key))])
    if test.operator == "$in":
        matches = [_qdrant_match(key, Test(test.field, "$eq", one)) for one in value]
        return Filter(should=matches) if matches else Filter(must_not=[Filter()])
    if test.operator == "$eq":
        if isinstance(value, str | bool):
            return FieldCondition(key=key, match=MatchValue(value=value))
        return FieldCondition(key=key, range=Range(gte=value, lte=value))
    bound = test.operator.removeprefix("$")
    if isinstance(value, str):
        return FieldCondition(key=key, range=DatetimeRange(**{bound: _date(test)}))
    return FieldCondition(key=key, range=Range(**{bound: value}))


def _date(test: Test) -> datetime:
    try:
        if _DATE.fullmatch(test.value):
            return datetime.fromisoformat(test.value)
    except ValueError:
        pass
    raise UserFault(
        f"Qdrant orders numbers and dates alone, and where asks for {test.operator} of the text '{test.value}': "
        "compare a number or a date such as 2024-05-31, or use $in."
    )


def postgres_filter(condition: Condition) -> Mapping[str, Any]:
    """The condition in the form of LangChain's `PGVectorStore`. `UserFault` for a field with a name it cannot take."""
    return _postgres(without_negation(condition))


def _postgres(condition: Condition) -> Mapping[str, Any]:
    if isinstance(condition, Combined):
        return {condition.how: [_postgres(part) for part in condition.parts]}
    if not re.fullmatch(r"[^\W\d]\w*", condition.field):
        raise UserFault(
            f"pgvector filters by fields whose names have letters, digits and _ alone: leave '{condition.field}' out "
            "of where, or rename the field in the corpus."
        )
    # as a float, because a whole number would have PostgreSQL read 2.5 as one
    is_number = isinstance(condition.value, int) and not isinstance(condition.value, bool)
    value = float(condition.value) if is_number else condition.value
    tests = [{key: {condition.operator: value}} for key in _keys(condition.field)]
    return tests[0] if len(tests) == 1 else {_over_keys(condition): tests}


def milvus_filter(condition: Condition, flat: bool) -> str:
    """The condition as an expression of Milvus. flat: each field is a column, as LangChain makes it by default."""
    return _milvus(without_negation(condition), flat)


def _milvus(condition: Condition, flat: bool) -> str:
    if isinstance(condition, Combined):
        return f" {condition.how.removeprefix('$')} ".join(f"({_milvus(part, flat)})" for part in condition.parts)
    own = condition.field in OWN_FIELDS
    if flat and not condition.field.isidentifier():
        raise UserFault(f"There can be no column '{condition.field}' in Milvus: leave it out of where.")
    name = json.dumps(condition.field, ensure_ascii=False)
    keys = [condition.field] if flat else [f"$meta[{name}]"] if own else [f"metadata[{name}]", f"$meta[{name}]"]
    combine = f" {_over_keys(condition).removeprefix('$')} "
    return combine.join(f"({_milvus_test(key, condition)})" for key in keys)


def _milvus_test(key: str, test: Test) -> str:
    if test.operator == "$exists":
        return f"exists {key}" if test.value else f"not exists {key}"
    sign = {"$eq": "==", "$ne": "!=", "$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}[test.operator]
    return f"{key} {sign} {json.dumps(test.value, ensure_ascii=False)}"


def _keys(field: str) -> Sequence[str]:
    """Where a field is: below the metadata of a collection that dubito filled, or of one that LangChain filled."""
    return [field] if field in OWN_FIELDS else [f"metadata.{field}", field]


def _over_keys(test: Test) -> str:
    """A field is there if it is at one of its keys."""
    return "$and" if test.operator == "$exists" and not test.value else "$or"
