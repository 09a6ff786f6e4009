"""An OpenAI-compatible server: connections, list of models, and faults as dubito's errors."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ..errors import ContextOverflow, DubitoError, ModelFault, UserFault
from ..settings import settings
from .interfaces import Tokens
from .provider_faults import TRANSIENT_STATUS, api_key, one_line

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI

_OVERFLOW_CODES = {"context_length_exceeded", "exceed_context_size_error"}  # OpenAI's, llama.cpp's
_WINDOW = re.compile(r"max_model_len=(\d+)|maximum (?:context|model) length\D{0,9}(\d+)", re.IGNORECASE)
_NO_ROOM = "max_tokens must be at least 1"
_NEEDED = re.compile(r"(?:at least )?\d+")


class Server:
    """One base URL: its connections, its list of models, and its faults as dubito's errors."""

    def __init__(self, base_url: str) -> None:
        """base_url: as in `http://127.0.0.1:8000/v1`; `UserFault` for anything else."""
        self.base_url = _checked(base_url)
        self.root = self.base_url.removesuffix("/v1")
        self._served: dict[str, int | None] | None = None
        # A client belongs to its event loop and keeps it alive, so weak keys would not help: the clients of closed
        # loops are dropped when a new client is opened.
        self._clients: dict[asyncio.AbstractEventLoop, AsyncOpenAI] = {}

    async def served(self) -> dict[str, int | None]:
        """The served models with their context windows (None if unknown); requested once."""
        if self._served is None:
            reply = await self.request("/models")
            with self.reading():
                self._served = {model["id"]: model.get("max_model_len") for model in reply["data"]}
        return self._served

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Turn exceptions of code that reads a malformed reply into a `ModelFault`."""
        try:
            yield
        except DubitoError:
            raise
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise ModelFault(self.base_url, f"the reply is malformed ({type(error).__name__}: {error})") from error

    async def aclose(self) -> None:
        """Close the running event loop's connections."""
        if (client := self._clients.pop(asyncio.get_running_loop(), None)) is not None:
            await client.close()

    async def request(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Get a path under the base URL, or a full URL; with a body, post it there."""
        client = await self._client()
        from openai import APIConnectionError, APIStatusError, APITimeoutError  # noqa: PLC0415

        # `from None`: the client's errors hold the request, and so the API key
        try:
            if body is None:
                reply = await client.get(path, cast_to=object)
            else:
                reply = await client.post(path, cast_to=object, body=body)
        except APITimeoutError:
            raise ModelFault(self.base_url, f"no reply within {settings().timeout_s:g} s") from None
        except APIConnectionError as error:
            cause = one_line(str(error.__cause__ or error)) or type(error.__cause__).__name__
            raise ModelFault(self.base_url, f"the connection failed ({cause})") from None
        except APIStatusError as error:
            fault = await self._fault(error, path, body or {})
            raise fault from None
        except ValueError as error:
            raise ModelFault(self.base_url, f"the reply is not JSON ({one_line(str(error))})") from None
        if not isinstance(reply, dict):
            raise ModelFault(self.base_url, f"the reply is not a JSON object ({one_line(str(reply)) or 'empty'})")
        if reply.get("error"):
            raise ModelFault(self.base_url, f"the reply is an error: {one_line(_message(reply['error']))}")
        return reply

    async def _fault(self, error: APIStatusError, path: str, body: dict[str, Any]) -> DubitoError:
        status, details = error.status_code, error.body if isinstance(error.body, dict) else {}
        message = one_line(_message(error.body) or error.message)
        if status in TRANSIENT_STATUS or status >= 500:
            return ModelFault(self.base_url, f"HTTP {status}: {message}")
        if status in {401, 403}:
            return UserFault(
                f"{self.base_url} refused the API key (HTTP {status}); set DUBITO_API_KEY to one it accepts."
            )
        if _overflows(details, message):
            return ContextOverflow(self._overflow(details, message, str(body.get("model"))))
        if status == 404:
            return await self._not_found(path, body, message)
        return UserFault(f"{self.base_url} refused the request (HTTP {status}): {message}.")

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
        return UserFault(f"{self.base_url} has no {path} (HTTP 404): {message}.")

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
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            client = await asyncio.to_thread(_open, self.base_url)  # the import alone takes a second
            for other in [other for other in self._clients if other.is_closed()]:
                self._clients.pop(other, None)
            self._clients.setdefault(loop, client)
        return self._clients[loop]


def _open(base_url: str) -> AsyncOpenAI:
    from openai import AsyncOpenAI, DefaultAsyncHttpxClient, Timeout  # noqa: PLC0415

    seconds = settings().timeout_s
    # openai's default client, garbage-collected in another loop, would close its connections in that loop and fail
    return AsyncOpenAI(
        base_url=base_url,
        api_key=_key() or "none",
        max_retries=0,
        timeout=Timeout(seconds, connect=min(seconds, 10.0)),
        http_client=DefaultAsyncHttpxClient(),
    )


def _key() -> str:
    key = api_key()
    if not (key.isascii() and key.isprintable()):
        raise UserFault("DUBITO_API_KEY (or OPENAI_API_KEY) has characters that a key cannot have.")
    return key


def _checked(base_url: str) -> str:
    url = base_url.strip().rstrip("/")
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in {"http", "https"} and (parts.hostname or "").encode("idna") and parts.port != 0
        has_secret = parts.username is not None
    except ValueError:  # UnicodeError is one
        is_valid = has_secret = False
    if has_secret:
        raise UserFault("A base URL must not hold a user name or password; put the key into DUBITO_API_KEY.")
    if not is_valid or parts.query or parts.fragment or any(c.isspace() or not c.isprintable() for c in url):
        raise UserFault(f"{base_url!r} is not the base URL of a server; write it as in http://127.0.0.1:8000/v1.")
    return url


def listed(served: Iterable[str]) -> str:
    """Model names for a message."""
    return ", ".join(sorted(served)) or "none"


def unknown_model(base_url: str, model: str, served: Iterable[str]) -> str:
    """The message for a model that is not served."""
    return f"{base_url} does not serve the model {model}; it serves {listed(served)}."


def usage(reply: Mapping[str, Any]) -> Tokens:
    """The token counts in a reply; 0 where they are missing."""
    counts = reply.get("usage") or {}
    return Tokens(counts.get("prompt_tokens") or 0, counts.get("completion_tokens") or 0)


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
