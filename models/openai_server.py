"""An OpenAI-compatible server: connections, list of models, and faults as dubito's errors."""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from http.cookiejar import CookieJar, DefaultCookiePolicy
from random import uniform
from typing import TYPE_CHECKING, Any, TypeVar

from ..concurrency import values_of_loop
from ..errors import ContextOverflow, DubitoError, ModelFault, UserFault
from ..server_url import checked_url, key_for
from ..settings import settings
from .answer_stream import TextListener
from .interfaces import Tokens
from .outage import Outages
from .provider_faults import TRANSIENT_STATUS, one_line
from .server_list import WAIT_S, listed_models
from .streamed_reply import StreamedReply

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI, DefaultAsyncHttpxClient

T = TypeVar("T")

ATTEMPTS = 4
"""Of a request that the server refuses, does not answer, or answers with nonsense."""

PAUSE_S = 0.5
"""Before the second attempt; each pause is twice the one before, less up to half of it at random."""

_DOWN_STATUS = {429, 502, 503, 504}
_OVERFLOW_CODES = {"context_length_exceeded", "exceed_context_size_error"}  # OpenAI's, llama.cpp's
_WINDOW = re.compile(r"max_model_len=(\d+)|maximum (?:context|model) length\D{0,9}(\d+)", re.IGNORECASE)
_NO_ROOM = "max_tokens must be at least 1"
_NEEDED = re.compile(r"(?:at least )?\d+")


class RequestRefused(UserFault):
    """The server is there and does not serve such a request."""


class _Refusal(ModelFault):
    """The server refused a request, or could not be reached."""

    def __init__(self, endpoint: str, reason: str, *, is_down: bool, retry_after: float | None = None) -> None:
        """is_down: could it serve no request at all? retry_after: the pause that it asks for, in seconds."""
        super().__init__(endpoint, reason)
        self.is_down = is_down
        self.retry_after = retry_after


class Server:
    """One base URL: its connections, its list of models, and its faults as dubito's errors."""

    def __init__(self, base_url: str) -> None:
        """base_url: as in `http://127.0.0.1:8000/v1`; `UserFault` for anything else."""
        self.base_url = checked_url(base_url, "http://127.0.0.1:8000/v1")
        self._served: dict[str, int | None] | None = None
        self._listed: dict[str, dict[str, Any]] | None = None
        self._outages = Outages(self.base_url)
        self._streams = True

    async def served(self) -> dict[str, int | None]:
        """The served models with their context windows (None if unknown); requested once."""
        if self._served is None:
            self._served = await self.request("/models", None, _windows)
        return self._served

    async def reach(self, wait: float = WAIT_S) -> Mapping[str, Mapping[str, Any]]:
        """The listed models by name, empty if there is no list; not repeated, so that a dead server is told at once.

        wait: seconds for the list. A server that answered before is not asked again. Raises `ModelFault` if it cannot
        be reached.
        """
        if self._listed is None:
            models = await asyncio.to_thread(listed_models, self.base_url, wait)
            self._listed = {model["id"]: model for model in models or []}
            if models is not None:
                self._served = _windows({"data": models})
                self._outages.answered()
        return self._listed

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Turn exceptions of code that reads a malformed reply into a `ModelFault`."""
        try:
            yield
        except DubitoError:
            raise
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
            what = one_line(f"{type(error).__name__}: {error}")
            raise ModelFault(self.base_url, f"the reply is malformed ({what})") from None

    async def request(
        self,
        path: str,
        body: dict[str, Any] | None,
        read: Callable[[dict[str, Any]], T],
        listener: TextListener | None = None,
        *,
        outage_s: float | None = None,
    ) -> T:
        """Get a path under the base URL and read the reply; with a body, post it there. `/..` goes above its /v1.

        read: takes the reply apart; what it raises makes the reply malformed. A fault of the server is tried again
        ATTEMPTS times, after the pause that the server asks for. In an outage all requests wait (see `Outages`), at
        most `outage_s`, by default that of the process's settings.
        listener: of a chat with one continuation; the reply is then streamed. A stream that breaks off, and one that
        the server refuses, is repeated as a plain request.
        Raises `ModelFault` after the last attempt.
        """
        attempt, limit, begun = 0, settings().outage_s if outage_s is None else outage_s, time.monotonic()
        stream = StreamedReply(listener) if listener is not None and self._streams else None
        while True:
            await self._outages.wait(self._answers, limit)
            try:
                reply = await self._sent(path, body, stream)
                self._outages.answered()
                return self._read(reply, read)
            except ModelFault as refusal:
                fault = refusal
            except DubitoError as refusal:
                self._outages.answered()
                if stream is None or "stream" not in str(refusal):
                    raise
                self._streams, stream = False, None
                continue
            if stream is not None and stream.begun:
                stream = None
            attempt += 1
            if isinstance(fault, _Refusal) and fault.is_down:
                self._outages.refused()
                if await self._outages.wait(self._answers, limit) and time.monotonic() - begun < limit:
                    attempt = 0  # the outage has passed
                    continue
            lasts = self._outages.seconds
            if attempt >= ATTEMPTS or (lasts is not None and lasts >= limit):
                raise ModelFault(self.base_url, fault.reason, attempt) from None
            asked = fault.retry_after if isinstance(fault, _Refusal) else None
            await asyncio.sleep(PAUSE_S * 2 ** (attempt - 1) * uniform(0.5, 1) if asked is None else asked)  # noqa: S311

    async def page(self, path: str) -> str:
        """A page that is no JSON, such as `/../metrics`; "" if the server has none or does not answer."""
        try:
            found = await self._sent(path, None)
        except DubitoError:
            return ""
        return found if isinstance(found, str) else ""

    @property
    def is_out(self) -> bool:
        """Did it answer before, and refuses everything now?"""
        return self._outages.seconds is not None

    async def wait_until_up(self) -> bool:
        """Wait until it answers a probe, in an outage (see `Outages.wait`)."""
        return await self._outages.wait(self._answers, math.inf)

    async def _answers(self) -> bool:
        try:
            await self._sent("/models", None)
        except _Refusal as refusal:
            return not refusal.is_down
        except DubitoError:
            return True
        return True

    def _read(self, reply: object, read: Callable[[dict[str, Any]], T]) -> T:
        if not isinstance(reply, dict):
            raise ModelFault(self.base_url, f"the reply is not a JSON object ({one_line(str(reply)) or 'empty'})")
        if reply.get("error"):
            raise ModelFault(self.base_url, f"the reply is an error: {one_line(_message(reply['error']))}")
        with self.reading():
            return read(reply)

    async def _sent(self, path: str, body: dict[str, Any] | None, stream: StreamedReply | None = None) -> object:
        """The reply, as JSON values; `_Refusal` if the server refuses the request or does not answer it."""
        client = await self._client()
        if path.startswith("/.."):
            path = f"{self.base_url.removesuffix('/v1')}{path.removeprefix('/..')}"
        from openai import APIConnectionError, APIError, APIStatusError, APITimeoutError  # noqa: PLC0415

        seconds = settings().timeout_s
        # `from None`: the client's errors hold the request, and so the API key
        try:
            # the client's own timeout is between two bytes: this one is over the whole reply
            async with asyncio.timeout(seconds):
                if body is None:
                    return await client.get(path, cast_to=object)
                if stream is not None:
                    return await self._streamed(client, path, body, stream)
                return await client.post(path, cast_to=object, body=body)
        except (APITimeoutError, TimeoutError):
            raise _Refusal(self.base_url, f"no reply within {seconds:g} s", is_down=True) from None
        except APIConnectionError as error:
            cause = one_line(str(error.__cause__ or error)) or type(error.__cause__).__name__
            raise _Refusal(self.base_url, f"the connection failed ({cause})", is_down=True) from None
        except APIStatusError as error:
            fault = await self._fault(error, path, body or {})
            raise fault from None
        except APIError as error:
            raise ModelFault(self.base_url, f"the stream broke off ({one_line(error.message)})") from None
        except UnicodeEncodeError:
            raise UserFault(
                f"The request to {self.base_url} cannot be encoded: the question or a passage holds half a character "
                "(a lone surrogate); remove it."
            ) from None
        except (ValueError, RecursionError) as error:
            raise ModelFault(self.base_url, f"the reply is not JSON ({one_line(str(error))})") from None

    async def _streamed(self, client: AsyncOpenAI, path: str, body: dict[str, Any], stream: StreamedReply) -> object:
        from openai import AsyncStream  # noqa: PLC0415

        stream.begin()
        asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
        chunks = await client.post(path, cast_to=object, body=asked, stream=True, stream_cls=AsyncStream[object])
        async with chunks:
            if "event-stream" not in chunks.response.headers.get("content-type", ""):
                return json.loads(await chunks.response.aread())  # some servers cannot stream, and reply at once
            async for chunk in chunks:
                with self.reading():
                    stream.add(chunk)
        if (reply := stream.whole()) is None:
            raise ModelFault(self.base_url, "the stream broke off")
        return reply

    async def _fault(self, error: APIStatusError, path: str, body: dict[str, Any]) -> DubitoError:
        status, details = error.status_code, error.body if isinstance(error.body, dict) else {}
        message = one_line(_message(error.body) or error.message)
        if status in TRANSIENT_STATUS or status >= 500:
            pause = _retry_after(error.response.headers)
            return _Refusal(
                self.base_url, f"HTTP {status}: {message}", is_down=status in _DOWN_STATUS, retry_after=pause
            )
        if status in {401, 403}:
            return UserFault(self._key_refused(status))
        if _overflows(details, message):
            return ContextOverflow(self._overflow(details, message, str(body.get("model"))))
        if status == 404:
            return await self._not_found(path, body, message)
        return RequestRefused(f"{self.base_url} refused the request (HTTP {status}): {message}.")

    def _key_refused(self, status: int) -> str:
        if key_for(self.base_url, settings().api_key):
            return f"{self.base_url} refused the API key (HTTP {status}): set DUBITO_API_KEY to one it accepts."
        return (
            f"{self.base_url} wants an API key (HTTP {status}), and none is bound to it: set DUBITO_API_KEY, and name "
            f"the server by DUBITO_KEYS={self.base_url.removesuffix('/v1')}."
        )

    async def _not_found(self, path: str, body: dict[str, Any], message: str) -> DubitoError:
        if path == "/models":
            return UserFault(f"{self.base_url} is not an OpenAI-compatible API; most base URLs end in /v1.")
        self._served = None  # the server may have been restarted with another model
        try:
            served = await self.served()
        except DubitoError as fault:
            return fault
        if (model := body.get("model")) not in served:
            return UserFault(unknown_model(self.base_url, str(model), served))
        return RequestRefused(f"{self.base_url} has no {path} (HTTP 404): {message}.")

    def _overflow(self, details: Mapping[str, Any], message: str, model: str) -> str:
        limit, needed = details.get("n_ctx"), details.get("n_prompt_tokens")
        if limit is None and (match := _WINDOW.search(message)):
            limit = match.group(1) or match.group(2)
            needed = more.group() if (more := _NEEDED.search(message, match.end())) else None
        window = f"context window of {limit} tokens" if limit else "context window"
        size = f" ({needed} tokens)" if needed else ""
        return (
            f"The prompt and its reply{size} do not fit the {window} of {model} at {self.base_url}; use fewer or "
            f"smaller chunks or a shorter reply, or serve the model with a larger window (vLLM's max_model_len)."
        )

    async def _client(self) -> AsyncOpenAI:
        clients = values_of_loop()
        if self not in clients:
            if _connections not in clients:
                opened = await asyncio.to_thread(_connections)  # the import alone takes a second
                clients.setdefault(_connections, opened)
            clients[self] = _open(self.base_url, clients[_connections])
        client: AsyncOpenAI = clients[self]
        return client


def _connections() -> DefaultAsyncHttpxClient:
    """The connections of an event loop to all servers: a pool of each server's own would keep its idle connections."""
    from openai import DefaultAsyncHttpxClient  # noqa: PLC0415

    # openai's default client, garbage-collected in another loop, would close its connections in that loop and fail.
    # A cookie would go to every port of its host.
    no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=[]))
    return DefaultAsyncHttpxClient(cookies=no_cookies)


def _open(base_url: str, connections: DefaultAsyncHttpxClient) -> AsyncOpenAI:
    from openai import AsyncOpenAI, Timeout  # noqa: PLC0415

    seconds = settings().timeout_s
    return AsyncOpenAI(
        base_url=base_url,
        api_key=key_for(base_url, settings().api_key) or "none",
        max_retries=0,
        timeout=Timeout(seconds, connect=min(seconds, 10.0)),
        http_client=connections,
    )


def listed(served: Iterable[str]) -> str:
    """Model names for a message."""
    return ", ".join(sorted(served)) or "none"


def unknown_model(base_url: str, model: str, served: Iterable[str]) -> str:
    """The message for a model that is not served."""
    return f"{base_url} does not serve the model {model}; it serves {listed(served)}."


def _windows(reply: Mapping[str, Any]) -> dict[str, int | None]:
    own = {model["id"]: model.get("max_model_len") for model in reply["data"]}
    # of a LoRA adapter vLLM names the base model, whose window it has
    return {model["id"]: own[model["id"]] or own.get(model.get("parent")) for model in reply["data"]}


def usage(reply: Mapping[str, Any]) -> Tokens:
    """The token counts in a reply; 0 where they are missing. ValueError for counts that are none."""
    counts = reply.get("usage") or {}
    given = [counts.get(name) or 0 for name in ("prompt_tokens", "completion_tokens")]
    if not all(isinstance(count, int) and count >= 0 for count in given):
        raise ValueError(f"its usage is {counts}")
    return Tokens(*given)


def choices_of(reply: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The choices of a reply, in their order; `ValueError` if it has none."""
    choices: list[dict[str, Any]] = sorted(reply["choices"], key=lambda choice: choice.get("index") or 0)
    if not choices:
        raise ValueError("it has no choices")
    return choices


def log_probability(value: Any) -> float:  # noqa: ANN401 - any JSON value
    """A log-probability that a server gave; ValueError if it is none. Rounding may lift it above 0 by a little."""
    number = float(value)
    if not -math.inf < number < 1e-3:
        raise ValueError(f"a log-probability is {number}")
    return min(number, 0.0)


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """The pause that a server asks for, in seconds from 0 to the longest outage; None if it asks for none."""
    given = headers.get("retry-after", "")
    try:
        seconds = float(given)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(given).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return min(max(seconds, 0.0), settings().outage_s) if math.isfinite(seconds) else None


def _message(body: object) -> str:
    """The text of an error body of any shape."""
    if isinstance(body, dict):
        text = next((body[key] for key in ("message", "error", "detail") if body.get(key)), body)
        return text if isinstance(text, str) else str(text)
    return "" if body is None else str(body)


def _overflows(details: Mapping[str, Any], message: str) -> bool:
    if details.get("param") == "input_tokens" or _WINDOW.search(message):
        return True
    # vLLM first cuts max_tokens to the free room; this is its message if the prompt alone fills the window
    return _NO_ROOM in message or bool({str(details.get("code")), str(details.get("type"))} & _OVERFLOW_CODES)
