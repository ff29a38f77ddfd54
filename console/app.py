"""The console's web app: the routers of the HTTP API and of the page behind one middleware."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool

from mulligan.console.http import errors
from mulligan.console.http.context import ConsoleContext
from mulligan.console.http.middleware import ConsoleMiddleware
from mulligan.console.http.routes import (
    coordination_routes,
    cost_routes,
    edit_routes,
    escalation_routes,
    event_routes,
    external_routes,
    failure_routes,
    job_routes,
    login_routes,
    loop_draft_routes,
    loop_heal_routes,
    loop_health_routes,
    loop_item_routes,
    loop_regression_routes,
    loop_report_routes,
    loop_routes,
    loop_transfer_routes,
    loop_work_routes,
    metrics_routes,
    ops_routes,
    quality_routes,
    scale_routes,
)
from mulligan.console.page import routes as page_routes

#: Every module with a ``create_router(context)``.
_ROUTERS = (
    ops_routes,
    job_routes,
    event_routes,
    login_routes,
    external_routes,
    quality_routes,
    failure_routes,
    metrics_routes,
    cost_routes,
    escalation_routes,
    edit_routes,
    loop_routes,
    loop_transfer_routes,
    loop_item_routes,
    loop_report_routes,
    loop_health_routes,
    loop_work_routes,
    loop_heal_routes,
    coordination_routes,
    loop_draft_routes,
    loop_regression_routes,
    scale_routes,
    page_routes,
)


def create_console(context: ConsoleContext) -> FastAPI:
    """Create the app. It answers errors with JSON to programs and with a page to browsers."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(context.close)

    app = FastAPI(
        title="mulligan",
        version=version("mulligan"),
        summary="A queue for language-model work that checks every answer.",
        # The interactive documentation loads its scripts from other sites.
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        default_response_class=JSONResponse,
        redirect_slashes=False,
    )
    app.state.context = context
    for module in _ROUTERS:
        app.include_router(module.create_router(context), responses=errors.COMMON)
    errors.install(app, page_routes.error_page)
    settings = context.settings
    app.add_middleware(
        ConsoleMiddleware, request_cap=settings.request_cap, console_url=settings.console_url
    )
    _describe_security(app)
    return app


def _describe_security(app: FastAPI) -> None:
    """Declare the bearer token in the OpenAPI document."""
    undecorated = app.openapi

    def openapi() -> dict[str, Any]:
        document = undecorated()
        schemes = document.setdefault("components", {}).setdefault("securitySchemes", {})
        schemes["token"] = {"type": "http", "scheme": "bearer"}
        document["security"] = [{"token": []}, {}]
        return document

    app.openapi = openapi  # type: ignore[method-assign] # FastAPI's way to extend it
