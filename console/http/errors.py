"""Errors of the API: their one JSON shape and the status of each."""

from __future__ import annotations

import json
import logging
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from kombu.exceptions import OperationalError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from mulligan.console.http.login_redirect import login_url
from mulligan.policies.problem import Problem
from mulligan.tasks.coordination.orders import NoSuchDecision
from mulligan.tasks.jobs.validation_errors import problem_of
from mulligan.tasks.loops.change import LoopConflict, NoSuchLoop
from mulligan.tasks.loops.rollback import NoSuchCheckpoint
from mulligan.tasks.loops.session_views import NoSuchSession
from mulligan.tasks.loops.view import NoSuchItem
from mulligan.tasks.ports.errors import (
    BadInput,
    BlobsUnavailable,
    DamagedRecord,
    LedgerUnavailable,
    ProcessesBusy,
    RepositoryUnavailable,
    StoreUnavailable,
)

_LOG = logging.getLogger("mulligan.console")
#: The Retry-After while the ledger or the broker cannot be reached.
_RETRY_SECONDS = 5

ErrorPage = Callable[[Request, "HttpError"], Response]


class ErrorBody(BaseModel):
    #: A stable identifier for programs.
    code: str
    message: str
    #: One line per problem, starting with the field.
    details: list[str]
    #: The same problems for programs: their index, path, code and message.
    problems: list[Problem]


class ErrorDocument(BaseModel):
    """The body of every error."""

    error: ErrorBody


class HttpError(Exception):
    """An error response. May be raised anywhere below a route."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        details: Sequence[Problem | str] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.problems = [each if isinstance(each, Problem) else Problem(each) for each in details]
        self.headers = dict(headers or {})

    def body(self) -> bytes:
        error = {
            "code": self.code,
            "message": self.message,
            "details": [str(problem) for problem in self.problems],
            "problems": [asdict(problem) for problem in self.problems],
        }
        # ASCII, because a message may quote a lone surrogate, which UTF-8 cannot encode.
        return json.dumps({"error": error}, ensure_ascii=True).encode()

    def response(self) -> Response:
        return Response(
            self.body(), self.status, headers=self.headers, media_type="application/json"
        )


def not_found(what: str) -> HttpError:
    return HttpError(404, "not_found", f"there is no {what}")


def invalid(*problems: Problem | str) -> HttpError:
    return HttpError(422, "invalid", "the request cannot be accepted", details=problems)


def rate_limited(seconds: float) -> HttpError:
    wait = max(1, math.ceil(seconds))
    return HttpError(
        429, "rate_limited", f"too many requests; wait {wait} s", headers={"Retry-After": str(wait)}
    )


_MEANING = {
    400: "The request is not valid HTTP or JSON",
    401: "No valid token",
    403: "The token's role may not do this, or the request came from another site",
    404: "It does not exist, or it belongs to another tenant",
    405: "The path has no such method",
    409: "It conflicts with the current state",
    413: "The body is larger than request_cap",
    422: "A value is invalid; the details list every problem",
    429: "Over the rate limit, or too many listeners, costly checks or reads of repositories; see"
    " Retry-After",
    500: "A bug, with the id of its log entry, or a damaged record (code `damaged`), with its key",
    503: "The ledger, the broker or a repository is away or refuses; see Retry-After",
}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the ``responses=`` of a route for these statuses."""
    return {
        status: {"model": ErrorDocument, "description": _MEANING[status]} for status in statuses
    }


#: Every route can return these; the app documents them.
COMMON = errors(400, 401, 403, 413, 422, 429, 500, 503)


def internal_error() -> HttpError:
    """Log the exception being handled and return an error with the id of the log entry only."""
    name = secrets.token_hex(6)
    _LOG.exception("error %s", name)
    return HttpError(500, "internal", f"internal error; see error {name} in the server's log")


def install(app: FastAPI, error_page: ErrorPage) -> None:
    """Turn every exception into a response: ``error_page`` for browsers, JSON for programs."""

    def answer(request: Request, problem: HttpError) -> Response:
        if not _is_page(request):
            return problem.response()
        if problem.status == 401 and request.method == "GET":
            return RedirectResponse(login_url(request), 303)
        return error_page(request, problem)

    def on_problem(request: Request, error: Exception) -> Response:
        assert isinstance(error, HttpError)  # noqa: S101 - for the type checker
        return answer(request, error)

    def on_http(request: Request, error: Exception) -> Response:
        return answer(request, _from_http(error, request))

    def on_invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)  # noqa: S101 - for the type checker
        return answer(request, invalid(*map(_request_problem, error.errors())))

    def on_bad_input(request: Request, error: Exception) -> Response:
        assert isinstance(error, BadInput)  # noqa: S101 - for the type checker
        if error.has("key_in_use"):
            message = "an idempotency key belongs to another job"
            return answer(request, HttpError(409, "key_in_use", message, details=error.problems))
        return answer(request, invalid(*error.problems))

    def on_missing(request: Request, error: Exception) -> Response:
        assert isinstance(error, BadInput)  # noqa: S101 - for the type checker
        return answer(request, HttpError(404, "not_found", error.problems[0].message))

    def on_conflict(request: Request, error: Exception) -> Response:
        assert isinstance(error, BadInput)  # noqa: S101 - for the type checker
        code = "key_in_use" if error.has("key_in_use") else "conflict"
        message = error.problems[0].message
        return answer(request, HttpError(409, code, message, details=error.problems))

    def on_unreachable(request: Request, error: Exception) -> Response:
        _LOG.warning("unreachable: %s", error)
        caller = getattr(request.state, "caller", None)
        message = unavailable(error, details=caller is not None and caller.runs_fleet)
        headers = {"Retry-After": str(_RETRY_SECONDS)}
        return answer(request, HttpError(503, "unavailable", message, headers=headers))

    def on_damaged(request: Request, error: Exception) -> Response:
        _LOG.error("%s", error)
        return answer(request, HttpError(500, "damaged", str(error)))

    def on_busy(request: Request, error: Exception) -> Response:
        headers = {"Retry-After": str(_RETRY_SECONDS)}
        return answer(request, HttpError(429, "busy", str(error), headers=headers))

    app.add_exception_handler(HttpError, on_problem)
    app.add_exception_handler(ProcessesBusy, on_busy)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(RequestValidationError, on_invalid)
    app.add_exception_handler(BadInput, on_bad_input)
    app.add_exception_handler(NoSuchLoop, on_missing)
    app.add_exception_handler(NoSuchItem, on_missing)
    app.add_exception_handler(NoSuchDecision, on_missing)
    app.add_exception_handler(NoSuchCheckpoint, on_missing)
    app.add_exception_handler(NoSuchSession, on_missing)
    app.add_exception_handler(LoopConflict, on_conflict)
    app.add_exception_handler(DamagedRecord, on_damaged)
    app.add_exception_handler(StoreUnavailable, on_unreachable)
    app.add_exception_handler(OperationalError, on_unreachable)


def unavailable(error: Exception, *, details: bool = False) -> str:
    """Return the reason for callers, without the ledger's address.

    ``details``: whether the caller may learn where a repository is, and what git said.
    """
    if isinstance(error, BlobsUnavailable):
        return "the blob store cannot be reached"
    if isinstance(error, RepositoryUnavailable):
        why = str(error) if details else "the console's log says why"
        return f"the repository cannot be used now: {why}"
    if not isinstance(error, LedgerUnavailable):
        return "the broker cannot be reached"
    return "the ledger cannot be reached" if error.reason == "away" else str(error)


def _is_page(request: Request) -> bool:
    """Whether a browser will show the response."""
    path = request.url.path
    return not path.startswith("/api/") and "text/html" in request.headers.get("accept", "")


#: For a body without a JSON content type, which FastAPI passes on as bytes.
NOT_JSON = Problem.at("body", "is not JSON: send it with the header Content-Type: application/json")
_CODES = {400: "bad_request", 404: "not_found", 405: "method_not_allowed", 413: "too_large"}


def _from_http(error: Exception, request: Request) -> HttpError:
    status = int(getattr(error, "status_code", 500))
    message = str(getattr(error, "detail", "")) or "refused"
    if status == 404 and message == "Not Found":
        message = f"there is nothing at {request.url.path}"
    if status == 405:
        message = f"{request.url.path} does not accept {request.method}"
    headers = getattr(error, "headers", None)
    return HttpError(status, _CODES.get(status, "refused"), message, headers=headers)


def _request_problem(item: Any) -> Problem:
    """Convert an error that FastAPI found in a request."""
    if item["type"] == "json_invalid":
        return Problem.at("body", f"is not JSON: {item.get('ctx', {}).get('error', item['msg'])}")
    if item["loc"] == ("body",) and isinstance(item.get("input"), bytes):
        return NOT_JSON
    path = tuple(part for part in item["loc"] if part not in ("query", "path", "header"))
    located: Any = {**item, "loc": path or item["loc"]}
    return problem_of(located)
