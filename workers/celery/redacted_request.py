"""A Celery request that hides arguments and results, which are prompts and answers."""

from __future__ import annotations

import re
from typing import Any

from celery.worker.request import Request

from mulligan.workers.celery.flower_format import describe

#: Our exceptions say what failed and where, and quote no answers. Our Retry wraps one.
_OURS = re.compile(r"(Escalated|Corrected|BadInput)\(|Retry\(.*\bCorrected\(", re.DOTALL)


class RedactedRequest(Request):  # type: ignore[misc] # celery is untyped
    """Shows events, `inspect` and logs the shapes of arguments and results, not their texts.

    It ignores the message's own description of its arguments, which any program may have written.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._argsrepr = describe(self._args)
        self._kwargsrepr = describe(self._kwargs)

    def info(self, safe: bool = False) -> dict[str, Any]:
        del safe  # always safe
        info: dict[str, Any] = super().info(safe=True)
        return info

    def send_event(self, type: str, **fields: Any) -> None:
        # The results of our tasks are ids or scores.
        if "result" in fields and not self.name.startswith("mulligan."):
            fields["result"] = f"a result of {len(str(fields['result']))} characters"
        raised = fields.get("exception")
        if isinstance(raised, str) and not _OURS.match(raised):
            name = re.match(r"[\w.]*", raised)
            fields |= {"exception": name[0] if name else "", "traceback": ""}
        super().send_event(type, **fields)
