"""The answer while a model writes it.

A node marks the calls that write the answer with `showing`, and gives the final answer to `show_answer`. A backend
asks for the `text_listener` and tells it the text so far. If nobody listens to the run, both do nothing and there is
no listener, so that backends make plain requests.
"""

import math
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass

from .interfaces import Sampling
from .thinking import CLOSE, OPEN, first_stop, strip_thinking

TextListener = Callable[[str], None]
"""Gets the text so far, from its beginning, in any thread. After a retry the text begins anew."""

REPORT_S = 0.05
"""Seconds between two reports of a backend that decodes the whole text for each."""


class Pace:
    """Says when a listener is told again, so that a long text is not decoded for each of its tokens."""

    def __init__(self) -> None:
        """The first report is due at once."""
        self._last = -math.inf

    def is_due(self) -> bool:
        """Have `REPORT_S` passed since the last report? If so, the next report is made now."""
        now = time.monotonic()
        due = now - self._last >= REPORT_S
        self._last = now if due else self._last
        return due


@dataclass
class Shown:
    """The text of an answer that its listeners have, and the id of its message."""

    text: str = ""
    message_id: str | None = None


class AnswerStream:
    """The answer of one run of a graph, in the pieces of a message.

    A text that does not continue the shown text begins a new message, with another id: a request was repeated and the
    model wrote something else, or the text was cleaned.
    """

    def __init__(self, shown: Shown, send: Callable[[str, str], None]) -> None:
        """shown: what other nodes of the run have shown; send: gets a piece and the id of its message."""
        self.shown = shown
        self._send = send

    def show(self, text: str) -> None:
        """Show the text so far. A beginning of the shown text is a repeated request that has not caught up yet."""
        if not self.shown.text.startswith(text):
            self._show(text)

    def finish(self, text: str) -> None:
        """Show the whole text."""
        if text != self.shown.text:
            self._show(text)

    def _show(self, text: str) -> None:
        shown = self.shown
        if shown.message_id is None or not text.startswith(shown.text):
            shown.message_id, shown.text = str(uuid.uuid4()), ""
        piece, shown.text = text[len(shown.text) :], text
        with suppress(RuntimeError):  # the listener's event loop may have closed
            self._send(piece, shown.message_id)


current_answer: ContextVar[AnswerStream | None] = ContextVar("current_answer", default=None)
"""The answer of the running node's graph; None if nobody listens to it."""

_listener: ContextVar[TextListener | None] = ContextVar("text_listener", default=None)


@contextmanager
def showing(beginning: Callable[[str], str]) -> Iterator[None]:
    """Show the text of the model calls within: it becomes the answer.

    beginning: the part of an unfinished text that will be in the answer, however the text goes on.
    """
    answer = current_answer.get()
    if answer is None:
        yield
        return
    token = _listener.set(lambda text: answer.show(beginning(text)))
    try:
        yield
    finally:
        _listener.reset(token)


def show_answer(answer: str) -> None:
    """Show what is not shown yet of the final answer."""
    if (stream := current_answer.get()) is not None and answer:
        stream.finish(answer)


def answer_id() -> str | None:
    """The id of the message whose pieces are shown; None if nothing is."""
    return stream.shown.message_id if (stream := current_answer.get()) is not None else None


def text_listener(sampling: Sampling) -> TextListener | None:
    """The listener to a call's text without thoughts and stop strings; None if nobody listens. Samples never stream."""
    listener = _listener.get()
    if listener is None or sampling.n > 1:
        return None
    return lambda text: listener(_without_thoughts(text, sampling))


def _without_thoughts(text: str, sampling: Sampling) -> str:
    """The part of an unfinished reply that is certainly outside of a thought and in front of a stop string."""
    if CLOSE not in text and (sampling.thinking or _may_begin(text, OPEN)):
        return ""
    answer = strip_thinking(text)
    answer = answer[: first_stop(answer, sampling.stop)]
    return _whole_characters(_without_partial(answer, (OPEN, CLOSE, *sampling.stop)))


def _may_begin(text: str, mark: str) -> bool:
    """Does a text begin with a mark, or could it do so when it goes on?"""
    head = text.lstrip()[: len(mark)]
    return mark.startswith(head)


def _without_partial(text: str, marks: tuple[str, ...]) -> str:
    """The text without an end that could be the beginning of a mark."""
    partial = max((size for mark in marks for size in range(1, len(mark)) if text.endswith(mark[:size])), default=0)
    return text[: len(text) - partial]


def _whole_characters(text: str) -> str:
    """The text up to half a character: the other half may follow."""
    try:
        text.encode()
    except UnicodeEncodeError as fault:
        text = text[: fault.start]
    return text.rstrip("\ufffd")
