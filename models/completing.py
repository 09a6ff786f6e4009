"""From the tokens that a model drew in this process to the continuation that its caller sees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from .chat_text import ChatText
from .interfaces import Completion, Token
from .thinking import OPEN, strip_thinking


def completion(
    text: ChatText,
    ids: Sequence[int],
    finish: Literal["stop", "length"],
    *,
    stop_at: Callable[[str], int | None],
    starts_thinking: bool,
    logprobs: Sequence[float] | None,
) -> Completion:
    """The text without its end-of-turn token, what a stop string cuts off and what was thought.

    stop_at: where in a text the first stop string begins. logprobs: of every id; None leaves the tokens out. An
    end-of-turn token is the last of the tokens, with text ""; one that a stop string cuts in two has the part that
    was kept.
    """
    ended = ids[-1] in text.ends
    spoken = list(ids[:-1] if ended else ids)
    whole = text.decode(spoken)
    kept = whole[: stop_at(whole)]
    answer = strip_thinking(OPEN + kept if starts_thinking else kept)
    tokens: list[Token] = []
    if logprobs is not None:
        tokens = _within(max(0, kept.rfind(answer)), len(answer), text.pieces(spoken), logprobs)
        tokens += [Token("", logprobs[-1])] if ended else []
    return Completion(answer, finish, tuple(tokens))


def _within(start: int, length: int, pieces: Sequence[str], logprobs: Sequence[float]) -> list[Token]:
    """The tokens that have a part in text[start : start + length], each with the text of that part."""
    tokens: list[Token] = []
    at = 0
    for piece, logprob in zip(pieces, logprobs, strict=False):
        first, last = max(at, start), min(at + len(piece), start + length)
        if first < last or (not piece and start <= at < start + length):
            tokens.append(Token(piece[first - at : last - at], logprob))
        at += len(piece)
    return tokens
