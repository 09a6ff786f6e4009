"""One OpenAI-compatible server: its connections, its list of models, and its faults in our words."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ..errors import ContextOverflow, DubitoError, ModelFault, UserFault
from ..settings import settings

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI

_TRANSIENT = {408, 409, 429}
_OVERFLOW_CODES = {"context_length_exceeded", "exceed_context_size_error"}  # OpenAI's, llama.cpp's
_WINDOW = re.compile(r"max_model_len=(\d+)|maximum (?:context|model) length\D{0,9}(\d+)", re.IGNORECASE)
_NEEDED = re.compile(r"(?:at least )?\d+")


class Server:
    """One base URL: its connections, its list of models, and its faults in our words."""

    def __init__(self, base_url: str) -> None:
        """base_url: as in `http://127.0.0.1:8000/v1`; `UserFault` for anything else."""
        self.base_url = _checked(base_url)
        self.root = self.base_url.removesuffix("/v1")
        self._served: dict[str, int | None] | None = None
        # A client's connections belong to the event loop they were opened in. They also keep that loop alive, so weak
        # keys would never go: the clients of closed loops are dropped when another is opened.
        self._clients: dict[asyncio.AbstractEventLoop, AsyncOpenAI] = {}

    async def served(self) -> dict[str, int | None]:
        """The models on offer and the context window of each, where told; asked once."""
        if self._served is None:
            reply = await self._send("GET", "/models", {})
            with self.reading():
                self._served = {model["id"]: model.get("max_model_len") for model in reply["data"]}
        return self._served

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send a request to a path under the base URL, or to a whole URL."""
        return await self._send("POST", path, body)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Turn what a malformed reply does to the code that reads it into a `ModelFault`."""
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

    async def _send(self, method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        client = await self._client()
        from openai import APIConnectionError, APIStatusError, APITimeoutError  # noqa: PLC0415

        # `from None`: the client's errors carry the request, and with it the key
        try:
            if method == "GET":
                reply = await client.get(path, cast_to=object)
            else:
                reply = await client.post(path, cast_to=object, body=body)
        except APITimeoutError:
            raise ModelFault(self.base_url, f"no reply within {settings().timeout_s:g} s") from None
        except APIConnectionError as error:
            cause = self._tidy(str(error.__cause__ or error)) or type(error.__cause__).__name__
            raise ModelFault(self.base_url, f"the connection failed ({cause})") from None
        except APIStatusError as error:
            fault = await self._fault(error, path, body)
            raise fault from None
        except ValueError as error:
            raise ModelFault(self.base_url, f"the reply is not JSON ({self._tidy(str(error))})") from None
        if not isinstance(reply, dict):
            raise ModelFault(self.base_url, f"the reply is not a JSON object ({self._tidy(str(reply)) or 'empty'})")
        if reply.get("error"):
            raise ModelFault(self.base_url, f"the reply is an error: {self._tidy(_message(reply['error']))}")
        return reply

    async def _fault(self, error: APIStatusError, path: str, body: dict[str, Any]) -> DubitoError:
        status, details = error.status_code, error.body if isinstance(error.body, dict) else {}
        message = self._tidy(_message(error.body) or error.message)
        if status in _TRANSIENT or status >= 500:
            return ModelFault(self.base_url, f"HTTP {status}: {message}")
        if status in {401, 403}:
            return UserFault(
                f"{self.base_url} refused the API key (HTTP {status}); set DUBITO_API_KEY to one it accepts."
            )
        if _overflows(details, message, body):
            return ContextOverflow(self._overflow(details, message, str(body.get("model"))))
        if status == 404:
            return await self._not_found(path, body, message)
        return UserFault(f"{self.base_url} refused the request (HTTP {status}): {message}.")

    async def _not_found(self, path: str, body: dict[str, Any], message: str) -> DubitoError:
        if path == "/models":
            return UserFault(f"{self.base_url} is no OpenAI-compatible API; most base URLs end in /v1.")
        self._served = None  # the server may have been started anew with another model
        try:
            served = await self.served()
        except DubitoError as fault:
            return fault
        if (model := body.get("model")) not in served:
            return UserFault(unknown_model(self.base_url, str(model), served))
        return UserFault(f"{self.base_url} offers no {path} (HTTP 404): {message}.")

    def _overflow(self, details: Mapping[str, Any], message: str, model: str) -> str:
        limit, needed = details.get("n_ctx"), details.get("n_prompt_tokens")
        if limit is None and (found := _WINDOW.search(message)):
            limit = found.group(1) or found.group(2)
            needed = more.group() if (more := _NEEDED.search(message, found.end())) else None
        window = f"context window of {limit} tokens" if limit else "context window"
        size = f" ({needed} tokens)" if needed else ""
        return (
            f"The prompt and its reply{size} do not fit the {window} of {model} at {self.base_url}; use fewer or "
            f"smaller chunks or a shorter reply, or serve the model with a larger window (vLLM: --max-model-len)."
        )

    async def _client(self) -> AsyncOpenAI:
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            client = await asyncio.to_thread(_open, self.base_url)  # the import alone takes a second
            for other in [other for other in self._clients if other.is_closed()]:
                self._clients.pop(other, None)
            self._clients.setdefault(loop, client)
        return self._clients[loop]

    def _tidy(self, text: str) -> str:
        """One short line without the key and without a final full stop."""
        key = _key()
        text = " ".join((text.replace(key, "***") if key else text).split())
        return (text if len(text) <= 300 else f"{text[:300]}...").rstrip(". ")


def _open(base_url: str) -> AsyncOpenAI:
    from openai import AsyncOpenAI, DefaultAsyncHttpxClient, Timeout  # noqa: PLC0415

    seconds = settings().timeout_s
    # The package's own http client, dropped while another loop runs, closes its connections in that one and fails.
    return AsyncOpenAI(
        base_url=base_url,
        api_key=_key() or "none",
        max_retries=0,
        timeout=Timeout(seconds, connect=min(seconds, 10.0)),
        http_client=DefaultAsyncHttpxClient(),
    )


def _key() -> str:
    given = settings().api_key
    key = (given.get_secret_value() if given else os.environ.get("OPENAI_API_KEY", "")).strip()
    if not (key.isascii() and key.isprintable()):
        raise UserFault("DUBITO_API_KEY (or OPENAI_API_KEY) holds characters that no key can have.")
    return key


def _checked(base_url: str) -> str:
    url = base_url.strip().rstrip("/")
    try:
        parts = urlsplit(url)
        good = parts.scheme in {"http", "https"} and (parts.hostname or "").encode("idna") and parts.port != 0
        secret = parts.username is not None
    except ValueError:  # UnicodeError is one
        good = secret = False
    if secret:
        raise UserFault("A base URL must not hold a user name or password; put the key into DUBITO_API_KEY.")
    if not good or parts.query or parts.fragment or any(c.isspace() or not c.isprintable() for c in url):
        raise UserFault(f"{base_url!r} is not the base URL of a server; write it as in http://127.0.0.1:8000/v1.")
    return url


def listed(served: Iterable[str]) -> str:
    """Model names for a sentence."""
    return ", ".join(sorted(served)) or "none"


def unknown_model(base_url: str, model: str, served: Iterable[str]) -> str:
    """The sentence for a model that is not served."""
    return f"{base_url} does not serve the model {model}; it serves {listed(served)}."


def _message(body: object) -> str:
    """The text of an error body, of whichever shape."""
    if isinstance(body, dict):
        found = next((body[key] for key in ("message", "error", "detail") if body.get(key)), body)
        return found if isinstance(found, str) else str(found)
    return "" if body is None else str(body)


def _overflows(details: Mapping[str, Any], message: str, body: Mapping[str, Any]) -> bool:
    if details.get("param") == "input_tokens" or _WINDOW.search(message):
        return True
    if {str(details.get("code")), str(details.get("type"))} & _OVERFLOW_CODES:
        return True
    # what vLLM says when the prompt alone fills the window, because it first cuts max_tokens to the room that is left
    return "max_tokens must be at least 1" in message and body.get("max_tokens", 0) >= 1
