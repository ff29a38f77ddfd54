"""Alerts: their texts and links, their signatures, and when a delivery is tried again."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import quote, urlsplit

from mulligan.policies.jobs.backoff import backoff
from mulligan.policies.value import Value

#: What a webhook may subscribe to.
WebhookEvent = Literal[
    "escalated",
    "breaker_opened",
    "out_of_credits",
    "budget_exhausted",
    "loop_budget",
    "loop_changed",
    "loop_completed",
    "loop_health",
    "loop_escalated",
    "loop_healed",
    "loop_regression",
    "job_finished",
]
AlertEvent = Literal[WebhookEvent, "test"]

SIGNATURE_HEADER = "X-Mulligan-Signature"
DELIVERY_HEADER = "X-Mulligan-Delivery"
#: Seconds after which a receiver treats a signature as a replay.
TOLERANCE = 300.0

_BACKOFF_BASE = 15.0
_BACKOFF_CAP = 3600.0
#: An alert about more task types gives their number instead of their names.
_TYPES_NAMED = 3


class AlertLinks(Value):
    """The URLs that an alert links to."""

    #: The console's public URL, without a slash at the end.
    console: str
    #: None: the runbook on the console.
    runbook: str | None = None


class Alert(Value):
    """What happened, and how often since the last alert about it."""

    id: str
    event: AlertEvent
    #: When it was noticed, in seconds since 1970.
    at: float
    count: int
    #: What the ledger knows about what happened: escalations, an edit, a breaker, a job or a loop.
    about: dict[str, Any]


def hook_name(url: str, secret_env: str | None) -> str:
    """Return the name of a webhook for people and for the ledger.

    A URL may contain a secret in its path, so the name has the host and a digest, never the path.
    """
    digest = hashlib.sha256(f"{url}\n{secret_env or ''}".encode()).hexdigest()[:8]
    return f"{urlsplit(url).hostname or 'unknown'}#{digest}"


# -- words and links -------------------------------------------------------------------------------


def alert_text(alert: Alert) -> str:
    """Return one line for people. It never quotes a prompt or an answer."""
    about = alert.about
    match alert.event:
        case "escalated" if "edit" in about:
            return f"edit {about.get('session')}/{about['edit']} is quarantined: its processes died"
        case "escalated":
            what = about.get("kind") or about.get("reason")
            return f"{_jobs(alert.count)} escalated: {what}{_types(about)}"
        case "budget_exhausted":
            return f"{_jobs(alert.count)} ran out of budget: {about.get('reason')}{_types(about)}"
        case "out_of_credits" | "breaker_opened" if about.get("reason") == "credits":
            return f"{about.get('provider')} is out of credits: its jobs wait"
        case "out_of_credits" | "breaker_opened":
            times = "" if alert.count == 1 else f" {alert.count} times"
            return f"the breaker of {about.get('provider')} opened{times}"
        case "job_finished":
            reason = f" ({about['reason']})" if about.get("reason") else ""
            return f"job {about.get('job_id')} {about.get('state')}{reason}"
        case "loop_changed" | "loop_completed":
            reason = f": {about['reason']}" if about.get("reason") else ""
            return f"loop {about.get('loop')} {_LOOP_WORDS.get(str(about.get('state')))}{reason}"
        case "loop_budget":
            return (
                f"loop {about.get('loop')} has used {about.get('percent')} % of its"
                f" {about.get('scope')} budget of {about.get('resource')}"
                f" ({_amount(about['used'])} of {_amount(about['limit'])})"
            )
        case "loop_health" | "loop_escalated" if "step" in about:
            return f"loop {about.get('loop')}: {_STEP_WORDS[about['step']]}{about.get('reason')}"
        case "loop_healed" | "loop_escalated" | "loop_health":
            of = f"/{about['item']}" if about.get("item") else ""
            reason = f" ({about['reason']})" if about.get("reason") else ""
            action = str(about.get("action")).replace("_", " ")
            return f"loop {about.get('loop')}{of}: {action}, {about.get('outcome')}{reason}"
        case "loop_regression":
            blamed = f", since {str(about['culprit'])[:10]}" if about.get("culprit") else ""
            item = f" ({about['culprit_item']})" if about.get("culprit_item") else ""
            return (
                f"loop {about.get('loop')}/{about.get('item')}: regression"
                f" {str(about.get('status')).replace('_', ' ')}{blamed}{item}"
            )
        case "test":
            return "a test: this webhook works"


#: How the sentence about a step of the response begins.
_STEP_WORDS = {
    "log": "",
    "notify": "",
    "alert": "unchanged: ",
    "escalate": "needs somebody: ",
    "halt": "paused: ",
    "ended": "",
}
#: How the sentence about a loop's new state goes on.
_LOOP_WORDS = {
    "created": "was created",
    "running": "is running",
    "paused": "is paused",
    "blocked": "is blocked",
    "completed": "is completed",
    "stopped": "was stopped",
    "deleted": "was deleted",
}


def _amount(value: float) -> str:
    return f"{value:,.2f}".removesuffix(".00")


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count:,} jobs"


def _types(about: Mapping[str, Any]) -> str:
    types = sorted(about.get("task_types") or {})
    if not types:
        return ""
    named = ", ".join(types) if len(types) <= _TYPES_NAMED else f"{len(types)} task types"
    return f" ({named})"


def runbook_link(event: str, places: AlertLinks) -> str:
    """Return the URL of the runbook's section about this alert."""
    return f"{places.runbook or f'{places.console}/runbook'}#{event}"


def console_link(alert: Alert, places: AlertLinks) -> str:
    """Return the URL of the console's page about this alert."""
    about = alert.about
    match alert.event:
        case "escalated" if "edit" in about:
            path = quote(f"{about['session']}/{about['edit']}")
            return f"{places.console}/edits/{path}"
        case "escalated" | "budget_exhausted":
            return f"{places.console}/escalations?signature={quote(str(about['signature']), '')}"
        case "job_finished":
            return f"{places.console}/jobs/{quote(str(about['job_id']), '')}"
        case _ if "loop" in about and about.get("state") != "deleted":
            return f"{places.console}/loops/{quote(str(about['loop']), '')}"
        case _:
            return f"{places.console}/"


def alert_body(alert: Alert, places: AlertLinks) -> dict[str, Any]:
    """Return the JSON that a receiver gets. It is the same at every try of one delivery."""
    return {
        "id": alert.id,
        "event": alert.event,
        "at": alert.at,
        "count": alert.count,
        "text": alert_text(alert),
        "runbook_url": runbook_link(alert.event, places),
        "console_url": console_link(alert, places),
        **alert.about,
    }


# -- signatures ------------------------------------------------------------------------------------


def sign(secret: str, body: bytes, at: float) -> str:
    """Return the signature header: the time, and the HMAC-SHA256 of `<time>.<body>`."""
    moment = str(int(at))
    return f"t={moment},v1={_mac(secret, moment, body)}"


def verify_signature(
    secret: str, header: str, body: bytes, now: float, tolerance: float = TOLERANCE
) -> bool:
    """Whether mulligan sent this body, and recently. For receivers.

    ``body`` is the request's body as received, before parsing.
    """
    pairs = [part.strip().partition("=") for part in header.split(",")]
    moments = [value for name, _, value in pairs if name == "t"]
    macs = [value for name, _, value in pairs if name == "v1"]
    if len(moments) != 1 or not (moments[0].isascii() and moments[0].isdigit()):
        return False
    # Too long for a time: do not parse it.
    if len(moments[0]) > 15 or abs(now - int(moments[0])) > tolerance:
        return False
    expected = _mac(secret, moments[0], body).encode()
    return any(hmac.compare_digest(expected, mac.encode("utf-8", "replace")) for mac in macs)


def _mac(secret: str, moment: str, body: bytes) -> str:
    return hmac.new(secret.encode(), moment.encode() + b"." + body, hashlib.sha256).hexdigest()


# -- deliveries ------------------------------------------------------------------------------------


def delivery_delay(tries: int, *, randomness: float) -> float:
    """Return the seconds until the next try after ``tries`` failed ones.

    Only half of it is jitter: a receiver that restarts should not be called again at once.
    """
    return backoff(tries, base=_BACKOFF_BASE, cap=_BACKOFF_CAP, randomness=randomness, jitter=0.5)
