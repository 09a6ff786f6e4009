"""The JSON records in a graph's state, and the reducers that join the updates of parallel nodes.

Every reducer begins anew if the update is null: `prepare` writes null when a thread asks its next question.
"""

import re
from collections.abc import Mapping
from typing import Any, Literal, Required, TypeVar

from typing_extensions import TypedDict  # pydantic reads typing's own only from Python 3.12 on

T = TypeVar("T")


Metadata = dict[str, str | int | float | bool]
"""What the source says of a document, by name."""


class Chunk(TypedDict, total=False):
    """A piece of a document.

    id: unique in its corpus; start: offset of `text` in the document's text, in characters;
    score: of the retrieval: a cosine in [-1, 1], a score of the first stage, or a score of the re-ranker;
    rephrasing: the text in other words (DENSE), or the text itself if the model could not rephrase it;
    metadata: what the source says of the document, such as `url`; `page`: of a PDF, the page where the chunk begins;
    `heading`: of Markdown and HTML, the heading under which it begins.
    """

    id: Required[str]
    doc_id: Required[str]
    title: Required[str]
    text: Required[str]
    start: int
    score: float
    rephrasing: str
    metadata: Metadata


ADDRESSES = ("url", "source", "link", "uri")
"""Metadata that may hold the web address of a document."""

WEB = re.compile(r"https?://[^\s<>\"']+\Z", re.IGNORECASE)


def address_of(chunk: Mapping[str, Any]) -> str:
    """The web address among a chunk's metadata; empty if there is none."""
    metadata = chunk.get("metadata")
    values = (metadata.get(name) for name in ADDRESSES) if isinstance(metadata, Mapping) else ()
    return next((value for value in values if isinstance(value, str) and WEB.match(value)), "")


Verdict = Literal["supported", "unsupported", "unchecked"]


class Citation(TypedDict):
    """A mark behind a part of an answer.

    mark: the number, which is the place of the passage in `evidence`, from 1; exists: is there such a passage? If not,
    the mark is in no answer that is shown, and the passage's fields are null or empty.
    chunk_id, title, address, page, heading: of the passage, empty or null where it has none.
    statement: the part of the answer that the mark stands behind, without marks.
    verdict: whether the passage entails the statement; unchecked: no judge of entailment could say; null without a
    passage.
    """

    mark: int
    exists: bool
    chunk_id: str | None
    title: str
    address: str
    page: int | None
    heading: str
    statement: str
    verdict: Verdict | None


class NodeUsage(TypedDict):
    """The cost of one node so far: runs, model calls, tokens and seconds. The seconds of parallel runs are added."""

    runs: int
    calls: int
    prompt_tokens: int
    completion_tokens: int
    seconds: float


class Usage(TypedDict):
    """The cost of a run: totals, and the cost of each node by name."""

    calls: int
    prompt_tokens: int
    completion_tokens: int
    nodes: dict[str, NodeUsage]


class Uncertainty(TypedDict):
    """How unsure a technique is of its answer.

    signal: the name of the measure, such as DSE; value: larger is less sure, null if it could not be measured;
    threshold: answers with a larger value count as uncertain; null if the technique has no threshold.
    """

    signal: str
    value: float | None
    threshold: float | None


class Certificate(TypedDict):
    """What is promised of the answers that a calibrated graph gives.

    sentence: the promise; holds: whether this run kept to what it was calibrated with; signal, threshold: an answer is
    given if its uncertainty by this signal is at most the threshold; right: the rule for right answers, such as
    "f1:0.5".
    """

    sentence: str
    holds: bool
    signal: str
    threshold: float
    right: str


class Chosen(TypedDict):
    """The value of a setting that was `auto`, and why it was chosen: a clause."""

    value: str
    because: str


NO_USAGE: Usage = {"calls": 0, "prompt_tokens": 0, "completion_tokens": 0, "nodes": {}}


def add_usage(left: Usage | None, right: Usage | None) -> Usage:
    """Add two costs."""
    if right is None:
        return {**NO_USAGE, "nodes": {}}
    left = left or NO_USAGE
    nodes = dict(left["nodes"])
    for name, cost in right["nodes"].items():
        nodes[name] = _sums(nodes[name], cost) if name in nodes else cost
    usage: Usage = _sums(left, right) | {"nodes": nodes}
    return usage


def _sums(left: Any, right: Any) -> Any:  # noqa: ANN401 - two costs of one type
    return {name: left[name] + right[name] for name in right if name != "nodes"}


def extend(left: list[T] | None, right: list[T] | None) -> list[T]:
    """Append all items."""
    return [] if right is None else [*(left or []), *right]


class Anew(list[T]):
    """A list with which `add_new` begins anew."""


def add_new(left: list[T] | None, right: list[T] | None) -> list[T]:
    """Append the items that the list does not have yet; null and `Anew` replace it."""
    kept = [] if right is None or isinstance(right, Anew) else left or []
    return list(dict.fromkeys([*kept, *(right or [])]))


def merge(left: dict[str, T] | None, right: dict[str, T] | None) -> dict[str, T]:
    """Add the entries; an entry on the right replaces one with the same key."""
    return {} if right is None else {**(left or {}), **right}


def newest(left: T | None, right: T) -> T:
    """Take the last value; parallel nodes may all write it."""
    return right
