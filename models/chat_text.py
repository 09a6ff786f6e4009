"""A model's tokenizer and chat template: from messages to token ids and back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from threading import Lock
from typing import Any

from jinja2 import TemplateError

from ..errors import UserFault
from .interfaces import Message
from .thinking import OPEN


class ChatText:
    """A model's tokenizer and chat template, safe to use from any thread."""

    def __init__(self, name: str, tokenizer: Any, ends: frozenset[int]) -> None:  # noqa: ANN401
        """ends: the ids of the tokens that end a reply."""
        self.ends = ends
        self._name = name
        self._tokenizer = tokenizer
        self._lock = Lock()  # a tokenizer that is told how to treat special tokens is written to
        controls = {str(token): token for token in tokenizer.added_tokens_decoder.values() if token.special}
        self._controls = {token: tokenizer.convert_tokens_to_ids(token) for token in controls}
        self._strips_left = {token for token, how in controls.items() if how.lstrip}
        self._strips_right = {token for token, how in controls.items() if how.rstrip}
        longest_first = sorted(filter(None, controls), key=len, reverse=True)
        self._control = re.compile("(" + ("|".join(map(re.escape, longest_first)) or r"(?!)") + ")")

    @cached_property
    def end_of_turn(self) -> list[int]:
        """The token that the template puts after a reply; empty if it has none."""
        mark = "\ue000"
        chat: list[Message] = [{"role": "user", "content": "?"}, {"role": "assistant", "content": mark}]
        after = self._render(chat, add_generation_prompt=False).rpartition(mark)[2]
        found = [self._controls[piece] for piece in self._control.split(after) if piece in self._controls]
        ends = [token for token in found if token in self.ends] or [self._tokenizer.eos_token_id]
        return [token for token in ends[:1] if token is not None]

    def prompt(self, messages: Sequence[Message], *, thinking: bool) -> tuple[list[int], bool]:
        """The ids of a chat up to where the reply begins, and whether it begins inside a thought.

        Whatever stands in a message is text. A control token can only be where the template put it: the characters that
        one could begin or end with are swapped for stand-ins in the messages until the template's own are cut out.
        """
        edges = {edge for token in self._controls if token for edge in (token[0], token[-1])}
        written = "".join(message["content"] for message in messages)
        spare = (mark for code in range(0xF0000, 0xFFFFE) if (mark := chr(code)) not in written)
        hide = {ord(edge): mark for edge, mark in zip(sorted(edges), spare, strict=False)}
        show = {ord(mark): chr(edge) for edge, mark in hide.items()}
        hidden: list[Message] = [{**message, "content": message["content"].translate(hide)} for message in messages]
        rendered = self._render(hidden, add_generation_prompt=True, enable_thinking=thinking)
        pieces = [piece.translate(show) for piece in self._control.split(rendered)]
        whole = rendered.translate(show)
        starts_thinking = whole.rstrip().endswith(OPEN)
        if self._control.split(whole) == pieces:  # nothing in a message looks like a control token
            with self._lock:
                return self._ids(whole, split_special_tokens=False), starts_thinking
        ids: list[int] = []
        for i, piece in enumerate(pieces):
            if i % 2:  # what the pattern matched stands at the odd places
                ids.append(self._controls[piece])
                continue
            text = piece.lstrip() if i and pieces[i - 1] in self._strips_right else piece
            text = text.rstrip() if i + 1 < len(pieces) and pieces[i + 1] in self._strips_left else text
            ids += self.plain(text)
        return ids, starts_thinking

    def plain(self, text: str) -> list[int]:
        """The ids of a text in which nothing is a control token."""
        with self._lock:
            return self._ids(text, split_special_tokens=True)

    def decode(self, ids: list[int]) -> str:
        """The text of ids, control tokens left out."""
        with self._lock:
            text: str = self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            return text

    def pieces(self, ids: list[int]) -> list[str]:
        """The text of each id; together they are the text of all. A letter spread over several is the last one's."""
        pieces: list[str] = []
        start = end = 0  # ids[start:end] were told last: what they are followed by can depend on them
        for i in range(len(ids)):
            told, text = self.decode(ids[start:end]), self.decode(ids[start : i + 1])
            if len(text) > len(told) and (not text.endswith("\ufffd") or i + 1 == len(ids)):
                pieces.append(text[len(told) :])
                start, end = end, i + 1
            else:
                pieces.append("")
        return pieces

    def _ids(self, text: str, *, split_special_tokens: bool) -> list[int]:
        ids: list[int] = self._tokenizer(
            text, add_special_tokens=False, split_special_tokens=split_special_tokens, verbose=False
        )["input_ids"]
        return ids

    def _render(self, messages: Sequence[Message], **how: bool) -> str:
        if self._tokenizer.chat_template is None:
            raise UserFault(f"The model {self._name} has no chat template: use one that was trained to chat.")
        try:
            text: str = self._tokenizer.apply_chat_template(list(messages), tokenize=False, **how)
        except TemplateError as fault:
            raise UserFault(
                f"The chat template of {self._name} refuses these messages: {first_line(fault)}."
            ) from fault
        return text


def first_line(fault: BaseException) -> str:
    """What a fault says, without a final full stop; its kind if it says nothing."""
    return (str(fault) or type(fault).__name__).partition("\n")[0].rstrip(".: ")
