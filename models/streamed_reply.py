"""A chat completion that comes in chunks (server-sent events), put together as the server would send it whole."""

from collections.abc import Mapping
from typing import Any

from .answer_stream import TextListener
from .thinking import CLOSE, OPEN


class StreamedReply:
    """Adds up the chunks of one continuation, and tells a listener the text so far. begun: has a chunk come?"""

    def __init__(self, listener: TextListener) -> None:
        """listener: gets the text without what the server itself tells apart as thoughts."""
        self._listener = listener
        self.begin()

    def begin(self) -> None:
        """Forget all chunks: the request is sent again."""
        self.begun = False
        self._content = self._reasoning = ""
        self._logprobs: list[Any] | None = None
        self._ends: dict[str, Any] = {}
        self._usage: Mapping[str, Any] | None = None

    def add(self, chunk: Any) -> None:  # noqa: ANN401 - any JSON value
        """Add a chunk. Any error of `LookupError`, `TypeError` or `AttributeError` means that it is malformed."""
        self.begun = True
        self._usage = chunk.get("usage") or self._usage
        for choice in chunk.get("choices") or []:
            delta = choice.get("delta") or {}
            self._reasoning += delta.get("reasoning") or delta.get("reasoning_content") or ""
            if (listed := (choice.get("logprobs") or {}).get("content")) is not None:
                self._logprobs = self._logprobs or []
                self._logprobs += listed
            self._ends |= {key: choice[key] for key in ("finish_reason", "stop_reason") if choice.get(key) is not None}
            if text := delta.get("content"):
                self._content += text
                # the server has told the thoughts apart, so the text does not begin inside one
                self._listener(f"{OPEN}{CLOSE}{self._content}" if self._reasoning else self._content)

    def whole(self) -> dict[str, Any] | None:
        """The reply; None if its end has not come."""
        if "finish_reason" not in self._ends:
            return None
        message = {"content": self._content, **({"reasoning": self._reasoning} if self._reasoning else {})}
        logprobs = None if self._logprobs is None else {"content": self._logprobs}
        choice = {"index": 0, "message": message, "logprobs": logprobs, **self._ends}
        return {"choices": [choice], "usage": self._usage}
