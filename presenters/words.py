"""Figures and names in words, the same for every presenter and renderer."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..state.records import address_of

MOST_TITLES = 5
"""Titles in a sentence about evidence; the others are counted."""

NO_ANSWER = "(no answer)"
"""Stands for an empty answer."""

LONGEST_HEADING = 80
"""Characters."""

WITHHELD = "(withheld: not certain enough)"
"""Stands for an answer that is withheld."""


def counted(count: int, thing: str) -> str:
    """'1 chunk', '2 chunks', '3 entries'."""
    plural = thing[:-1] + "ies" if thing.endswith("y") and thing[-2:-1] not in "aeiou" else f"{thing}s"
    return f"{count:,} {thing if count == 1 else plural}"


def duration(seconds: float) -> str:
    """'0.3 s', '2 min 5 s'."""
    return f"{seconds:.1f} s" if seconds < 60 else f"{int(seconds) // 60} min {int(seconds) % 60} s"


def figure(value: float) -> str:
    """A whole number as it is; others with three significant digits below 1 and two decimals above."""
    if float(value).is_integer():
        return f"{value:g}"
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:#.3g}"


def shortened(text: str, length: int) -> str:
    """One line of at most `length` characters."""
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 3].rstrip() + "..."


def title_of(chunk: Mapping[str, Any]) -> str:
    """A chunk's title, or its id if it has none."""
    return str(chunk.get("title") or chunk.get("id") or "(no title)")


def source_of(chunk: Mapping[str, Any]) -> str:
    """Where a chunk comes from, of what its metadata says: 'page 3, section "Course", https://...'."""
    metadata = chunk.get("metadata")
    if not isinstance(metadata, Mapping):
        return ""
    page = f"page {metadata['page']}" if isinstance(metadata.get("page"), int) else ""
    return ", ".join(filter(None, (page, section_of(metadata.get("heading")), address_of(chunk))))


def section_of(heading: object) -> str:
    """The heading of a chunk: 'section "Course"'; empty without one."""
    return f'section "{shortened(heading, LONGEST_HEADING)}"' if isinstance(heading, str) and heading else ""


def names_of(chunks: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """A name for each chunk, by id: its title, with the id if several chunks share the title."""
    titles = {str(chunk.get("id")): title_of(chunk) for chunk in chunks}
    times = Counter(titles.values())
    return {
        chunk_id: title if times[title] == 1 else _told_apart(title, chunk_id) for chunk_id, title in titles.items()
    }


def _told_apart(title: str, chunk_id: str) -> str:
    return chunk_id if chunk_id.startswith(title) else f"{title} ({chunk_id})"


def titles_of(chunks: Sequence[Mapping[str, Any]], most: int | None = None) -> str:
    """The chunks' titles, each once: 'Salt; The Lune (2); and 3 more'."""
    times = Counter(title_of(chunk) for chunk in chunks)
    titles = [title if count == 1 else f"{title} ({count})" for title, count in times.items()]
    shown = titles if most is None else titles[:most]
    more = len(titles) - len(shown)
    return "; ".join([*shown, f"and {more} more"] if more else shown)


def similarities(chunks: Sequence[Mapping[str, Any]], score: str, chunker: str = "", total: int | None = None) -> str:
    """'3 of 6 chunks (tokens:128/16), similarity 0.45 to 1.00'. score: see `measure`."""
    if not chunks:
        return "no chunks"
    count = counted(len(chunks), "chunk") if total is None else f"{len(chunks)} of {counted(total, 'chunk')}"
    scores = [chunk["score"] for chunk in chunks]
    return f"{count}{f' ({chunker})' * bool(chunker)}, {score} {min(scores):.2f} to {max(scores):.2f}"


def measure(settings: object, *, reranked: bool = True) -> str:
    """What the scores of retrieved chunks are: 'similarity' (cosine), or another 'score'. reranked: they may be."""
    if getattr(settings, "selection", "top_k") != "top_k":
        return "similarity"
    other = getattr(settings, "first_stage", "dense") != "dense" or (reranked and getattr(settings, "rerank_n", 0))
    return "score" if other else "similarity"


def megabytes(size: int) -> str:
    """'1.5 MB'."""
    return f"{size / 1e6:,.1f} MB" if size >= 100_000 else f"{size / 1e3:,.1f} kB"
