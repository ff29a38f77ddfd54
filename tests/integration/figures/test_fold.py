"""Folding events into figures, on a real Redis: each event counts exactly once."""

from __future__ import annotations

import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from support.ledger_scenario import Scenario, ScenarioMaker, SettingsMaker
from support.settlements import retries_immediately

from mulligan.policies.cycles.cycle import CycleStatus
from mulligan.policies.figures.facts import OTHER, Figure
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.celery.periodic import PERIODIC
from mulligan.workers.figures.fold import Fold
from mulligan.workers.figures.windows import FigureReader, parse_window
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.ledger.stored.cycle_rows import CycleRows

P = "mulligan:{p00}:"
HOUR_MS = 3_600_000
SETTLED: dict[str, Any] = {
    "type": "attempt", "job": "p00-a", "attempt": 1, "state": "settled", "mode": "initial",
    "task_type": "extract", "runner": "small", "model": "m1", "score": 40, "success": False,
    "kind": "json_invalid", "cause": "fence", "signature": "v1:s", "next": "immediate_retry",
    "prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15, "seconds": 1.5,
}  # fmt: skip
ATTEMPTS = Figure("attempt", ("initial", "retried", "json_invalid"), "n")


def add_event(client: redis.Redis, *, at: int | None = None, seq: int = 1, **changes: Any) -> str:
    """Add an event, now or at this millisecond."""
    event_id = "*" if at is None else f"{at}-{seq}"
    return str(client.xadd(P + "events", {"data": json.dumps({**SETTLED, **changes})}, id=event_id))


def attempts_counted(ledger: RedisLedger) -> int:
    return FigureReader(ledger).totals()[ATTEMPTS]


def test_every_event_counts_once(ledger: RedisLedger, redis_client: redis.Redis) -> None:
    for _ in range(25):
        add_event(redis_client)
    fold = Fold(ledger, batch=10)
    assert fold.run() == 25
    assert fold.run() == 0
    assert Fold(ledger).run() == 0
    add_event(redis_client)
    assert fold.run() == 1
    assert attempts_counted(ledger) == 26


def test_a_run_takes_at_most_the_given_batches(
    ledger: RedisLedger, redis_client: redis.Redis
) -> None:
    for _ in range(25):
        add_event(redis_client)
    fold = Fold(ledger, batch=10)
    assert [fold.run(batches=1) for _ in range(4)] == [10, 10, 5, 0]


def test_concurrent_folds_count_nothing_twice(
    ledger: RedisLedger, redis_client: redis.Redis
) -> None:
    """Given several folds that start from the same position."""
    for _ in range(300):
        add_event(redis_client)
    folds = [Fold(ledger, batch=7) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        done = 0
        while done < 300:
            done += sum(pool.map(lambda fold: fold.run(batches=3), folds))
    assert done == 300
    assert attempts_counted(ledger) == 300


def test_a_batch_written_without_a_reply_is_not_written_again(
    ledger: RedisLedger, redis_client: redis.Redis
) -> None:
    """Given a fold that died or lost its connection right after the script ran."""
    add_event(redis_client)
    survivor = Fold(ledger)
    assert Fold(ledger).run() == 1
    survivor._cursors[P] = "0-0"  # its position when the connection broke
    assert survivor.run() == 0
    add_event(redis_client)
    assert survivor.run() == 1
    assert attempts_counted(ledger) == 2


def test_trimmed_events_are_counted_as_missed_and_logged(
    ledger: RedisLedger,
    redis_client: redis.Redis,
    caplog: pytest.LogCaptureFixture,
) -> None:
    add_event(redis_client)
    fold = Fold(ledger)
    fold.run()
    for _ in range(5):
        add_event(redis_client)
    redis_client.xtrim(P + "events", maxlen=2, approximate=False)
    assert fold.run() == 2
    totals = FigureReader(ledger).totals()
    assert totals[ATTEMPTS] == 3
    assert totals[Figure("missed", (), "n")] == 1
    assert "trimmed before they were counted" in caplog.text


def test_an_unreadable_event_does_not_stop_the_fold(
    ledger: RedisLedger,
    redis_client: redis.Redis,
    caplog: pytest.LogCaptureFixture,
) -> None:
    redis_client.xadd(P + "events", {"data": "{no json"})
    add_event(redis_client)
    assert Fold(ledger).run() == 2
    assert attempts_counted(ledger) == 1
    assert "cannot be read" in caplog.text


def test_events_count_in_the_minute_and_the_hour_of_their_time(
    ledger: RedisLedger, redis_client: redis.Redis, settings: SettingsMaker
) -> None:
    now = int(ledger.now() * 1000)
    hour = now // HOUR_MS
    add_event(redis_client, at=(hour - 5) * HOUR_MS, job="p00-old")  # minutes are kept for 3 hours
    add_event(redis_client, at=now, job="p00-new")
    Fold(ledger).run()
    minute = f"{P}figures:m:{now // 60_000}"
    names = set(redis_client.scan_iter(f"{P}figures:*"))
    assert names == {
        minute,
        *(f"{P}figures:{kind}:{hour - back}" for kind in "he" for back in (0, 5)),
        f"{P}figures:total",
    }
    assert 0 < redis_client.ttl(minute) <= 3 * 3600 + 60
    retention = settings().stats_retention
    assert retention - 6 * 3600 < redis_client.ttl(f"{P}figures:h:{hour - 5}") <= retention
    day = FigureReader(ledger).window(86400, now=now / 1000)
    assert (day.step, len(day.buckets), len(day.before)) == (3600, 24, 24)
    places = [n for n, bucket in enumerate(day.buckets) if bucket.rows]
    assert places == [18, 23]  # the last hour, and five hours before it
    assert day.examples == {("v1:s", ""): "p00-new/1"}
    last = FigureReader(ledger).window(3600, now=now / 1000)
    assert (last.step, len(last.buckets)) == (60, 60)
    assert [n for n, bucket in enumerate(last.buckets) if bucket.rows] == [59]


def test_a_full_bucket_counts_the_rest_together(
    ledger: RedisLedger, redis_client: redis.Redis
) -> None:
    """Given a cap of 20 fields and 50 signatures, then every failure counts, without its name."""
    now = ledger.now()
    for n in range(50):
        add_event(
            redis_client, at=int(now * 1000), seq=n, signature=f"v1:{n}", labels={"n": str(n)}
        )
    Fold(ledger, fields_cap=20).run()
    rows: Counter[Figure] = Counter()
    for bucket in FigureReader(ledger).window(7200, now=now).buckets:
        rows.update(bucket.rows)
    failures = {f.dims[0]: n for f, n in rows.items() if f.family == "failure"}
    assert sum(failures.values()) == 50
    assert failures[OTHER] > 25
    assert len(rows) <= 30  # the cap, and one field for the rest in a few families
    (hour,) = redis_client.scan_iter(f"{P}figures:e:*")
    assert redis_client.hlen(hour) <= 20


def test_the_lag_is_the_age_of_the_oldest_uncounted_event(
    ledger: RedisLedger, redis_client: redis.Redis
) -> None:
    figures = FigureReader(ledger)
    assert figures.lag(now=ledger.now()) == 0
    now = ledger.now()
    add_event(redis_client, at=int(now * 1000) - 90_000)
    assert 89 < figures.lag(now=now) < 91
    Fold(ledger).run()
    assert figures.lag(now=ledger.now()) == 0


def test_partitions_are_folded_separately_and_read_together(
    new_redis_scenario: ScenarioMaker,
) -> None:
    scenario = new_redis_scenario(partitions=3)
    for _ in range(12):
        scenario.submit(task_type="extract")
    assert isinstance(scenario.ledger, RedisLedger)
    assert Fold(scenario.ledger).run() >= 12
    totals = FigureReader(scenario.ledger).totals()
    assert totals[Figure("job", ("accepted",), "n")] == 12


def test_the_ledger_s_events_are_counted(new_redis_scenario: ScenarioMaker) -> None:
    """Given a job that its mandatory retry repaired, and one that was cancelled."""
    scenario = new_redis_scenario()
    scenario.repaired_job(task_type="extract")
    scenario.ledger.cancel(scenario.submit(task_type="extract"))
    assert isinstance(scenario.ledger, RedisLedger)
    Fold(scenario.ledger).run()
    totals = FigureReader(scenario.ledger).totals()
    ended = {f.dims[0]: n for f, n in totals.items() if f.family == "job"}
    assert ended == {"accepted": 2, "succeeded": 1, "cancelled": 1}
    cycles = {f.dims[0]: n for f, n in totals.items() if f.family == "cycle"}
    assert cycles == {"pending_immediate_retry": 1, "pending_delayed_verification": 1}
    assert sum(n for f, n in totals.items() if f.family == "retry" and f.measure == "n") == 1


def test_the_control_worker_folds_every_second(settings: SettingsMaker) -> None:
    (planned,) = [task for task in PERIODIC if task.name == "fold"]
    assert planned.seconds(settings()) == 1.0


@pytest.mark.parametrize("text", ["soon", "1s", "366d", "-1h", ""])
def test_an_invalid_window_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="window"):
        parse_window(text)


# -- cycles as reports read them -------------------------------------------------------------------


def rows_of(scenario: Scenario) -> CycleRows:
    assert isinstance(scenario.ledger, RedisLedger)
    return CycleRows(scenario.ledger.calls, scenario.ledger.prefixes)


@pytest.mark.parametrize("partitions", [1, 3])
def test_cycles_are_read_newest_first(new_redis_scenario: ScenarioMaker, partitions: int) -> None:
    scenario = new_redis_scenario(partitions=partitions)
    for n in range(9):
        scenario.advance(1)
        scenario.repaired_job(task_type="größer" if n % 2 else "plain")
    rows = rows_of(scenario).newest(since=0, limit=50)
    assert [row.created_at for row in rows] == sorted(
        (row.created_at for row in rows), reverse=True
    )
    assert [row.task_type for row in rows] == ["plain", "größer"] * 4 + ["plain"]
    assert {row.cause for row in rows} == {"json_invalid"}
    assert all(row.retried and row.immediate_at is not None for row in rows)
    assert len(rows_of(scenario).newest(since=0, limit=4)) == 4
    assert rows_of(scenario).newest(since=time.time() + 1000, limit=50) == []


def test_only_unfinished_cycles_are_read_again(new_redis_scenario: ScenarioMaker) -> None:
    scenario = new_redis_scenario()
    _, entry = scenario.repaired_job()
    cycles = rows_of(scenario)
    assert [row.status for row in cycles.newest(since=0, limit=50)] == [
        "pending_delayed_verification"
    ]
    scenario.advance(601)
    scenario.sweep()
    lease = scenario.claim_recheck(entry).lease
    scenario.ledger.settle_cycle(lease, status="completed", score=100)
    (row,) = cycles.newest(since=0, limit=50)
    assert row.status == CycleStatus.COMPLETED
    trips = cycles._calls.round_trips
    assert cycles.newest(since=0, limit=50) == [row]
    assert cycles._calls.round_trips == trips + 1  # the list of names only


def test_folding_stores_one_row_of_every_finished_cycle(
    new_redis_scenario: ScenarioMaker, redis_client: redis.Redis
) -> None:
    """Given a reason with separators in it."""
    scenario = new_redis_scenario()
    scenario.repaired_job()
    claim = scenario.claim(scenario.submit())
    scenario.settle(claim, retries_immediately(claim))
    scenario.ledger.cancel(claim.job_id)
    key = f"{P}cycle:{claim.job_id}:1:1"
    redis_client.hset(key, mapping={"reason": "a\x1fb\x1ec", "status": "escalated"})
    assert isinstance(scenario.ledger, RedisLedger)
    Fold(scenario.ledger).run()
    stored = [
        name for name in redis_client.scan_iter(f"{P}cycle:*") if redis_client.hexists(name, "row")
    ]
    assert stored == [key]
    first, second = rows_of(scenario).newest(since=0, limit=50)
    assert (first.reason, first.status) == ("a b c", "escalated")
    assert second.status == "pending_delayed_verification"


def test_cycles_are_filtered_by_tenant(new_redis_scenario: ScenarioMaker) -> None:
    scenario = new_redis_scenario()
    scenario.repaired_job(labels={"tenant": "acme"})
    scenario.repaired_job(labels={"tenant": "other"})
    scenario.repaired_job()
    cycles = rows_of(scenario)
    assert [row.tenant for row in cycles.newest(since=0, limit=50, tenant="acme")] == ["acme"]
    assert len(cycles.newest(since=0, limit=50)) == 3
