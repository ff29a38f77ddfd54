"""Addresses around the login. A login never redirects to another site."""

from __future__ import annotations

from urllib.parse import quote

from starlette.requests import Request

LOGIN = "/login"
#: The longest address that the login page carries along.
_MAX_NEXT = 2000


def local_path(path: str) -> str:
    """Return the path if it is on this console, else that of the first page."""
    local = path.startswith("/") and not path.startswith(("//", "/\\"))
    return path if local and path.isprintable() and path.isascii() else "/"


def login_url(request: Request) -> str:
    """Return the address of a login that leads back to the requested page."""
    requested = quote(request.url.path, safe="/:@")
    if request.url.query:
        requested += f"?{request.url.query}"
    target = local_path(requested)
    if target == "/" or len(target) > _MAX_NEXT:
        return LOGIN
    return f"{LOGIN}?next={quote(target, safe='')}"
