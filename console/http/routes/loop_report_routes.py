"""The report of a loop over HTTP: JSON, Markdown, or a page that needs no other file."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from mulligan.console.http.access import Reader
from mulligan.console.http.context import ConsoleContext
from mulligan.console.http.errors import errors
from mulligan.console.http.routes.loop_routes import LoopId
from mulligan.console.reports.html_report import CONTENT_POLICY, as_html
from mulligan.console.reports.loop_report_view import loop_view
from mulligan.console.reports.text_report import as_markdown
from mulligan.policies.loops.loop_report import LoopReport
from mulligan.tasks.loops.report import ROWS, generate_report

_OTHER_FORMATS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/markdown": {}, "text/html": {}}}
}
#: The page has its style in itself, which the console's own policy forbids.
_PAGE_HEADERS = {"Content-Security-Policy": f"{CONTENT_POLICY}; frame-ancestors 'none'"}


def create_router(context: ConsoleContext) -> APIRouter:
    router = APIRouter(tags=["loops"])

    @router.get(
        "/api/loops/{loop_id}/report",
        response_model=LoopReport,
        responses={**_OTHER_FORMATS, **errors(404)},
    )
    def report(
        loop_id: LoopId,
        caller: Reader,
        form: Annotated[Literal["json", "md", "html"], Query(alias="format")] = "json",
        limit: Annotated[int, Query(ge=1, le=1000, description="Rows of each list")] = ROWS,
    ) -> LoopReport | Response:
        """Report on a loop: progress, cost, failures, healing, what is left, when it may end."""
        found = generate_report(
            context.services.loops,
            loop_id,
            rows=limit,
            tenant=caller.tenant,
            owner=caller.owner,
            texts=caller.texts,
        )
        match form:
            case "md":
                text = as_markdown(loop_view(found))
                return PlainTextResponse(text, media_type="text/markdown")
            case "html":
                return HTMLResponse(as_html(loop_view(found)), headers=_PAGE_HEADERS)
        return found

    return router
