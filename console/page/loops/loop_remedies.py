"""The button that changes what `why` explains, for those who may press it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mulligan.console.http.access import Caller
from mulligan.console.http.models.why_models import why_row
from mulligan.policies.loops.remedy import Action
from mulligan.policies.loops.why import Reason

_TEXTS: dict[Action, str] = {
    "start_loop": "Start",
    "resume_loop": "Resume",
    "configure_loop": "Raise",
    "reset_item": "Reset",
    "skip_item": "Skip",
    "order_item": "Do not wait",
    "set_loop_slots": "Add a slot",
    "resume_queue": "Resume queue",
}
#: What affects all tenants needs the right to operate the fleet.
_OF_FLEET = frozenset({"set_loop_slots", "resume_queue"})
#: Orders overrule what was decided between loops, so that producers give none.
_OF_OPS = frozenset({"order_item"})
_ORDERS = {"none": "Let it go on", "ignore_locks": "Ignore locks", "ignore_waits": "Do not wait"}


@dataclass(frozen=True, kw_only=True)
class RemedyButton:
    """A request to the API, and the command of a terminal that does the same."""

    text: str
    method: str
    path: str
    body: Mapping[str, Any]
    command: str

    @property
    def question(self) -> str:
        """What is asked before it is done, if its text does not say it all."""
        known = self.text in ("Start", "Resume", "Reset", "Let it go on")
        return "" if known else f"{self.text}? This does the same as: {self.command}"


def remedy_button(reason: Reason, caller: Caller) -> RemedyButton | None:
    """Return the button for a reason; None if only a terminal or another caller can change it."""
    remedy = why_row(reason, texts=False).remedy
    if remedy is None or remedy.request is None:
        return None
    is_ops = caller.role in ("ops", "admin")
    if remedy.action in _OF_FLEET and not (is_ops and caller.tenant is None):
        return None
    if remedy.action in _OF_OPS and not is_ops:
        return None
    changes = remedy.arguments.get("changes", {})
    text = _ORDERS.get(remedy.arguments.get("order", ""), _TEXTS[remedy.action])
    return RemedyButton(
        text="Go first" if "priority" in changes else text,
        method=remedy.request.method,
        path=remedy.request.path,
        body=remedy.request.body or {},
        command=reason.command or "",
    )
