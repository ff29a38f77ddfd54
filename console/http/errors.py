"""How the API says no: one shape for every error, one status for every reason."""

from __future__ import annotations

import json
import logging
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from kombu.exceptions import OperationalError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from mulligan.console.http.login_redirect import login_for
from mulligan.policies.problem import Problem
from mulligan.tasks.jobs.validation_errors import problem_of
from mulligan.tasks.ports.errors import BadInput, LedgerUnavailable

_LOG = logging.getLogger("mulligan.console")
#: What a caller is told to wait while the ledger or the broker is away.
_AWAY_SECONDS = 5

ErrorPage = Callable[[Request, "HttpError"], Response]


class ErrorBody(BaseModel):
    #: Stable and short, for programs.
    code: str
    message: str
    #: One line per problem, each with the field it is about.
    details: list[str]


class ErrorDocument(BaseModel):
    """The body of every error."""

    error: ErrorBody


class HttpError(Exception):
    """An answer that is an error. Raise it anywhere below a route."""

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
        self.details = [str(each) for each in details]
        self.headers = dict(headers or {})

    def body(self) -> bytes:
        document = {"error": {"code": self.code, "message": self.message, "details": self.details}}
        # ASCII: a message may quote half a surrogate pair, which no UTF-8 can hold.
        return json.dumps(document, ensure_ascii=True).encode()

    def response(self) -> Response:
        return Response(
            self.body(), self.status, headers=self.headers, media_type="application/json"
        )


def not_found(what: str) -> HttpError:
    return HttpError(404, "not_found", f"there is no {what}")


def invalid(*problems: Problem | str) -> HttpError:
    return HttpError(422, "invalid", "the request cannot be accepted", details=problems)


def too_many(seconds: float) -> HttpError:
    wait = max(1, math.ceil(seconds))
    return HttpError(
        429, "rate_limited", f"too many requests; wait {wait} s", headers={"Retry-After": str(wait)}
    )


def away(what: str) -> HttpError:
    return HttpError(
        503,
        "unavailable",
        f"{what}; try again in {_AWAY_SECONDS} s",
        headers={"Retry-After": str(_AWAY_SECONDS)},
    )


_MEANING = {
    400: "The request is not HTTP or JSON as it should be",
    401: "No valid token",
    403: "The token's role may not do this, or the request came from another site",
    404: "There is no such thing, or it is another tenant's",
    405: "The path has no such method",
    409: "It contradicts what is there already",
    413: "The body is larger than request_cap",
    422: "A value is wrong; the details name each",
    429: "Over the rate limit; see Retry-After",
    500: "A bug; the message has an id that the log has too",
    503: "The ledger or the broker is away, or there are too many listeners; see Retry-After",
}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What a route documents as ``responses=`` for these statuses."""
    return {
        status: {"model": ErrorDocument, "description": _MEANING[status]} for status in statuses
    }


#: What can come from any route, whatever it does: the frame documents these by itself.
EVERYWHERE = errors(400, 401, 403, 413, 422, 429, 500, 503)


def unexpected() -> HttpError:
    """A bug, while its exception is being handled: logged in full, told by its id alone."""
    name = secrets.token_hex(6)
    _LOG.exception("error %s", name)
    return HttpError(500, "internal", f"an error of the server; its log has it as {name}")


def install(app: FastAPI, error_page: ErrorPage | None = None) -> None:
    """Give every exception its answer. People get ``error_page``, programs get JSON."""

    def answer(request: Request, problem: HttpError) -> Response:
        if not _is_page(request):
            return problem.response()
        if problem.status == 401 and request.method == "GET":
            return RedirectResponse(login_for(request), 303)
        return error_page(request, problem) if error_page else problem.response()

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
        return answer(request, invalid(*error.problems))

    def on_away(request: Request, error: Exception) -> Response:
        _LOG.warning("away: %s", error)
        what = "the ledger" if isinstance(error, LedgerUnavailable) else "the broker"
        return answer(request, away(f"{what} is away"))

    app.add_exception_handler(HttpError, on_problem)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(RequestValidationError, on_invalid)
    app.add_exception_handler(BadInput, on_bad_input)
    app.add_exception_handler(LedgerUnavailable, on_away)
    app.add_exception_handler(OperationalError, on_away)


def _is_page(request: Request) -> bool:
    """Whether a person's browser wants to show the answer."""
    path = request.url.path
    return not path.startswith("/api/") and "text/html" in request.headers.get("accept", "")


#: What came without a JSON content type is passed on as it is: bytes.
NOT_JSON = Problem.at("body", "is not JSON: send it with the header Content-Type: application/json")
_CODES = {400: "bad_request", 404: "not_found", 405: "method_not_allowed", 413: "too_large"}


def _from_http(error: Exception, request: Request) -> HttpError:
    status = int(getattr(error, "status_code", 500))
    message = str(getattr(error, "detail", "")) or "refused"
    if status == 404 and message == "Not Found":
        message = f"there is nothing at {request.url.path}"
    headers = getattr(error, "headers", None)
    return HttpError(status, _CODES.get(status, "refused"), message, headers=headers)


def _request_problem(item: Any) -> Problem:
    """What FastAPI found wrong with a request."""
    if item["type"] == "json_invalid":
        return Problem.at("body", f"is not JSON: {item.get('ctx', {}).get('error', item['msg'])}")
    if item["loc"] == ("body",) and isinstance(item.get("input"), bytes):
        return NOT_JSON
    path = tuple(part for part in item["loc"] if part not in ("query", "path", "header"))
    about: Any = {**item, "loc": path or item["loc"]}
    return problem_of(about)
