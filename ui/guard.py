"""Refuses requests that do not come from the page itself."""

import re
import secrets
from collections.abc import Collection
from ipaddress import IPv4Address, IPv6Address, ip_address

from pydantic import SecretStr
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..settings import settings

COOKIE = "dubito_token"

NO_TOKEN = "Send the token of this server as 'Authorization: Bearer TOKEN', or open its page as /?token=TOKEN."  # noqa: S105

_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?", re.IGNORECASE)

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self' 'unsafe-inline'",
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)

HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class TokenCheck:
    """Refuses requests without the token of DUBITO_TOKEN, if it is set.

    Programs send it as `Authorization: Bearer TOKEN`. A browser opens `/?token=TOKEN` once and then has it as a cookie.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request, or refuse it."""
        token = settings().token
        if scope["type"] not in {"http", "websocket"} or token is None or self._is_open(scope):
            return await self._app(scope, receive, send)
        request = HTTPConnection(scope)
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and _same(given.strip(), token):
            return await self._app(scope, receive, send)
        if _same(request.cookies.get(COOKIE, ""), token):
            return await self._app(scope, receive, send)
        responder: Response = JSONResponse({"error": NO_TOKEN}, status_code=401, headers={"WWW-Authenticate": "Bearer"})
        if scope["path"] == "/" and _same(request.query_params.get("token", ""), token):
            # the token leaves the address bar, and with it the browser's history
            responder = RedirectResponse("/", status_code=303)
            secure = scope.get("scheme") == "https"
            responder.set_cookie(COOKIE, token.get_secret_value(), httponly=True, samesite="strict", secure=secure)
        await responder(scope, receive, send)
        return None

    @staticmethod
    def _is_open(scope: Scope) -> bool:
        """Is it a health check, or a browser's question which headers it may send?"""
        return scope["path"] == "/ok" or scope.get("method") == "OPTIONS"


def _same(given: str, token: SecretStr) -> bool:
    return secrets.compare_digest(given.encode(), token.get_secret_value().encode())


def is_loopback(host: str) -> bool:
    """Can only this machine reach that address?"""
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


class Guard:
    """Refuses requests with a foreign host name and posts from another page, before anything reads them.

    Another site can point its own name at this machine (DNS rebinding); its requests carry that name. Numeric addresses
    cannot be rebound. With DUBITO_TOKEN the server may have any name, such as that of a proxy: the browser keeps the
    token for one name, and other names do not get it.
    """

    def __init__(self, app: ASGIApp, host: str) -> None:
        """host: the address that the server listens on."""
        self._app = app
        self._names = {"localhost", host.lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        listens_on = (scope.get("server") or (None, None))[1]
        refusal = self._refusal(scope["method"], Headers(scope=scope), listens_on)
        responder = JSONResponse({"error": refusal}, status_code=403) if refusal else self._app
        await responder(scope, receive, send_with_headers)

    def _refusal(self, method: str, headers: Headers, listens_on: int | None) -> str:
        host = headers.get("host", "")
        if settings().token is None and not _is_named(host, listens_on, self._names):
            return (
                f"This page is not served as '{host}': open it by its numeric address, or as localhost, with the port "
                f"{listens_on}; or set a token in DUBITO_TOKEN."
            )
        if method in {"GET", "HEAD"}:
            return ""
        origin = headers.get("origin")
        if (origin is not None and origin not in {f"http://{host}", f"https://{host}"}) or headers.get(
            "sec-fetch-site", "same-origin"
        ) != "same-origin":
            return "The question comes from another page: ask it on this one."
        return ""


class HostCheck:
    """Refuses requests with a foreign host name to a server that has no allow-list, see `Guard`.

    With an allow-list the server is meant for others, and may have any name.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request, or refuse it. Requests of the server to itself have no port."""
        port = (scope.get("server") or (None, None))[1]
        if scope["type"] not in {"http", "websocket"} or port is None or settings().allow is not None:
            return await self._app(scope, receive, send)
        host = Headers(scope=scope).get("host", "")
        if _is_named(host, port, {"localhost"}):
            return await self._app(scope, receive, send)
        refusal = (
            f"This server is not '{host}': ask it by its numeric address, or as localhost, with the port {port}; or "
            "name in DUBITO_ALLOW the resources that others may use."
        )
        await JSONResponse({"error": refusal}, status_code=403)(scope, receive, send)
        return None


def _is_named(host: str, listens_on: int | None, names: Collection[str]) -> bool:
    match = _HOST.fullmatch(host)
    if match is None or int(match["port"] or 80) != listens_on:
        return False
    name = match["name"].strip("[]").lower()
    return name in names or _address(name) is not None
