"""Refuses requests that do not come from the page itself."""

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
    """Refuses requests with a foreign host name and posts from another page, before anything reads them.

    Another site can point its own name at this machine (DNS rebinding); its requests carry that name. Numeric addresses
    cannot be rebound.
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

        refusal = self._refusal(scope["method"], Headers(scope=scope))
        responder = JSONResponse({"error": refusal}, status_code=403) if refusal else self._app
        await responder(scope, receive, send_with_headers)

    def _refusal(self, method: str, headers: Headers) -> str:
        host = headers.get("host", "")
        if not self._is_ours(host):
            return f"This page is not served as '{host}': open it by its numeric address, or as localhost."
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
