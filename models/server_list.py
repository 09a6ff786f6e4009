"""Is a server there, and which models does it list? Asked first, before weights are loaded and corpora are opened."""

from __future__ import annotations

import json
import time
from typing import Any

from ..errors import ModelFault
from ..server_url import key_for
from ..settings import settings
from .provider_faults import one_line

WAIT_S = 1.5
"""For the connection, so that a dead server is reported in under 2 s, and then for the list."""

PATIENT_S = 15.0
"""For the list of a server of unknown kind, which only the list can tell: a busy server may need long to send it."""

LONGEST = 10_000_000
"""Bytes of a list."""


def listed_models(base_url: str, wait: float = WAIT_S) -> list[dict[str, Any]] | None:
    """The models that an OpenAI-compatible server lists; None if it answers, or takes long, without a list.

    wait: seconds for the list. It blocks: call it in a thread. Raises `ModelFault` if the server cannot be reached; the
    request is not repeated.
    """
    import httpx  # noqa: PLC0415 - keeps `--help` quick

    key = key_for(base_url, settings().api_key)
    connect, wait = min(WAIT_S, settings().timeout_s), min(wait, settings().timeout_s)
    limits = httpx.Timeout(wait, connect=connect)
    try:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        ends = time.monotonic() + wait
        with httpx.stream("GET", f"{base_url}/models", headers=headers, timeout=limits, follow_redirects=True) as reply:
            content = b""
            for part in reply.iter_bytes():
                content += part
                if time.monotonic() > ends or len(content) > LONGEST:
                    return None
            models = json.loads(content)["data"] if reply.status_code == httpx.codes.OK else None
    except httpx.ConnectTimeout:
        raise ModelFault(base_url, f"no connection within {connect:g} s", attempts=1) from None
    except httpx.ConnectError as error:
        raise ModelFault(base_url, f"the connection failed ({one_line(str(error))})", attempts=1) from None
    except (httpx.HTTPError, ValueError, LookupError, TypeError, RecursionError):
        return None
    is_list = isinstance(models, list) and all(isinstance(m, dict) and isinstance(m.get("id"), str) for m in models)
    return models if is_list else None
