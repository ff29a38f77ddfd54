"""Every page's address."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from mulligan.console.http.access import Caller, authenticate
from mulligan.console.http.context import ConsoleContext
from mulligan.console.http.errors import HttpError, not_found
from mulligan.console.page import (
    cycle_pages,
    edit_pages,
    escalation_pages,
    failure_pages,
    job_pages,
    operation_pages,
    overview_page,
)
from mulligan.console.page import runbook_page as runbook
from mulligan.console.page.render import STATIC, VERSION, page
from mulligan.tasks.ports.errors import LedgerUnavailable

__all__ = ["create_router", "error_page"]


def create_router(context: ConsoleContext) -> APIRouter:
    router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)
    for part in (
        overview_page,
        job_pages,
        failure_pages,
        cycle_pages,
        escalation_pages,
        edit_pages,
        operation_pages,
    ):
        part.add(router, context)
    _add_words(router)
    return router


def _add_words(router: APIRouter) -> None:
    """What needs no figures: files, the login, the runbook."""

    @router.get("/static/{name}")
    async def static(name: str, v: str = "") -> Response:
        if name not in STATIC:
            raise not_found(f"file {name}")
        content, kind = STATIC[name]
        kept = "public, max-age=31536000, immutable" if v == VERSION else "no-cache"
        return Response(content, media_type=kind, headers={"Cache-Control": kept})

    @router.get("/login")
    def login(
        request: Request, to: Annotated[str, Query(alias="next", max_length=2000)] = "/"
    ) -> HTMLResponse:
        return page(request, "login.html", caller=None, to=to, said="")

    @router.get("/runbook")
    def runbook_page(request: Request) -> HTMLResponse:
        try:
            caller = authenticate(request)
        except LedgerUnavailable:
            caller = (
                None  # nobody can be known then, and that is when it is needed; it tells nothing
            )
        return page(request, "runbook.html", caller=caller, text=runbook.rendered())


def error_page(request: Request, problem: HttpError) -> Response:
    """An error in words, with what to do about it."""
    if request.url.path == "/login" and problem.code == "unknown_token":
        to = getattr(request.state, "wanted", "/")
        return page(request, "login.html", caller=None, to=to, said=problem.message, status=403)
    caller = _caller(request, problem)
    answer = page(request, "error.html", caller=caller, problem=problem, status=problem.status)
    answer.headers.update(problem.headers)
    return answer


def _caller(request: Request, problem: HttpError) -> Caller | None:
    """Who gets an error page: its frame is theirs. None: nobody who was let in, or nobody knows."""
    known: Caller | None = getattr(request.state, "caller", None)
    if known is not None or problem.status != 404:
        return known
    try:
        return authenticate(request)  # nothing is at this address, so nobody has asked yet
    except (HttpError, LedgerUnavailable):
        return None
