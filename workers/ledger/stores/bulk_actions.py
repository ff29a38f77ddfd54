"""Bulk actions stored in Redis, and their periodic execution by a control worker."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

from mulligan.tasks.escalations.end_escalations import (
    BulkAction,
    BulkBatch,
    EndAction,
    EndedCounts,
    EscalationFilter,
    NotEnded,
    Publish,
    run_bulk_action,
)
from mulligan.tasks.ports.ledger import EscalationLedger
from mulligan.workers.ledger import keys
from mulligan.workers.ledger.connection.calls import RedisCalls

log = logging.getLogger(__name__)

#: How long a bulk action is kept after its last change.
KEEP_SECONDS = 7 * 86400.0
#: Escalations per batch, and the lease of a batch, which takes far less time.
BATCH = 20
LEASE_SECONDS = 30.0
#: Maximum failures to keep with their reasons.
PROBLEMS = 20
#: Maximum seconds per run, to leave a control worker time for sweeps.
_RUN_SECONDS = 0.4


class RedisBulkActions:
    """See tasks.escalations.Bulks for the methods' contracts."""

    def __init__(
        self,
        calls: RedisCalls,
        *,
        prefix: str,
        lease: float = LEASE_SECONDS,
        new_token: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        self._calls = calls
        self.new_token = new_token
        self._fleet = keys.fleet_prefix(prefix)
        self._lease = lease

    def create(
        self, action: EndAction, which: EscalationFilter, ids: Sequence[str], *, per_second: float
    ) -> BulkAction:
        bulk_id = f"b{int(self._calls.clock.now()):x}{self.new_token()}"
        self._step(
            "create",
            bulk_id,
            action=action.model_dump_json(),
            which=which.model_dump_json(exclude_defaults=True),
            ids=list(ids),
            per_second=per_second,
        )
        bulk = self.get(bulk_id)
        assert bulk is not None  # noqa: S101 - just written, and kept for days
        return bulk

    def get(self, bulk_id: str) -> BulkAction | None:
        row = self._calls.hashes([keys.bulk(self._fleet, bulk_id)])[0]
        if not row:
            return None
        problems = self._calls.run("LRANGE", keys.bulk_problems(self._fleet, bulk_id), 0, -1)
        return BulkAction(
            id=bulk_id,
            action=EndAction.model_validate_json(row["action"]),
            which=EscalationFilter.model_validate_json(row["which"]),
            per_second=float(row["per_second"]),
            total=int(row["total"]),
            done=int(row["done"]),
            skipped=int(row["skipped"]),
            failed=int(row["failed"]),
            state=row["state"],  # type: ignore[arg-type] # only our script writes it
            created_at=float(row["created_at"]) / 1000,
            ended_at=float(row["ended_at"]) / 1000 if "ended_at" in row else None,
            problems=tuple(NotEnded.model_validate_json(each) for each in problems),
        )

    def running(self) -> list[str]:
        return [str(name) for name in self._calls.run("ZRANGE", keys.bulks(self._fleet), 0, -1)]

    def take(self, bulk_id: str, *, token: str) -> BulkBatch:
        answer = self._step("take", bulk_id, token=token, most=BATCH, lease_ms=self._lease * 1000)
        match answer:
            case ["taken", *ids]:
                return BulkBatch(ids=tuple(str(each) for each in ids))
            case ["wait", wait]:
                return BulkBatch(wait=float(wait) / 1000)
            case _:
                return BulkBatch()

    def commit(self, bulk_id: str, *, token: str, count: int, tally: EndedCounts) -> None:
        self._step(
            "commit",
            bulk_id,
            token=token,
            count=count,
            done=tally.done,
            skipped=tally.skipped,
            problems=[problem.model_dump_json() for problem in tally.problems],
            problems_cap=PROBLEMS,
        )

    def stop(self, bulk_id: str) -> None:
        self._step("stop", bulk_id)

    def _step(self, verb: str, bulk_id: str, **request: Any) -> list[Any]:
        return self._calls.one(
            "bulk", self._fleet, verb=verb, id=bulk_id, keep_ms=KEEP_SECONDS * 1000, **request
        )


def run_bulks(
    ledger: EscalationLedger,
    bulks: RedisBulkActions,
    publish: Publish,
    *,
    clock: Callable[[], float] = time.monotonic,
    seconds: float = _RUN_SECONDS,
) -> int:
    """Work on each running bulk action for a short time. Return how many there are."""
    running = bulks.running()
    started = clock()
    for number, bulk_id in enumerate(running, start=1):
        until = started + seconds * number / len(running)

        def in_time(until: float = until) -> bool:
            return clock() < until

        token = bulks.new_token()
        try:
            run_bulk_action(ledger, bulks, publish, bulk_id, token=token, keep_going=in_time)
        except ValueError as error:  # another release wrote it, and its workers run it
            log.debug("bulk action %s cannot be read: %s", bulk_id, error)
    return len(running)
