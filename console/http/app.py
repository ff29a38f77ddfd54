"""The console's HTTP app: every router behind one gate."""

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
from mulligan.console.http.routes import cost_routes as cost
from mulligan.console.http.routes import edit_routes as edits
from mulligan.console.http.routes import escalation_routes as escalations
from mulligan.console.http.routes import event_routes as events
from mulligan.console.http.routes import external_routes as elsewhere
from mulligan.console.http.routes import failure_routes as failures
from mulligan.console.http.routes import job_routes as jobs
from mulligan.console.http.routes import login_routes as sessions
from mulligan.console.http.routes import metrics_routes as metrics
from mulligan.console.http.routes import ops_routes as ops
from mulligan.console.http.routes import quality_routes as quality
from mulligan.console.http.routes import scale_routes as scale
from mulligan.console.page import routes

#: Every module with a ``create_router(site)``.
_PARTS = (
    ops,
    jobs,
    events,
    sessions,
    elsewhere,
    quality,
    failures,
    metrics,
    cost,
    escalations,
    edits,
    scale,
    routes,
)


def create_console(context: ConsoleContext) -> FastAPI:
    """The app. Programs get errors as JSON, people as a page."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(context.close)

    app = FastAPI(
        title="mulligan",
        version=version("mulligan"),
        summary="A queue for language-model work: retries correct their own input.",
        # The interactive pages load their scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        default_response_class=JSONResponse,
        redirect_slashes=False,
    )
    app.state.context = context
    for part in _PARTS:
        app.include_router(part.create_router(context), responses=errors.EVERYWHERE)
    errors.install(app, routes.error_page)
    settings = context.settings
    app.add_middleware(
        ConsoleMiddleware, request_cap=settings.request_cap, console_url=settings.console_url
    )
    _describe_security(app)
    return app


def _describe_security(app: FastAPI) -> None:
    """Say in the description that a bearer token opens the API."""
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        document = plain()
        schemes = document.setdefault("components", {}).setdefault("securitySchemes", {})
        schemes["token"] = {"type": "http", "scheme": "bearer"}
        document["security"] = [{"token": []}, {}]
        return document

    app.openapi = openapi  # type: ignore[method-assign] # FastAPI's own way to extend it
