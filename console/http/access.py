"""Who is asking, and what they may do.

A caller is known by a bearer token, by a browser session that a token opened, or, only while there
is no token at all, by sitting at this very host.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from starlette.requests import Request

from mulligan.console.http.errors import HttpError, too_many
from mulligan.tasks.ports.errors import LedgerUnavailable
from mulligan.workers.ledger.stores.tokens import Role, Token

if TYPE_CHECKING:
    from mulligan.console.http.context import ConsoleContext

COOKIE = "mulligan_session"
CSRF_HEADER = "X-CSRF-Token"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
#: What changes something though it is a GET: the next task of a subject is claimed by asking.
CHANGING_GETS = frozenset({"/api/task/next"})
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
#: By these and by X-Forwarded-… a proxy is noticed: who asks is somewhere else.
_PROXY_SAYS = frozenset({"forwarded", "via", "x-real-ip"})
#: Ties the pages of a tokenless console to this process.
_LOOPBACK_SESSION = secrets.token_urlsafe(32)

How = Literal["token", "session", "loopback"]


@dataclass(frozen=True)
class Caller:
    """Somebody who was let in."""

    name: str
    role: Role
    #: Whose jobs this caller sees; None is everybody's.
    tenant: str | None = None
    #: Whether it may read prompts and answers.
    texts: bool = True
    how: How = "token"

    def sees(self, tenant: str | None) -> bool:
        """Whether something of this tenant is this caller's to see."""
        return self.tenant is None or self.tenant == tenant


def needs(*roles: Role) -> Callable[[Request], Caller]:
    """A dependency: the caller, if it has one of these roles; admin always may.

    ``caller: Annotated[Caller, Depends(needs("ops"))]``
    """

    def check(request: Request) -> Caller:
        caller = authenticate(request)
        request.state.caller = caller  # an error page, too, is for somebody
        if caller.role != "admin" and caller.role not in roles:
            wanted = " or ".join(dict.fromkeys((*roles, "admin")))
            raise HttpError(403, "forbidden", f"this needs the role {wanted}, not {caller.role}")
        return caller

    return check


def authenticate(request: Request) -> Caller:
    """The caller, or a HttpError: 401, 403 or 429. Plain function: may ask the ledger."""
    context: ConsoleContext = request.app.state.context
    caller, bucket = _identify(request, context)
    if wait := context.rate.take(bucket):
        raise too_many(wait)
    if caller is None:
        raise _unknown(request)
    if caller.how != "token" and request.method not in SAFE_METHODS:
        _check_csrf(request, caller)
    return caller


def still_in(request: Request, caller: Caller) -> bool:
    """Whether whoever was let in with this request would be let in now. May ask the ledger."""
    context: ConsoleContext = request.app.state.context
    try:
        found, _ = _identify(request, context)
    except LedgerUnavailable:
        return True  # nothing can be told meanwhile, and nothing is known against the caller
    except HttpError:
        return False
    return found == caller


def _identify(request: Request, context: ConsoleContext) -> tuple[Caller | None, str]:
    """The caller, and whose requests this one counts among. A guess counts for its address."""
    address = f"address:{request.client.host if request.client else ''}"
    scheme, _, text = request.headers.get("authorization", "").partition(" ")
    if scheme:
        token = context.tokens.find(text.strip()) if scheme.lower() == "bearer" else None
        return (_caller(token, "token"), f"token:{token.id}") if token else (None, address)
    if cookie := request.cookies.get(COOKIE):
        token = context.tokens.session(cookie)
        if token:
            return _caller(token, "session"), f"token:{token.id}"
    if _at_this_host(request, context):
        return Caller(name="loopback", role="admin", how="loopback"), address
    return None, address


def _caller(token: Token, how: How) -> Caller:
    return Caller(
        name=token.name or token.id,
        role=token.role,
        tenant=token.tenant,
        texts=token.texts,
        how=how,
    )


def _at_this_host(request: Request, context: ConsoleContext) -> bool:
    """Whether this may be taken for the owner: loopback on both sides, and no token exists."""
    if context.settings.console_host not in LOOPBACK:
        return False
    client = request.client.host if request.client else ""
    forwarded = any(
        name in _PROXY_SAYS or name.startswith("x-forwarded-") for name in request.headers
    )
    if forwarded or client not in LOOPBACK or context.tokens.any():
        return False
    # A name that somebody else's DNS points at this host would make their page ours.
    if host_name(request) not in LOOPBACK:
        raise HttpError(
            403,
            "wrong_host",
            "without a token the console answers to localhost, 127.0.0.1 and [::1] alone",
        )
    return True


def host_name(request: Request) -> str:
    """The host that the request names, without its port."""
    try:
        return urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    except ValueError:
        return ""


def _unknown(request: Request) -> HttpError:
    given = "authorization" in request.headers or COOKIE in request.cookies
    message = (
        "the token is unknown, revoked or expired"
        if given
        else "a token is needed: `mulligan token create --role ROLE` makes one"
    )
    return HttpError(
        401, "unauthorized", message, headers={"WWW-Authenticate": 'Bearer realm="mulligan"'}
    )


# -- requests that a browser makes -----------------------------------------------------------------


def csrf_token(request: Request) -> str:
    """What the pages of this session send back as X-CSRF-Token with everything they change."""
    session = request.cookies.get(COOKIE) or _LOOPBACK_SESSION
    return hmac.new(session.encode(), b"csrf", hashlib.sha256).hexdigest()


def _check_csrf(request: Request, caller: Caller) -> None:
    if caller.how == "loopback" and not _from_browser(request):
        return
    given = request.headers.get(CSRF_HEADER, "")
    if not hmac.compare_digest(given.encode(), csrf_token(request).encode()):
        raise HttpError(403, "csrf", f"the header {CSRF_HEADER} is missing or old; reload the page")


def _from_browser(request: Request) -> bool:
    return "sec-fetch-site" in request.headers or "origin" in request.headers


def origin_of(url: str | None) -> str | None:
    """What browsers call the site of an address: without a path, without the usual port."""
    try:
        parts = urlsplit(url or "")
        port = parts.port
    except ValueError:
        return None
    if not parts.hostname:
        return None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    usual = port in (None, {"http": 80, "https": 443}.get(parts.scheme))
    return f"{parts.scheme}://{host}" if usual else f"{parts.scheme}://{host}:{port}"


def cross_site(
    method: str, path: str, headers: Mapping[str, str], *, ours: str | None = None
) -> bool:
    """Whether another site's page asks for a change.

    ``ours`` is the console's origin as people reach it: a proxy may give us another ``Host``.
    """
    if method in SAFE_METHODS and path not in CHANGING_GETS:
        return False
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return True
    origin = headers.get("origin")
    if origin is None or (ours is not None and origin_of(origin) == ours):
        return False
    try:
        return urlsplit(origin).netloc.lower() != headers.get("host", "").lower()
    except ValueError:
        return True
