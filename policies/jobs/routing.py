"""The queue and the priority of an attempt.

prelude.lua repeats the two rules, because the ledger's scripts publish lost entries again; a
contract test (tests/integration/ledger/test_ledger_contract_routing.py) compares them.
"""

from __future__ import annotations

from typing import Literal

from mulligan.policies.jobs.job import Job, Mode

#: ``agent``: the workers of attempts that take hours. Empty: those of all other attempts.
AttemptPool = Literal["", "agent"]
#: Mandatory retries are served before all others.
AttemptQueue = Literal["attempt", "repair", "agent", "agent.repair"]
#: Where a delayed verification runs: on a queue, or in the lane of its subject. ``attempt`` is the
#: queue of the job's first attempt.
VerificationPlace = Literal["verify", "attempt", "lane"]

#: The front of a queue.
MOST_URGENT = 0


def queue_of(mode: Mode, pool: AttemptPool) -> AttemptQueue:
    """Return the queue. Mandatory retries have a separate one, and so has each pool."""
    retry = mode == "immediate_retry"
    if pool == "agent":
        return "agent.repair" if retry else "agent"
    return "repair" if retry else "attempt"


def priority_of(mode: Mode, priority: int) -> int:
    """Return the job's priority for its first attempt; retries go to the front."""
    return priority if mode == "initial" else MOST_URGENT


def verification_place(job: Job) -> VerificationPlace:
    """Return where to verify the stored answer (``recheck``) or ask again (``reformulate``)."""
    if job.delayed_verification.mode == "recheck":
        return "verify"
    return "lane" if job.subject is not None else "attempt"
