"""Errors of any provider's client, told apart into the model's faults and the user's without importing the client."""

from __future__ import annotations

import os

from ..errors import ContextOverflow, DubitoError, ModelFault, UserFault
from ..settings import settings

_TRANSIENT_STATUS = frozenset({408, 409, 425, 429})
_TRANSIENT_NAMES = frozenset(
    {
        "APIConnectionError",
        "ClientConnectionError",
        "DeadlineExceeded",
        "EndpointConnectionError",
        "InternalServerError",
        "RateLimitError",
        "ResourceExhausted",
        "ServiceUnavailable",
        "ServiceUnavailableError",
        "Timeout",
        "TransportError",
    }
)
"""Class names, own or inherited, of openai, anthropic, httpx, aiohttp, requests, botocore and Google."""
_LONGEST_REASON = 500


def provider_fault(endpoint: str, error: Exception) -> DubitoError:
    """Turn a client's error into ours: `ModelFault` for what a retry may mend, else `UserFault`.

    endpoint: the model's name or URL.
    """
    if isinstance(error, DubitoError):
        return error
    names = {kind.__name__ for kind in type(error).__mro__}
    reason = _reason(error)
    if "ContextOverflowError" in names:
        return ContextOverflow(f"The prompt does not fit the window of {endpoint}: {reason}.")
    if _is_transient(error, names):
        return ModelFault(endpoint, reason)
    return UserFault(f"{endpoint}: {type(error).__name__}: {reason}.")


def _is_transient(error: Exception, names: set[str]) -> bool:
    if getattr(error, "code", None) == "insufficient_quota" or "UnsupportedProtocol" in names:
        return False
    status = getattr(error, "status_code", None) or getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(status, int):
        return status in _TRANSIENT_STATUS or status >= 500
    # LangChain's own classes say so themselves
    if isinstance(retryable := getattr(error, "is_retryable", None), bool):
        return retryable
    return isinstance(error, TimeoutError | ConnectionError) or bool(names & _TRANSIENT_NAMES)


def _reason(error: Exception) -> str:
    """One line without a final full stop and without the key: the server's own message where there is one."""
    body = getattr(error, "body", None)
    message = body.get("message") if isinstance(body, dict) else None
    text = message if isinstance(message, str) and message else str(error)
    line = " ".join(text.split()).rstrip(".") or type(error).__name__
    if error.__cause__ is not None and str(error.__cause__):
        line = f"{line} ({' '.join(str(error.__cause__).split())})"
    given = settings().api_key
    if key := given.get_secret_value() if given else os.environ.get("OPENAI_API_KEY"):
        line = line.replace(key, "***")
    return line if len(line) <= _LONGEST_REASON else f"{line[:_LONGEST_REASON]}…"
