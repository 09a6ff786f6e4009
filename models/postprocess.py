"""Turning the tokens that a local model generated into a `Completion`."""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from .chat_text import ChatText
from .interfaces import Completion, Token
from .thinking import OPEN, strip_thinking, why_empty


def completion(
    text: ChatText,
    ids: Sequence[int],
    finish: Literal["stop", "length"],
    *,
    stop_at: Callable[[str], int | None],
    starts_thinking: bool,
    logprobs: Sequence[float] | None,
) -> Completion:
    """The text without the end-of-turn token, the part behind a stop string, and the model's thoughts.

    stop_at: the index of the first stop string in a text; logprobs: of every id, None to leave `tokens` empty. In
    `tokens` the end-of-turn token is the last one, with text ""; a token that a stop string cuts in two has the kept
    part.
    """
    ended = ids[-1] in text.ends
    content = list(ids[:-1] if ended else ids)
    whole = text.decode(content)
    kept = whole[: stop_at(whole)]
    answer = strip_thinking(OPEN + kept if starts_thinking else kept)
    tokens: list[Token] = []
    if logprobs is not None:
        tokens = tokens_within(max(0, kept.rfind(answer)), len(answer), map(Token, text.pieces(content), logprobs))
        tokens += [Token("", logprobs[-1])] if ended else []
    why = "" if answer.strip() else why_empty(finish, has_thoughts=starts_thinking or answer != kept)
    return Completion(answer, finish, tuple(tokens), why)


def tokens_within(start: int, length: int, tokens: Iterable[Token]) -> list[Token]:
    """The tokens that overlap text[start : start + length], each with its overlapping text."""
    kept: list[Token] = []
    at = 0
    for token in tokens:
        first, last = max(at, start), min(at + len(token.text), start + length)
        if first < last or (not token.text and start <= at < start + length):
            kept.append(Token(token.text[first - at : last - at], token.logprob))
        at += len(token.text)
    return kept
