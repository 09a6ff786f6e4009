"""Who may talk to the page: the browser that shows it, and no other page."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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


class Guard:
    """Refuses requests under a foreign name and posts from another page, before anything reads them.

    A page of somebody else's may point its own name at this machine; such a request bears that name. An address in
    numbers is nobody's to point elsewhere.
    """

    def __init__(self, app: ASGIApp, host: str) -> None:
        """host: what the server listens on."""
        self._app = app
        self._names = {"localhost", host.lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._refusal(scope["method"], Headers(scope=scope))
        answer = JSONResponse({"error": refusal}, status_code=403) if refusal else self._app
        await answer(scope, receive, sent)

    def _refusal(self, method: str, headers: Headers) -> str:
        host = headers.get("host", "")
        if not self._is_ours(host):
            return f"This page is not served as '{host}': open it by its address in numbers, or as localhost."
        if method in {"GET", "HEAD"}:
            return ""
        origin = headers.get("origin")
        if (origin is not None and origin not in {f"http://{host}", f"https://{host}"}) or headers.get(
            "sec-fetch-site", "same-origin"
        ) != "same-origin":
            return "The question comes from another page: ask it on this one."
        return ""

    def _is_ours(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
            if name not in self._names:
                ip_address(name)
        except ValueError:
            return False
        return True
