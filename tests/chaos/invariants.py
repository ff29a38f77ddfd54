"""The jobs of a fleet whose processes are killed, and the invariants that must hold for them."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.fleet import Fleet
from support.jobs import GOOD, MISSING, WRONG_TYPE, scripted, verdict_of

from mulligan.policies.repair.retry import PASSING_SCORE, Escalate
from mulligan.tasks.ports.ledger import JobView

SLOW = {"id": "command.subprocess", "argv": ["true"]}
FAST = ["json.object", {"id": "contract.schema", "schema": scripted()["verifiers"][1]["schema"]}]

#: The answers of a job, and its state and number of attempts at the end.
CASES: list[tuple[tuple[str, ...], str, int]] = [
    ((GOOD,), "succeeded", 1),
    ((WRONG_TYPE, GOOD), "succeeded", 2),
    ((WRONG_TYPE, MISSING, GOOD), "succeeded", 3),
    ((WRONG_TYPE,), "escalated", 3),  # the same failure three times
]


def jobs(count: int, *, first: int = 0, delay: float = 0.0) -> list[dict[str, Any]]:
    """Return jobs that end as their case says. Each answer takes ``delay`` seconds."""
    found = []
    for i in range(first, first + count):
        answers = [{"text": text, "delay": delay} for text in CASES[i % len(CASES)][0]]
        # Every fifth job has a slow verification, so that crashes hit the hand-over, too.
        verifiers = [*FAST, SLOW] if i % 5 == 0 else FAST
        found.append(scripted(*answers, name=f"job-{i}", verifiers=verifiers))
    return found


def check_no_job_lost(views: Sequence[JobView]) -> None:
    """Invariant 1: each job reached the end that follows from its answers."""
    for view in views:
        number = int((view.job.name or "").removeprefix("job-"))
        _, state, attempts = CASES[number % len(CASES)]
        ended = (view.state, len(view.attempts))
        assert ended == (state, attempts), f"{view.job.name}: {view.reason} {view.detail}"


def check_one_retry_per_low_score(views: Sequence[JobView]) -> None:
    """Invariant 2: exactly one retry, unless a limit was reached."""
    for view in views:
        low = [
            a.plan.number
            for a in view.attempts
            if a.plan.mode != "immediate_retry"
            and (a.score or 0) < PASSING_SCORE
            and not isinstance(verdict_of(a).decision, Escalate)
        ]
        retries = [a.plan.number for a in view.attempts if a.plan.mode == "immediate_retry"]
        assert retries == [n + 1 for n in low], view.job.name
        assert [cycle.source_attempt for cycle in view.cycles] == low
        assert low[:1] == ([] if verdict_of(view.attempts[0]).success else [1])
        assert [a.plan.number for a in view.attempts] == list(range(1, len(view.attempts) + 1))


def check_no_answer_bought_twice(views: Sequence[JobView], trace: Path) -> int:
    """Invariant 3: after an answer is stored, its runner is not called again.

    Return the number of answers that were requested again because their worker was lost before.
    """
    asked: dict[str, list[float]] = defaultdict(list)
    stored: dict[str, float] = {}
    for line in trace.read_text().splitlines():
        at, name, entry = line.split()
        if name == "asking":
            asked[entry].append(float(at))
        if name == "output_stored":
            stored.setdefault(entry, float(at))
    for entry, times in asked.items():
        late = [at for at in times if at > stored.get(entry, float("inf"))]
        assert not late, f"{entry}: the runner was called again after its answer was stored"
    assert len(asked) == sum(len(view.attempts) for view in views)
    return sum(len(times) - 1 for times in asked.values())


def check_settled_once(fleet: Fleet, views: Sequence[JobView]) -> None:
    """Invariants 2 and 4, as the events tell them: each attempt has one settlement."""
    stream: Any = fleet.server.client().xrange("mulligan:{p00}:events")
    events = [json.loads(fields["data"]) for _, fields in stream]
    settled = Counter(
        (event["job"], event["attempt"]) for event in events if event.get("state") == "settled"
    )
    expected = {(view.id, attempt.plan.number) for view in views for attempt in view.attempts}
    assert settled == Counter(expected)


def check_failures_counted_once(fleet: Fleet, views: Sequence[JobView]) -> None:
    """Invariant 4: the memory counts each attempt's failure once."""
    client = fleet.server.client()
    for view in views:
        expected = Counter(s for a in view.attempts for s in verdict_of(a).signatures)
        memory: Any = client.hgetall(f"mulligan:{{p00}}:memory:job:{view.id}")
        assert {key: int(count) for key, count in memory.items()} == dict(expected)
