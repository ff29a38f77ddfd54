"""Authentication and authorisation of requests.

A caller presents a bearer token or a browser session that was opened with a token. While no token
exists, a caller on this host needs neither.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import urlsplit

from fastapi import Depends
from starlette.requests import Request

from mulligan.console.http.errors import HttpError, rate_limited
from mulligan.policies.figures.format import day
from mulligan.tasks.ports.errors import LedgerUnavailable
from mulligan.workers.ledger.stores.tokens import Role, Token

if TYPE_CHECKING:
    from mulligan.console.http.context import ConsoleContext

COOKIE = "mulligan_session"
CSRF_HEADER = "X-CSRF-Token"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
#: GET requests that change something: asking for a subject's next task claims it.
CHANGING_GETS = frozenset({"/api/task/next"})
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
#: These headers and X-Forwarded-… show that a proxy passed on a request from another host.
_PROXY_HEADERS = frozenset({"forwarded", "via", "x-real-ip"})
#: Ties the pages of a console without tokens to this process.
_LOOPBACK_SESSION = secrets.token_urlsafe(32)

AuthMethod = Literal["token", "session", "loopback"]


@dataclass(frozen=True)
class Caller:
    """An authenticated caller."""

    name: str
    role: Role
    #: The tenant whose jobs this caller sees; None for all tenants.
    tenant: str | None = None
    #: Whether it may read prompts and answers.
    texts: bool = True
    auth: AuthMethod = "token"
    #: What its requests and listeners are counted by: its token, or its address without one.
    bucket: str = ""
    #: Whose jobs, loops and edits a producer sees; None: those of every producer.
    owner: str | None = None

    def sees(self, tenant: str | None) -> bool:
        """Whether this caller may see what belongs to a tenant."""
        return self.tenant is None or self.tenant == tenant

    def owns(self, owner: str | None) -> bool:
        """Whether this caller may see what an owner submitted: a producer only its own."""
        return self.owner is None or self.owner == owner

    @property
    def runs_fleet(self) -> bool:
        """Whether this caller may learn how the fleet is set up: not a producer, nor a tenant."""
        return self.role != "producer" and self.tenant is None

    def tenant_filter(self, requested: str | None) -> str | None:
        """Return the tenant to show: a bound caller's own, whatever it requested."""
        return requested or None if self.tenant is None else self.tenant


def needs(*roles: Role) -> Callable[[Request], Caller]:
    """Return a dependency that admits callers with one of these roles, and admins."""

    def check(request: Request) -> Caller:
        caller = authenticate(request)
        request.state.caller = caller  # an error page shows its name and pages
        if caller.role != "admin" and caller.role not in roles:
            allowed = " or ".join(dict.fromkeys((*roles, "admin")))
            raise HttpError(403, "forbidden", f"this needs the role {allowed}, not {caller.role}")
        return caller

    return check


Ops = Annotated[Caller, Depends(needs("ops"))]
Producer = Annotated[Caller, Depends(needs("producer"))]
Reader = Annotated[Caller, Depends(needs("producer", "ops"))]


def authenticate(request: Request) -> Caller:
    """Return the caller or raise HttpError 401, 403 or 429. May block on the ledger."""
    context: ConsoleContext = request.app.state.context
    caller, bucket = _identify(request, context)
    if wait := context.rate.take(bucket):
        raise rate_limited(wait)
    if caller is None:
        raise _unauthorized(request, context)
    if caller.auth != "token" and request.method not in SAFE_METHODS:
        _check_csrf(request, caller)
    return caller


def still_authenticated(request: Request, caller: Caller) -> bool:
    """Whether this request would still be admitted as this caller. May block on the ledger."""
    context: ConsoleContext = request.app.state.context
    try:
        found, _ = _identify(request, context)
    except LedgerUnavailable:
        return True  # there is nothing to read meanwhile, and no sign that the token was revoked
    except HttpError:
        return False
    return found == caller


def _identify(request: Request, context: ConsoleContext) -> tuple[Caller | None, str]:
    """Return the caller and the rate-limit bucket. A wrong token counts for its address."""
    address = f"address:{request.client.host if request.client else ''}"
    scheme, _, text = request.headers.get("authorization", "").partition(" ")
    if scheme:
        token = context.tokens.find(text.strip()) if scheme.lower() == "bearer" else None
        return (_caller(token, "token"), _bucket(token)) if token else (None, address)
    if cookie := request.cookies.get(COOKIE):
        token = context.tokens.session(cookie)
        if token:
            return _caller(token, "session"), _bucket(token)
    if _is_local(request, context):
        return Caller(name="loopback", role="admin", auth="loopback", bucket=address), address
    return None, address


def _bucket(token: Token) -> str:
    return f"token:{token.id}"


def _caller(token: Token, auth: AuthMethod) -> Caller:
    return Caller(
        name=token.name or token.id,
        role=token.role,
        tenant=token.tenant,
        texts=token.texts,
        auth=auth,
        bucket=_bucket(token),
        owner=token.owner,
    )


def _is_local(request: Request, context: ConsoleContext) -> bool:
    """Whether to trust this as the owner: loopback on both sides, and no token exists."""
    if context.settings.console_host not in LOOPBACK:
        return False
    client = request.client.host if request.client else ""
    proxied = any(
        name in _PROXY_HEADERS or name.startswith("x-forwarded-") for name in request.headers
    )
    if proxied or client not in LOOPBACK or context.tokens.any():
        return False
    # DNS rebinding: a foreign name that resolves to this host makes a foreign page same-origin.
    if _host_name(request) not in LOOPBACK:
        raise HttpError(
            403,
            "wrong_host",
            "without a token the console answers only to localhost, 127.0.0.1 and [::1]",
        )
    return True


def _host_name(request: Request) -> str:
    """Return the host that the request names, without its port."""
    try:
        return urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    except ValueError:
        return ""


def token_refusal(context: ConsoleContext, text: str) -> str:
    """Say why a token is not accepted. Only its bearer learns that it has expired."""
    token = context.tokens.find_expired(text)
    if token is None:
        return "the token is unknown, revoked or expired"
    ended = day(token.expires_at or 0.0)
    return f"the token {token.id} expired on {ended}: create another with `{token.renewal}`"


def _unauthorized(request: Request, context: ConsoleContext) -> HttpError:
    _, _, text = request.headers.get("authorization", "").partition(" ")
    if "authorization" in request.headers:
        message = token_refusal(context, text.strip())
    elif COOKIE in request.cookies:
        message = "the session has ended, or its token was revoked or has expired: sign in again"
    else:
        message = "a token is needed: create one with `mulligan token create --role producer`"
    return HttpError(
        401, "unauthorized", message, headers={"WWW-Authenticate": 'Bearer realm="mulligan"'}
    )


# -- requests from a browser -----------------------------------------------------------------------


def csrf_token(request: Request) -> str:
    """Return the value that pages of this session send as X-CSRF-Token with every change."""
    session = request.cookies.get(COOKIE) or _LOOPBACK_SESSION
    return hmac.new(session.encode(), b"csrf", hashlib.sha256).hexdigest()


def _check_csrf(request: Request, caller: Caller) -> None:
    from_browser = "sec-fetch-site" in request.headers or "origin" in request.headers
    if caller.auth == "loopback" and not from_browser:
        return
    sent = request.headers.get(CSRF_HEADER, "")
    if not hmac.compare_digest(sent.encode(), csrf_token(request).encode()):
        raise HttpError(403, "csrf", f"the header {CSRF_HEADER} is missing or old; reload the page")


def origin_of(url: str | None) -> str | None:
    """Return the origin of an address as browsers write it: no path, no default port."""
    try:
        parts = urlsplit(url or "")
        port = parts.port
    except ValueError:
        return None
    if not parts.hostname:
        return None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    default = port in (None, {"http": 80, "https": 443}.get(parts.scheme))
    return f"{parts.scheme}://{host}" if default else f"{parts.scheme}://{host}:{port}"


def cross_site(
    method: str, path: str, headers: Mapping[str, str], *, console_origin: str | None = None
) -> bool:
    """Whether another site's page requests a change.

    ``console_origin`` is the origin that people use: behind a proxy, ``Host`` may differ.
    """
    if method in SAFE_METHODS and path not in CHANGING_GETS:
        return False
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return True
    origin = headers.get("origin")
    if origin is None or (console_origin is not None and origin_of(origin) == console_origin):
        return False
    try:
        return urlsplit(origin).netloc.lower() != headers.get("host", "").lower()
    except ValueError:
        return True
