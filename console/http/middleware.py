"""The middleware of every request: response headers, a size limit, no changes by other sites."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mulligan.console.http.access import cross_site, origin_of
from mulligan.console.http.errors import HttpError, internal_error

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_DATA_CSP = b"default-src 'none'; frame-ancestors 'none'"


class ConsoleMiddleware:
    """ASGI middleware, because Starlette's BaseHTTPMiddleware would buffer streams."""

    def __init__(self, app: ASGIApp, *, request_cap: int, console_url: str | None) -> None:
        self._app = app
        self._cap = request_cap
        self._console_origin = origin_of(console_url)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                _add_headers(message, private=not scope["path"].startswith("/static/"))
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            await refusal.response()(scope, receive, send_with_headers)
            return
        try:
            await self._app(scope, self._capped(receive), send_with_headers)
        except Exception:
            problem = internal_error()
            if started:
                raise
            await problem.response()(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> HttpError | None:
        headers = {name.decode("latin-1"): value.decode("latin-1")
                   for name, value in scope["headers"]}  # fmt: skip
        origin = self._console_origin
        if cross_site(scope["method"], scope["path"], headers, console_origin=origin):
            return HttpError(403, "cross_site", "another site's page may not change anything here")
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > self._cap:
            return HttpError(413, "too_large", self._too_large)
        return None

    @property
    def _too_large(self) -> str:
        return f"the body is over {self._cap:,} bytes (request_cap)"

    def _capped(self, receive: Receive) -> Receive:
        """Count the body while it is read, because a request need not announce its length."""
        size = 0

        async def receive_capped() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._cap:
                raise HTTPException(413, self._too_large)
            return message

        return receive_capped


def _add_headers(message: Message, *, private: bool) -> None:
    headers: list[tuple[bytes, bytes]] = list(message.get("headers", ()))
    present = {name.lower() for name, _ in headers}
    kind = next((value for name, value in headers if name.lower() == b"content-type"), b"")
    policy = CSP.encode() if kind.startswith(b"text/html") else _DATA_CSP
    defaults = [*_HEADERS, (b"content-security-policy", policy)]
    if private:
        defaults.append((b"cache-control", b"no-store"))
    headers += [(name, value) for name, value in defaults if name not in present]
    message["headers"] = headers
