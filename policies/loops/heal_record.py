"""The record of one healing: what was done to an item or a loop, why, and what came of it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from typing import Literal, get_args

from mulligan.policies.loops.spec import HealAction

#: ``pending``: the item has not ended since. ``skipped``: it was left out. ``refused``: nothing was
#: done.
HealOutcome = Literal["pending", "passed", "skipped", "failed", "refused"]
HEAL_OUTCOMES: tuple[HealOutcome, ...] = get_args(HealOutcome)
#: Healings that a loop remembers, and the steps that it takes by itself: the rest is for telling
#: people. A step that is forgotten would be done again.
MOST_HEALS = 1000
MOST_BY_ITSELF = 500
#: Characters of a text in a record.
_LONGEST_TEXT = 1500


@dataclass(frozen=True, kw_only=True)
class HealRecord:
    """One healing."""

    number: int
    at: float
    #: Empty: the whole loop.
    item: str
    action: HealAction
    #: Why it was done, which may quote texts of attempts.
    reason: str
    #: The same without quotations, for everybody.
    pattern: str = ""
    #: What distinguishes it from another healing of the same action: a runner, a checkpoint, parts.
    #: The same action with the same parameter is never done twice to an item.
    parameter: str = ""
    #: The run of the item that it follows.
    run: int = 0
    #: What the next run is told, which may quote texts of earlier attempts.
    advice: str = ""
    #: The job that it waits for: the draft of a split.
    job_id: str = ""
    outcome: HealOutcome = "pending"
    #: How it ended, in words.
    result: str = ""
    ended_at: float | None = None
    #: `auto_heal`, or who asked for it.
    by: str = "auto_heal"

    def ended(self, outcome: HealOutcome, *, now: float, result: str = "") -> HealRecord:
        return replace(self, outcome=outcome, ended_at=now, result=result)

    def as_json(self) -> str:
        """Return it as the ledger keeps it. Long texts are cut."""
        short = {
            name: value[:_LONGEST_TEXT] if isinstance(value, str) else value
            for name, value in asdict(self).items()
            if name in ("item", "reason") or value not in ("", None)
        }
        return json.dumps(short, separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def parse(cls, text: str) -> HealRecord:
        """Read a record; what a later release adds is left out. Raises ValueError if damaged."""
        found, known = json.loads(text), {each.name for each in fields(cls)}
        try:
            return cls(**{name: value for name, value in found.items() if name in known})
        except TypeError as error:
            raise ValueError(str(error)) from None
