"""The passages in one record of a corpus file.

A record is a passage (`title`, `text`), or a question with its paragraphs: 2WikiMultihopQA and HotpotQA
(`context` of [title, sentences]), HotpotQA on the hub (`context` of `title` and `sentences` lists), MuSiQue and PopQA
(`paragraphs`).
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ..state.records import Metadata
from .metadata import metadata_of

TEXT_NAMES = ("text", "contents", "content", "paragraph_text", "body", "passage", "sentences", "context")
TITLE_NAMES = ("title", "name", "heading")
ID_NAMES = ("id", "_id", "doc_id", "docid", "pid", "passage_id")
CHUNK_NAMES = ("id", "doc_id", "title")
"""The names that a chunk has in a vector database beside its metadata."""

POOL_NAMES = ("context", "paragraphs", "ctxs", "contexts")

TITLED_CONTENTS = re.compile(r'"(?P<title>[^"\n]{1,300})"\n(?P<text>.+)', re.DOTALL)
"""A text of FlashRAG's corpora, whose first line is the title in quotation marks."""


class Heading(NamedTuple):
    """A heading in a text, and the offset where it begins."""

    start: int
    text: str


class Passage(NamedTuple):
    """A text with its title and id; pooled: a paragraph of a question, which other questions may share.

    metadata: the other fields of the record; pages: the offsets in the text where its pages begin; headings: in order.
    """

    where: str
    title: str
    text: str
    id: str | None = None
    pooled: bool = False
    metadata: Metadata = {}  # noqa: RUF012 - never written to
    pages: tuple[int, ...] = ()
    headings: tuple[Heading, ...] = ()


class Problem(NamedTuple):
    """A fault and its place in the file, such as `line 3`; an empty place means the whole file."""

    where: str
    what: str


Finding = Passage | Problem


def passages_of(record: object, where: str) -> Iterator[Finding]:
    """The record's own text, else the paragraphs of its question."""
    if not isinstance(record, Mapping):
        yield Problem(where, "the record is not a JSON object")
        return
    fields = {str(name).lower(): value for name, value in record.items()}
    if (found := _text(fields)) is not None:
        name, text = found
        (titled_by, title), (named_by, own_id) = _label(fields, TITLE_NAMES), _label(fields, ID_NAMES)
        if not title and (titled := TITLED_CONTENTS.fullmatch(text)) and name == "contents":
            title, text = titled["title"].strip(), titled["text"]
        own = {name, titled_by, named_by, *CHUNK_NAMES}
        metadata = metadata_of({key: value for key, value in record.items() if str(key).lower() not in own})
        yield Passage(where, title, text, own_id or None, metadata=metadata)
        return
    pool = next((fields[name] for name in POOL_NAMES if isinstance(fields.get(name), list | Mapping)), None)
    if pool is None:
        keys = ", ".join(fields)[:120] or "nothing"
        yield Problem(where, f"the record has no text (its fields are {keys}; name the text '{TEXT_NAMES[0]}')")
        return
    paragraphs = _rows(pool) if isinstance(pool, Mapping) else pool
    if not paragraphs:
        yield Problem(where, "the record has no paragraphs")
    for number, paragraph in enumerate(paragraphs, start=1):
        yield _paragraph(paragraph, f"{where}, paragraph {number}")


def _rows(columns: Mapping[str, Any]) -> list[object]:
    """Pairs of title and text from two lists, as on the Hugging Face hub."""
    titles = columns.get("title")
    texts = next((columns[name] for name in ("sentences", *TEXT_NAMES) if isinstance(columns.get(name), list)), None)
    if not isinstance(titles, list) or texts is None or len(titles) != len(texts):
        return []
    return list(zip(titles, texts, strict=True))


def _paragraph(paragraph: object, where: str) -> Finding:
    title, text = "", None
    if isinstance(paragraph, str):
        text = paragraph
    elif isinstance(paragraph, Mapping):
        title, text = _label(paragraph, TITLE_NAMES)[1], (_text(paragraph) or ("", None))[1]
    elif isinstance(paragraph, list | tuple) and len(paragraph) == 2:
        title, text = str(paragraph[0]).strip(), joined(paragraph[1])
    return Problem(where, "the paragraph has no text") if text is None else Passage(where, title, text, pooled=True)


def _text(fields: Mapping[str, Any]) -> tuple[str, str] | None:
    """The name of the field with the text, and the text."""
    for name in TEXT_NAMES:
        value = fields.get(name)
        # a list named `context` holds a question's paragraphs; any other list of texts holds the sentences of one text
        if (text := value if isinstance(value, str) else None if name == "context" else joined(value)) is not None:
            return name, text
    return None


def _label(fields: Mapping[str, Any], names: tuple[str, ...]) -> tuple[str, str]:
    """The name of the first of these fields that is a text or a whole number, and its value as text; else empty."""
    for name in names:
        value = fields.get(name)
        if isinstance(value, str | int) and not isinstance(value, bool) and str(value).strip():
            return name, str(value).strip()
    return "", ""


def joined(value: object) -> str | None:
    """A text, or a list of sentences as one text; None for anything else and for an empty list."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value or not all(isinstance(sentence, str) for sentence in value):
        return None
    text: str = value[0]
    for sentence in value[1:]:
        touching = text and sentence and not text[-1].isspace() and not sentence[0].isspace()
        text += f" {sentence}" if touching else sentence
    return text
