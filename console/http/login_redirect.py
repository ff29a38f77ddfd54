"""Where a person signs in, and where to from there: never to another site."""

from __future__ import annotations

from urllib.parse import quote

from starlette.requests import Request

LOGIN = "/login"
#: What the page to sign in takes along.
_LONGEST = 2000


def inside(path: str) -> str:
    """Where to go next: a path of ours, else the first page."""
    local = path.startswith("/") and not path.startswith(("//", "/\\"))
    return path if local and path.isprintable() and path.isascii() else "/"


def login_for(request: Request) -> str:
    """The way to sign in that leads back to the page that was asked for."""
    asked = quote(request.url.path, safe="/:@")
    if request.url.query:
        asked += f"?{request.url.query}"
    wanted = inside(asked)
    return (
        LOGIN
        if wanted == "/" or len(wanted) > _LONGEST
        else f"{LOGIN}?next={quote(wanted, safe='')}"
    )
