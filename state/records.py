"""The JSON records that travel in a graph's state, and how parallel updates of them are joined."""

from __future__ import annotations

from typing import Required, TypeVar

from typing_extensions import TypedDict  # pydantic reads typing's own only from Python 3.12 on

T = TypeVar("T")


class Chunk(TypedDict, total=False):
    """A piece of a document.

    id: unique in its corpus; start: offset of `text` in the document's text, in characters;
    score: what the retrieval that found it gave, a cosine in [-1, 1], a first stage's own score, or a re-ranker's;
    rephrasing: the text in other sentences, once it is known, or the text itself if there is none.
    """

    id: Required[str]
    doc_id: Required[str]
    title: Required[str]
    text: Required[str]
    start: int
    score: float
    rephrasing: str


class NodeUsage(TypedDict):
    """What one node cost so far: runs of the node, model calls, tokens, seconds (parallel runs add up)."""

    runs: int
    calls: int
    prompt_tokens: int
    completion_tokens: int
    seconds: float


class Usage(TypedDict):
    """What a run cost: totals, and the same by node name."""

    calls: int
    prompt_tokens: int
    completion_tokens: int
    nodes: dict[str, NodeUsage]


NO_USAGE: Usage = {"calls": 0, "prompt_tokens": 0, "completion_tokens": 0, "nodes": {}}


def add_usage(left: Usage | None, right: Usage | None) -> Usage:
    """Join two usages; None on the right begins anew (a thread's next question starts at zero)."""
    if right is None:
        return {**NO_USAGE, "nodes": {}}
    left = left or NO_USAGE
    nodes = dict(left["nodes"])
    for name, cost in right["nodes"].items():
        nodes[name] = _add_costs(nodes[name], cost) if name in nodes else cost
    return {
        "calls": left["calls"] + right["calls"],
        "prompt_tokens": left["prompt_tokens"] + right["prompt_tokens"],
        "completion_tokens": left["completion_tokens"] + right["completion_tokens"],
        "nodes": nodes,
    }


def _add_costs(left: NodeUsage, right: NodeUsage) -> NodeUsage:
    return {
        "runs": left["runs"] + right["runs"],
        "calls": left["calls"] + right["calls"],
        "prompt_tokens": left["prompt_tokens"] + right["prompt_tokens"],
        "completion_tokens": left["completion_tokens"] + right["completion_tokens"],
        "seconds": left["seconds"] + right["seconds"],
    }


def extend(left: list[T] | None, right: list[T] | None) -> list[T]:
    """Append a parallel node's items; None on the right begins anew."""
    return [] if right is None else [*(left or []), *right]


def add_new(left: list[T] | None, right: list[T] | None) -> list[T]:
    """Append the items that are not there yet; None on the right begins anew."""
    return [] if right is None else list(dict.fromkeys([*(left or []), *right]))


def merge(left: dict[str, T] | None, right: dict[str, T] | None) -> dict[str, T]:
    """Add a parallel node's entries; None on the right begins anew."""
    return {} if right is None else {**(left or {}), **right}


def newest(left: T | None, right: T) -> T:
    """Keep what was written last, of parallel nodes' equal values any."""
    return right
