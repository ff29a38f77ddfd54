"""The router of the pages."""

from __future__ import annotations

from contextlib import suppress
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
    runbook_page,
)
from mulligan.console.page.loops import coordination_page, loop_pages, work_pages
from mulligan.console.page.render import STATIC, VERSION, page
from mulligan.tasks.ports.errors import LedgerUnavailable


def create_router(context: ConsoleContext) -> APIRouter:
    router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)
    for module in (
        overview_page,
        job_pages,
        loop_pages,
        work_pages,
        coordination_page,
        failure_pages,
        cycle_pages,
        escalation_pages,
        edit_pages,
        operation_pages,
    ):
        module.add(router, context)
    _add_static_pages(router)
    return router


def _add_static_pages(router: APIRouter) -> None:
    """Add what shows no figures: files, the login, the runbook."""

    @router.get("/static/{name}")
    async def static(name: str, v: str = "") -> Response:
        if name not in STATIC:
            raise not_found(f"file {name!r}")
        content, kind = STATIC[name]
        caching = "public, max-age=31536000, immutable" if v == VERSION else "no-cache"
        return Response(content, media_type=kind, headers={"Cache-Control": caching})

    @router.get("/login")
    def login(
        request: Request, target: Annotated[str, Query(alias="next", max_length=2000)] = "/"
    ) -> HTMLResponse:
        return page(request, "login.html", caller=None, target=target, problem="")

    @router.get("/runbook")
    def runbook(request: Request) -> HTMLResponse:
        caller = None
        # Without the ledger no token can be checked, but the runbook is needed then. It has no
        # secrets.
        with suppress(LedgerUnavailable):
            caller = authenticate(request)
        return page(request, "runbook.html", caller=caller, text=runbook_page.rendered())


def error_page(request: Request, problem: HttpError) -> Response:
    """Return a page that explains an error and what to do about it."""
    if request.url.path == "/login" and problem.code == "unknown_token":
        target = getattr(request.state, "login_target", "/")
        return page(
            request, "login.html", caller=None, target=target, problem=problem.message, status=403
        )
    caller = _caller(request, problem)
    answer = page(request, "error.html", caller=caller, problem=problem, status=problem.status)
    answer.headers.update(problem.headers)
    return answer


def _caller(request: Request, problem: HttpError) -> Caller | None:
    """Return the caller, whose name and navigation the page shows; None if it is unknown."""
    known: Caller | None = getattr(request.state, "caller", None)
    if known is not None or problem.status != 404:
        return known
    try:
        return authenticate(request)  # no route matched, so none has authenticated it
    except (HttpError, LedgerUnavailable):
        return None
