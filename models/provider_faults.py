"""Errors of any provider's client, as `ModelFault` or `UserFault`, without importing the client."""

from ..errors import ContextOverflow, DubitoError, ModelFault, UserFault
from ..server_url import without_keys

TRANSIENT_STATUS = frozenset({408, 409, 425, 429})
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
_LONGEST = 300


def provider_fault(endpoint: str, error: Exception) -> DubitoError:
    """A client's error as dubito's: `ModelFault` if a retry may help, else `UserFault`.

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


def langchain_name(model: object) -> str:
    """The name of a LangChain object that was given none: its class and, if it tells, its model."""
    kind = f"langchain:{type(model).__name__}"
    names = (getattr(model, field, None) for field in ("model_name", "model"))
    return next((f"{kind}#{name}" for name in names if name and isinstance(name, str)), kind)


def one_line(text: str) -> str:
    """One short line without the process's keys and without a final full stop."""
    line = " ".join(without_keys(text).split()).rstrip(".")
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"


def _is_transient(error: Exception, names: set[str]) -> bool:
    if getattr(error, "code", None) == "insufficient_quota" or "UnsupportedProtocol" in names:
        return False
    status = getattr(error, "status_code", None) or getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(status, int):
        return status in TRANSIENT_STATUS or status >= 500
    # LangChain's own classes have this attribute
    if isinstance(retryable := getattr(error, "is_retryable", None), bool):
        return retryable
    return isinstance(error, TimeoutError | ConnectionError) or bool(names & _TRANSIENT_NAMES)


def _reason(error: Exception) -> str:
    """The server's own message if there is one, else the error's, with its cause."""
    body = getattr(error, "body", None)
    message = body.get("message") if isinstance(body, dict) else None
    text = message if isinstance(message, str) and message else str(error)
    line = one_line(text) or type(error).__name__
    return f"{line} ({cause})" if (cause := one_line(str(error.__cause__ or ""))) else line
