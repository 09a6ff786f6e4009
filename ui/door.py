"""The door of a server of graphs, `langgraph dev` or `langgraph up`: who may ask, and with which settings.

`langgraph.json` names `app`. A server that others can reach does not start without an allow-list.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.middleware import Middleware

from ..errors import UserFault
from ..resources.allowlist import process_allow_list
from ..settings import settings
from .guard import HostCheck, TokenCheck, is_loopback
from .settings_check import SettingsCheck


@asynccontextmanager
async def _safe_start(_: Starlette) -> AsyncIterator[None]:
    # `langgraph dev` says here where it listens; a container listens on every address
    host = urlsplit(os.environ.get("LANGGRAPH_API_URL", "")).hostname or "every address"
    if settings().allow is None and not is_loopback(host):
        raise UserFault(
            f"This server listens on {host}, where others may reach it, and may be asked for any file and any server: "
            "name the resources that they may use in DUBITO_ALLOW, or set DUBITO_ALLOW='*' to allow everything."
        )
    if settings().allow not in {None, "*"}:
        await asyncio.to_thread(process_allow_list)  # a list that cannot be read, or names what is not there
    yield


app = Starlette(
    lifespan=_safe_start, middleware=[Middleware(HostCheck), Middleware(TokenCheck), Middleware(SettingsCheck)]
)
