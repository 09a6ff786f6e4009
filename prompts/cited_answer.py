"""An answer with marks such as [1], each of which names a passage: the prompt that asks for them, and their parser."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ContractFault
from ..state.messages import Message
from ..state.records import Chunk
from . import answer as plain_answer
from . import render

WIDEST_RANGE = 50
"""A wider range, such as [1-99], names its two ends alone."""


def messages(question: str, chunks: Sequence[Chunk], notes: Sequence[str] = (), answer: str = "") -> list[Message]:
    """Ask for an answer with marks. notes: DF-RAG's incremental context; answer: the answer that is to get marks."""
    given = {"question": question, "chunks": chunks, "notes": notes, "answer": answer}
    return render("cited_answer", **{name: _without_marks(value) for name, value in given.items()})


@dataclass(frozen=True)
class CitedText:
    """A text, and for each group of marks its place in the text, in characters, and the numbers that it names."""

    text: str
    marks: Sequence[tuple[int, Sequence[int]]]

    def shown(self, passages: int) -> str:
        """The text with its marks, each in brackets of its own; without those that name none of so many passages."""
        parts, end = [], 0
        for place, numbers in self.marks:
            group = "".join(f"[{number}]" for number in numbers if 1 <= number <= passages)
            parts.append(self.text[end:place])
            if group:
                space_before = place and not self.text[place - 1].isspace()
                parts.append(f"{' ' * bool(space_before)}{group}{' ' * (not place)}")
            end = place
        return "".join([*parts, self.text[end:]]).rstrip()

    def moved_to(self, text: str) -> "CitedText":
        """The marks in another text: at their places if only white space or a last stop differs, else at its end."""
        ends = [place + 1 for place, character in enumerate(text) if not character.isspace()]
        if not ends or _letters(self.text) != _letters(text):
            numbers = dict.fromkeys(number for _, group in self.marks for number in group)
            return CitedText(text, [(len(text), tuple(numbers))] if numbers else [])
        before = [len("".join(self.text[:place].split())) for place, _ in self.marks]
        places = [ends[min(count, len(ends)) - 1] if count else 0 for count in before]
        return CitedText(text, [(place, numbers) for place, (_, numbers) in zip(places, self.marks, strict=True)])


def read(reply: str) -> CitedText:
    """The text without marks, and the marks: [1], [1][2], [1, 2], [1-3], [passage 1] and the like, of 1 to 3 digits.

    The white space in front of a mark goes with it, unless it parts two words. Nothing else of the text changes, but
    for white space around all of it.
    """
    parts, marks, length, end = list[str](), list[tuple[int, Sequence[int]]](), 0, 0
    for group in _GROUP.finditer(reply):
        part, following = reply[end : group.start()], reply[group.end() : group.end() + 1]
        if not following or following.isspace() or following in _CLOSING:
            part = part.rstrip()
        part = _restored(part if length else part.lstrip())
        parts.append(part)
        length, end = length + len(part), group.end()
        marks.append((length, tuple(dict.fromkeys(_numbers(group[0])))))
    rest = reply[end:].rstrip()
    text = "".join([*parts, _restored(rest if length else rest.lstrip())])
    return CitedText(text, [(min(place, len(text)), numbers) for place, numbers in marks])


def parse(reply: str) -> str:
    """The answer with its marks, otherwise as `answer.parse`; `ContractFault` if it has no words."""
    text = _BOLD_ANSWER.sub(r"\1\2", plain_answer.parse(_BOLD_ANSWER.sub(r"\1\2", reply.strip())))
    if not read(text).text:
        raise ContractFault("it has marks and no answer", reply)
    return text


def beginning(reply: str, passages: int) -> str:
    """The part of an unfinished reply that will be shown, however the reply goes on."""
    text = plain_answer.beginning(reply)
    opened = max(text.rfind("["), text.rfind("【"))
    if opened >= 0 and _UNFINISHED.fullmatch(text, opened):
        text = text[:opened].rstrip()
    cited = read(_UNFINISHED_LIST.sub("", text))
    return cited.shown(passages) if cited.text else ""


_NUMBER = r"(?:passages?\s*)?\^?[0-9]{1,3}"
_RANGE = rf"{_NUMBER}(?:\s*[-–—]\s*{_NUMBER})?"
_AND = r"(?:[,;&]|and\b)"
_MARK = rf"[\[【]\s*{_RANGE}(?:\s*{_AND}\s*{_RANGE})*\s*[\]】]"
_GROUP = re.compile(rf"{_MARK}(?:\s*(?:{_AND}\s*)?{_MARK})*", re.IGNORECASE)
_SPAN = re.compile(r"([0-9]+)(?:\s*[-–—][^0-9]*([0-9]+))?")
_CLOSING = ".,;:!?)]}%»”’\"'…。，、；：！？"
_UNFINISHED = re.compile(r"[\[【][\s\w,;&^–—-]{0,40}")
_UNFINISHED_LIST = re.compile(r"(?<=[\]】])\s*(?:[,;&]|an?|and)\Z", re.IGNORECASE)
_BOLD_ANSWER = re.compile(rf"\A\*\*([^*]*)\*\*((?:\s*{_MARK})+\.?)\Z", re.IGNORECASE)

_OTHER_BRACKET = re.compile(r"[\[【](?=\s*(?:passages?\s*)?\^?[0-9])", re.IGNORECASE)
_BREAK = "\u200b"


def _without_marks(data: Any) -> Any:  # noqa: ANN401 - texts, and lists and records of them
    """What is shown to the model, without brackets that could be taken for marks of its own.

    A zero-width space after the bracket is invisible; `read` takes it away where the model repeats it.
    """
    if isinstance(data, str):
        return _OTHER_BRACKET.sub(rf"\g<0>{_BREAK}", data)
    if isinstance(data, Mapping):
        return {key: _without_marks(value) for key, value in data.items()}
    return [_without_marks(item) for item in data] if isinstance(data, list | tuple) else data


def _restored(text: str) -> str:
    return text.replace(f"[{_BREAK}", "[").replace(f"【{_BREAK}", "【")


def _numbers(group: str) -> list[int]:
    found: list[int] = []
    for first, last in _SPAN.findall(group):
        low, high = sorted((int(first), int(last or first)))
        found += range(low, high + 1) if high - low < WIDEST_RANGE else (low, high)
    return found


def _letters(text: str) -> str:
    return "".join(text.split()).rstrip(".")
