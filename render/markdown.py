"""Blocks as Markdown."""

import re
from collections.abc import Iterator, Sequence

from ..presenters.blocks import Block, Cell, Fold, Pairs, Table, Words
from .sanitize import one_line, sanitize

_MEANING = re.compile(r"([\\`*_{}\[\]<>|#~$])")


def markdown(blocks: Sequence[Block], level: int = 3) -> str:
    """Blocks below headings of a level. Tables, pairs, words and folds are drawn, other blocks are for screens."""
    return "\n\n".join(part for block in blocks for part in _parts(block, "#" * level))


def _parts(block: Block, marks: str) -> Iterator[str]:
    title = "" if isinstance(block, Words) else getattr(block, "title", "")
    if title:
        yield f"{marks} {escaped(title)}"
    if isinstance(block, Words):
        yield escaped(block.text)
    elif isinstance(block, Fold):
        yield markdown(block.blocks, len(marks))
    elif isinstance(block, Pairs):
        yield table(["", ""], [[escaped(text) for text in pair] for pair in block.pairs])
    elif isinstance(block, Table):
        rows = [[_cell(cell) for cell in row.cells] for row in block.rows]
        yield table([escaped(column) for column in block.columns], rows, block.numeric)
        if block.note:
            yield escaped(block.note)


def _cell(cell: Cell) -> str:
    text = escaped(cell.text)
    return f"**{text}**" if text and cell.tone in {"strong", "good", "bad"} else text


def escaped(text: str) -> str:
    """Text in one line, without any meaning to Markdown."""
    return _MEANING.sub(r"\\\1", one_line(text)).replace("&", "&amp;")


def code(text: str) -> str:
    """Text as a block of shell code."""
    content = sanitize(text)
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", content))])
    return f"{fence}sh\n{content}\n{fence}"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[bool] = ()) -> str:
    """A table of escaped cells. numeric: by column, whether it is aligned to the right."""
    rules = ["---:" if column < len(numeric) and numeric[column] else "---" for column in range(len(columns))]
    return "\n".join(f"| {' | '.join(row)} |" for row in [columns, rules, *rows])
