"""Why a loop or an item does not run, as the API returns it, and the request that changes it."""

from __future__ import annotations

from typing import Any, Literal
from urllib.parse import quote

from pydantic import BaseModel

from mulligan.policies.loops.remedy import Action, LoopRemedy
from mulligan.policies.loops.why import Cause, Reason


class RemedyRequest(BaseModel):
    """A request to this API."""

    method: Literal["POST", "PUT", "PATCH", "DELETE"]
    path: str
    body: dict[str, Any] | None


class RemedyRow(BaseModel):
    """What changes the state of a loop or an item."""

    #: The tool of `mulligan mcp` that does it, and its arguments. Only people start workers.
    action: Action
    arguments: dict[str, Any]
    #: The request that does it; null if it needs a terminal.
    request: RemedyRequest | None


class WhyRow(BaseModel):
    """Why a loop or an item does not run, and what changes it, if something does."""

    cause: Cause
    text: str
    #: What the escalation of the item says, in a line; null without the right to read texts.
    detail: str | None
    #: For a terminal.
    command: str | None
    #: For programs and agents.
    remedy: RemedyRow | None


def why_row(reason: Reason, *, texts: bool) -> WhyRow:
    return WhyRow(
        cause=reason.cause,
        text=reason.text,
        detail=reason.detail or None if texts else None,
        command=reason.command,
        remedy=None if reason.remedy is None else _remedy_row(reason.remedy),
    )


def _remedy_row(remedy: LoopRemedy) -> RemedyRow:
    given = dict(remedy.arguments)
    return RemedyRow(action=remedy.action, arguments=given, request=_request(remedy))


def _request(remedy: LoopRemedy) -> RemedyRequest | None:
    given = remedy.arguments
    loop, item = (quote(given.get(name, ""), safe="") for name in ("loop", "item"))
    match remedy.action:
        case "start_loop" | "resume_loop":
            verb = remedy.action.removesuffix("_loop")
            return RemedyRequest(method="POST", path=f"/api/loops/{loop}/{verb}", body=None)
        case "configure_loop":
            return RemedyRequest(method="PATCH", path=f"/api/loops/{loop}", body=given["changes"])
        case "reset_item":
            path = f"/api/loops/{loop}/tests/{item}/reset"
            return RemedyRequest(method="POST", path=path, body=None)
        case "skip_item":
            path = f"/api/loops/{loop}/tests/{item}/skip"
            return RemedyRequest(method="POST", path=path, body={"reason": given["reason"]})
        case "order_item":
            path = f"/api/loops/{loop}/tests/{item}/order"
            word = None if given["order"] == "none" else given["order"]
            return RemedyRequest(method="PUT", path=path, body={"order": word})
        case "set_loop_slots":
            return RemedyRequest(method="PUT", path="/api/loop-slots", body=dict(given))
        case "resume_queue":
            what = quote(given["what"], safe=":")
            return RemedyRequest(method="DELETE", path=f"/api/pauses/{what}", body=None)
        case "start_worker" | "start_all_workers":
            return None
