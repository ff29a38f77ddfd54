"""Login from a browser: a token opens a session, which the browser keeps as a cookie."""

from __future__ import annotations

import json
from typing import Annotated
from urllib.parse import parse_qs

from fastapi import APIRouter, Depends, Request
from starlette.responses import RedirectResponse, Response

from mulligan.console.http.access import COOKIE, authenticate, token_refusal
from mulligan.console.http.context import ConsoleContext
from mulligan.console.http.errors import HttpError, errors, rate_limited
from mulligan.console.http.login_redirect import LOGIN, local_path


async def _form(request: Request) -> dict[str, str]:
    """Return the text fields of a form or a JSON object."""
    body = (await request.body()).decode("utf-8", "replace")
    if request.headers.get("content-type", "").startswith("application/json"):
        try:
            fields = json.loads(body)
        except (ValueError, RecursionError):
            fields = None
        found = fields if isinstance(fields, dict) else {}
        return {name: value for name, value in found.items() if isinstance(value, str)}
    try:
        return {name: values[0] for name, values in parse_qs(body, max_num_fields=10).items()}
    except ValueError:
        return {}


Form = Annotated[dict[str, str], Depends(_form)]
_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            kind: {
                "schema": {
                    "type": "object",
                    "required": ["token"],
                    "properties": {"token": {"type": "string"}, "next": {"type": "string"}},
                }
            }
            for kind in ("application/x-www-form-urlencoded", "application/json")
        },
    }
}


def _encrypted(request: Request, context: ConsoleContext) -> bool:
    """Whether the browser uses TLS, to the console or to the proxy in front of it."""
    return request.url.scheme == "https" or (context.settings.console_url or "").startswith(
        "https:"
    )


def create_router(context: ConsoleContext) -> APIRouter:
    router = APIRouter(tags=["sessions"])

    @router.post(
        "/login",
        status_code=303,
        response_class=Response,
        openapi_extra=_BODY,
        responses={303: {"description": "Signed in; see Location"}},
    )
    def login(request: Request, form: Form) -> Response:
        """Open a session with a token. Scripts cannot read its cookie."""
        address = request.client.host if request.client else ""
        if wait := context.rate.take(f"address:{address}"):
            raise rate_limited(wait)
        # The error page needs it for its login form.
        request.state.login_target = local_path(form.get("next", ""))
        text = form.get("token", "").strip()
        token = context.tokens.find(text)
        if token is None:
            raise HttpError(403, "unknown_token", token_refusal(context, text))
        response = RedirectResponse(request.state.login_target, 303)
        response.set_cookie(
            COOKIE,
            context.tokens.open_session(token),
            httponly=True,
            samesite="strict",
            secure=_encrypted(request, context),
        )
        return response

    @router.post(
        "/logout",
        status_code=303,
        response_class=Response,
        responses={303: {"description": "Signed out; see Location"}, **errors(403)},
    )
    def logout(request: Request) -> Response:
        """End the session."""
        authenticate(request)
        if cookie := request.cookies.get(COOKIE):
            context.tokens.close_session(cookie)
        response = RedirectResponse(LOGIN, 303)
        response.delete_cookie(
            COOKIE, httponly=True, samesite="strict", secure=_encrypted(request, context)
        )
        return response

    return router
