"""A worker's requests whose arguments and results are somebody's prompts and answers."""

from __future__ import annotations

import re
from typing import Any

from celery.worker.request import Request

from mulligan.workers.celery.flower_format import describe

#: Exceptions of ours say what failed and where, and quote nobody. A Retry of ours holds one.
_OURS = re.compile(r"(Escalated|Corrected|BadInput)\(|Retry\(.*\bCorrected\(", re.DOTALL)


class RedactedRequest(Request):  # type: ignore[misc] # celery is untyped
    """Tells events, `inspect` and logs the shapes of arguments and results, not their texts.

    The producer may be anybody's program: what its message says of its arguments is not used.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._argsrepr = describe(self._args)
        self._kwargsrepr = describe(self._kwargs)

    def info(self, safe: bool = False) -> dict[str, Any]:
        del safe  # nobody is told more
        told: dict[str, Any] = super().info(safe=True)
        return told

    def send_event(self, type: str, **fields: Any) -> None:
        # The result of a task of ours is an id or a score.
        if "result" in fields and not self.name.startswith("mulligan."):
            fields["result"] = f"a result of {len(str(fields['result']))} characters"
        raised = fields.get("exception")
        if isinstance(raised, str) and not _OURS.match(raised):
            name = re.match(r"[\w.]*", raised)
            fields |= {"exception": name[0] if name else "", "traceback": ""}
        super().send_event(type, **fields)
