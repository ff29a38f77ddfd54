"""Where an attempt is published, and how urgent it is. Decided here and nowhere else.

The ledger's scripts publish again what was lost, so prelude.lua repeats the two rules; a contract
test (tests/integration/ledger/test_ledger_contract_routing.py) compares them.
"""

from __future__ import annotations

from typing import Literal

from mulligan.policies.jobs.job import Job, Mode

#: ``repair`` is served before all others.
AttemptQueue = Literal["attempt", "repair"]
#: Where a delayed verification takes place: on a queue, or in the lane of its subject.
VerificationPlace = Literal["verify", "attempt", "lane"]

#: The front of a queue.
MOST_URGENT = 0


def queue_of(mode: Mode) -> AttemptQueue:
    """Mandatory retries have a queue of their own."""
    return "repair" if mode == "immediate_retry" else "attempt"


def priority_of(mode: Mode, priority: int) -> int:
    """The job's own priority for its first attempt; retries go to the front."""
    return priority if mode == "initial" else MOST_URGENT


def verification_place(job: Job) -> VerificationPlace:
    """``recheck`` verifies the stored answer; ``reformulate`` asks whoever answered, once more."""
    if job.delayed_verification.mode == "recheck":
        return "verify"
    return "lane" if job.subject is not None else "attempt"
