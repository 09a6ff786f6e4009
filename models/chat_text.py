"""A model's tokenizer and chat template: from messages to token ids and back."""

import re
from collections.abc import Sequence
from functools import cached_property
from threading import Lock
from typing import Any

from jinja2 import TemplateError

from ..errors import UserFault
from .interfaces import Message
from .local_weights import first_line
from .thinking import OPEN

_OPENING = ("<", "[", "]")


class ChatText:
    """A model's tokenizer and chat template, safe to use from any thread."""

    def __init__(self, name: str, tokenizer: Any, *configs: Any) -> None:  # noqa: ANN401
        """configs: the model's, whose `eos_token_id` is one id or a list; None is skipped."""
        ends = {tokenizer.eos_token_id}
        for config in configs:
            end = getattr(config, "eos_token_id", None)
            ends.update(end if isinstance(end, list) else [end])
        self.ends = frozenset(ends - {None})
        """The ids of the tokens that end a reply."""
        self._name = name
        self._tokenizer = tokenizer
        self._lock = Lock()  # changing how a tokenizer treats special tokens writes to it
        controls = {str(token): token for token in tokenizer.added_tokens_decoder.values() if token.special}
        self._controls = {token: tokenizer.convert_tokens_to_ids(token) for token in controls}
        self._strips_left = {token for token, how in controls.items() if how.lstrip}
        self._strips_right = {token for token, how in controls.items() if how.rstrip}
        words = [str(token) for token in tokenizer.added_tokens_decoder.values() if str(token)[:1] in _OPENING]
        others = [re.escape(word[0]) + f"(?={re.escape(word[1:])})" for word in words if word not in controls]
        self._marks = re.compile("|".join(others) or r"(?!)")
        longest_first = sorted(filter(None, controls), key=len, reverse=True)
        self._control = re.compile("(" + ("|".join(map(re.escape, longest_first)) or r"(?!)") + ")")

    @property
    def eos(self) -> int:
        """The end-of-sequence token; `UserFault` if there is none."""
        token: int | None = self._tokenizer.eos_token_id
        if token is None:
            raise UserFault(f"The tokenizer of {self._name} has no end-of-sequence token: set at=last.")
        return token

    @cached_property
    def end_of_turn(self) -> list[int]:
        """The token that the template puts after a reply; empty if it has none."""
        mark = "\ue000"
        chat: list[Message] = [{"role": "user", "content": "?"}, {"role": "assistant", "content": mark}]
        after = self._render(chat, add_generation_prompt=False).rpartition(mark)[2]
        controls = [self._controls[piece] for piece in self._control.split(after) if piece in self._controls]
        ends = [token for token in controls if token in self.ends] or [self._tokenizer.eos_token_id]
        return [token for token in ends[:1] if token is not None]

    def prompt(self, messages: Sequence[Message], *, thinking: bool) -> tuple[list[int], bool]:
        """The ids of a chat up to the beginning of the reply, and whether the reply begins inside a thought.

        Messages are plain text: only the template can place control tokens. The first and last characters of control
        tokens are replaced by stand-ins in the messages until the template's own control tokens have been cut out.
        The tokenizer's other marks, such as those of thoughts and tool calls, are broken like those of `defuse`.
        """
        messages = [{**message, "content": self._without_marks(message["content"])} for message in messages]
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
            if i % 2:  # the pattern's matches are at the odd indices
                ids.append(self._controls[piece])
                continue
            text = piece.lstrip() if i and pieces[i - 1] in self._strips_right else piece
            text = text.rstrip() if i + 1 < len(pieces) and pieces[i + 1] in self._strips_left else text
            ids += self.plain(text)
        return ids, starts_thinking

    def plain(self, text: str) -> list[int]:
        """The ids of a text, read without control tokens and with the tokenizer's other marks broken."""
        with self._lock:
            return self._ids(self._without_marks(text), split_special_tokens=True)

    def decode(self, ids: list[int]) -> str:
        """The text of ids, without control tokens."""
        with self._lock:
            text: str = self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            return text

    def pieces(self, ids: list[int]) -> list[str]:
        """The text of each id; joined, they are the whole text. A character made of several ids belongs to the last."""
        pieces: list[str] = []
        start = end = 0  # ids[start:end] are decoded again: the text of the next ids can depend on them
        for i in range(len(ids)):
            known, text = self.decode(ids[start:end]), self.decode(ids[start : i + 1])
            if len(text) > len(known) and (not text.endswith("\ufffd") or i + 1 == len(ids)):
                pieces.append(text[len(known) :])
                start, end = end, i + 1
            else:
                pieces.append("")
        return pieces

    def _without_marks(self, text: str) -> str:
        return self._marks.sub("\\g<0>\u200b", text)

    def _ids(self, text: str, *, split_special_tokens: bool) -> list[int]:
        ids: list[int] = self._tokenizer(
            text, add_special_tokens=False, split_special_tokens=split_special_tokens, verbose=False
        )["input_ids"]
        return ids

    def _render(self, messages: Sequence[Message], **how: bool) -> str:
        if self._tokenizer.chat_template is None:
            raise UserFault(f"The model {self._name} has no chat template: use a model that was trained to chat.")
        try:
            text: str = self._tokenizer.apply_chat_template(list(messages), tokenize=False, **how)
        except TemplateError as fault:
            raise UserFault(
                f"The chat template of {self._name} refuses these messages: {first_line(fault)}."
            ) from fault
        return text
