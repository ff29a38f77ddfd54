"""What only the Redis ledger has: scripts, patience, key names, partitions, real time."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis
from support.ledger_stage import (
    SettingsMaker,
    Stage,
    StageMaker,
    answer,
    escalates,
    make_job,
    passed,
    retries_at_once,
    retries_by_policy,
    succeeds,
    until,
)

from mulligan.policies.jobs.breaker import BreakerPolicy
from mulligan.tasks.ports.errors import LedgerUnavailable, TransportFault
from mulligan.tasks.ports.ledger import (
    Accepted,
    Claim,
    ClaimRefused,
    Entry,
    Remedy,
    SessionNote,
    Submission,
)
from mulligan.workers.ledger import job_ids, keys
from mulligan.workers.ledger.calls import SCRIPTS, SOCKET_TIMEOUT, connect
from mulligan.workers.ledger.open_ledger import open_ledger
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.ledger.stores.blobs import blob_store
from mulligan.workers.ledger.stores.breakers import RedisBreakers
from mulligan.workers.local.embedded_redis import find_server
from mulligan.workers.settings.model import Settings

# -- scripts ------------------------------------------------------------------------------------


def submission(ledger: RedisLedger) -> Submission:
    return Submission(id=job_ids.job_id(partitions=1), job=make_job())


def test_scripts_that_the_server_forgot_are_sent_again(
    ledger: RedisLedger, redis_client: redis.Redis
) -> None:
    """Given SCRIPT FLUSH or a fail-over, then single calls and batches go on as before."""
    redis_client.script_flush()
    batch = [submission(ledger) for _ in range(3)]
    told = ledger.accept(batch)
    assert [getattr(each, "status", None) for each in told] == ["accepted"] * 3
    redis_client.script_flush()
    assert isinstance(ledger.claim(Entry("attempt", batch[0].id, 1), worker="w"), Claim)


def test_what_redis_refuses_is_told_at_once(ledger: RedisLedger, redis_client: redis.Redis) -> None:
    batch = [submission(ledger)]
    redis_client.set(f"mulligan:{{p00}}:job:{batch[0].id}", "not a hash")
    with pytest.raises(LedgerUnavailable, match=r"refused: .*WRONGTYPE"):
        ledger.accept(batch)


def test_a_job_is_seen_as_it_is_at_one_moment(ledger: RedisLedger) -> None:
    """In one script: nobody sees the state from before a step beside an attempt from after it."""
    new = submission(ledger)
    ledger.accept([new])
    claim = ledger.claim(Entry("attempt", new.id, 1), worker="w")
    assert isinstance(claim, Claim)
    ledger.settle(claim.lease, retries_at_once(claim))
    made = ledger.round_trips
    view = ledger.job(new.id)
    assert ledger.round_trips == made + 1
    assert view is not None
    assert [attempt.settled_at is None for attempt in view.attempts] == [False, True]
    assert [cycle.status for cycle in view.cycles] == ["pending_immediate_retry"]
    assert ledger.job("p00-nowhere") is None


# -- patience -----------------------------------------------------------------------------------


class OwnRedis:
    """A server that a test may stop and start."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "redis.sock"
        self.url = f"unix://{self.socket}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        argv = [find_server(), "--port", "0", "--unixsocket", str(self.socket), "--save", ""]
        self._process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, cwd=self.socket.parent)
        until(self.answers)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def send_signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def answers(self) -> bool:
        try:
            return bool(connect(self.url).ping())
        except redis.RedisError:
            return False


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[OwnRedis]:
    server = OwnRedis(tmp_path)
    yield server
    server.stop()


def test_a_ledger_that_stays_away_is_unavailable(
    own_redis: OwnRedis, settings: SettingsMaker
) -> None:
    ledger = RedisLedger(connect(own_redis.url), settings(), patience=0.2)
    with pytest.raises(LedgerUnavailable, match="the ledger is away"):
        ledger.accept([submission(ledger)])
    with pytest.raises(LedgerUnavailable):
        ledger.now()


def test_a_ledger_that_comes_back_in_time_is_waited_for(
    own_redis: OwnRedis, settings: SettingsMaker
) -> None:
    """Given a server that dies under an open connection, when it is back within the patience,
    then the calls that waited succeed."""
    own_redis.start()
    ledger = RedisLedger(connect(own_redis.url), settings(), patience=60)
    ledger.now()
    own_redis.stop()
    made = ledger.round_trips
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(ledger.accept, [submission(ledger)]) for _ in range(2)]
        until(lambda: ledger.round_trips >= made + 2)
        own_redis.start()
        told = [call.result(60)[0] for call in waiting]
    assert all(isinstance(each, Accepted) for each in told)
    assert len(ledger.jobs()) == 2


def test_a_ledger_that_hangs_without_dying_is_away_too(
    own_redis: OwnRedis, settings: SettingsMaker
) -> None:
    """Given a server that takes requests and says nothing, then nobody waits for ever; and what
    it says late, once it goes on, is not taken for the answer to the next request."""
    own_redis.start()
    hasty = connect(f"{own_redis.url}?socket_timeout=0.2")
    ledger = RedisLedger(hasty, settings(), patience=0)
    new = submission(ledger)
    ledger.now()
    own_redis.send_signal(signal.SIGSTOP)
    with pytest.raises(LedgerUnavailable, match="the ledger is away"):
        ledger.accept([new])
    own_redis.send_signal(signal.SIGCONT)
    until(own_redis.answers)
    (told,) = ledger.accept([new])
    assert isinstance(told, Accepted)
    assert [row.id for row in ledger.jobs()] == [new.id]
    assert connect(own_redis.url).get_connection_kwargs()["socket_timeout"] == SOCKET_TIMEOUT


# -- the time -----------------------------------------------------------------------------------


def scripts_sent(client: redis.Redis, work: Callable[[], None]) -> dict[str, str]:
    """The scripts that the server is asked to run meanwhile, by name, each with a request."""
    names = {script.sha: name for name, script in SCRIPTS.items()}
    end = "the end of the work"
    found: dict[str, str] = {}
    watched: Any = client  # redis-py does not type MONITOR
    with watched.monitor() as monitor:
        work()
        client.echo(end)
        while end not in (command := monitor.next_command()["command"]):
            if command.startswith("EVALSHA"):
                found[names[command.split()[1]]] = command
    return found


def every_step(play: Stage) -> None:
    play.sweep()
    play.repaired()
    play.ledger.renew([play.take(play.submit()).lease])
    play.ledger.requeue(play.take(play.submit()).lease, delay=5, detail="busy")
    play.hand_over(checked := play.submit(), [0])
    play.ledger.store_result(play.take_check(checked, 0).lease, passed(), elapsed=0)
    play.ledger.stamp([Entry("attempt", play.submit(), 1)])
    play.ledger.cancel(play.submit())
    play.end(f"{play.escalated()}:1", "resolved")
    play.submit_elsewhere()
    play.waiting()
    play.view(checked)


def test_a_ledger_in_production_never_sends_a_time(
    redis_client: redis.Redis, redis_stage: StageMaker, settings: SettingsMaker
) -> None:
    """Scripts take the time from Redis. Only the ledger of a test overrides it."""
    ledger = open_ledger(settings(), patience=5)
    every_step(Stage(ledger, settings()))  # so that the server knows the scripts
    sent = scripts_sent(redis_client, lambda: every_step(Stage(ledger, settings())))
    assert len(sent) > 12
    assert [name for name, command in sent.items() if "now_ms" in command] == []
    sent = scripts_sent(redis_client, lambda: every_step(redis_stage()))
    assert [name for name, command in sent.items() if "now_ms" not in command] == []


# -- many at once -------------------------------------------------------------------------------


def test_of_twenty_who_claim_at_once_exactly_one_wins(contract_client: redis.Redis) -> None:
    ledger = RedisLedger(contract_client, Settings(), patience=5)
    new = submission(ledger)
    ledger.accept([new])
    entry = Entry("attempt", new.id, 1)
    with ThreadPoolExecutor(20) as pool:
        told = list(pool.map(lambda n: ledger.claim(entry, worker=f"w{n}"), range(20)))
    assert sum(isinstance(each, Claim) for each in told) == 1
    assert told.count(ClaimRefused("held")) == 19


def test_no_event_of_many_threads_is_lost(contract_client: redis.Redis) -> None:
    """Given threads that accept jobs, and one that waits for each event, then it sees them all."""
    ledger = RedisLedger(contract_client, Settings(), patience=5)
    batch = [submission(ledger) for _ in range(50)]

    def seen() -> set[str]:
        after, found = "0", set[str]()
        while len(found) < len(batch):
            for event in ledger.events(after=after, block=10):
                after = event.id
                found.add(event.job_id)
        return found

    with ThreadPoolExecutor(5) as pool:
        reader = pool.submit(seen)
        list(pool.map(lambda new: ledger.accept([new]), batch))
        assert reader.result(60) == {new.id for new in batch}


def test_a_real_lease_expires_in_real_time(
    redis_client: redis.Redis, settings: SettingsMaker
) -> None:
    """Given the scripts as they are, on Redis TIME: a silent worker loses its attempt."""
    ledger = RedisLedger(redis_client, settings(lease=0.05), patience=5)
    new = submission(ledger)
    ledger.accept([new])
    entry = Entry("attempt", new.id, 1)
    claim = ledger.claim(entry, worker="w")
    assert isinstance(claim, Claim)
    until(lambda: ledger.sweep(empty_queues=()))
    assert ledger.settle(claim.lease, succeeds(claim)) == ClaimRefused("lost")
    assert isinstance(ledger.claim(entry, worker="w"), Claim)


# -- key names ----------------------------------------------------------------------------------


def documented() -> dict[str, str]:
    """The table in keys.py: a pattern for each key, and its type."""
    assert keys.__doc__ is not None
    table = keys.__doc__.split("\n====")[1].split("\n", 1)[1]
    rows = {}
    for line in table.splitlines():
        names, kind = re.split(r"\s{2,}", line)[:2] if "  " in line else line.rsplit(" ", 1)
        first, *others = names.split(", ")
        for name in [first, *(first[: first.rindex(":") + 1] + other for other in others)]:
            rows[re.sub(r"<\w+>", "[^{}]+", re.escape(_untagged(name)))] = kind
    return rows


def _untagged(name: str) -> str:
    return re.sub(r"\{p\d\d\}", "{pNN}", name)


def whole_life(play: Stage) -> None:
    """Every kind of thing that can happen to jobs."""
    _, entry = play.repaired()
    play.advance(601)
    play.sweep()
    lease = play.take_recheck(entry).lease
    play.ledger.settle_cycle(lease, status="completed", score=100)
    lost = play.submit(memory_scope="task_type")
    play.ledger.stamp([Entry("attempt", lost, 1)])
    claim = play.take(lost)
    remedy = Remedy(coarse="json", technique="shorter", worked=True)
    play.settle(claim, retries_by_policy(claim, remedy=remedy))
    claim = play.take(lost, 2)
    play.settle(claim, escalates(claim))
    checked = play.submit()
    play.hand_over(checked, [0])
    last = play.ledger.store_result(play.take_check(checked, 0).lease, passed(), elapsed=0)
    assert isinstance(last, Claim)
    play.settle(last, succeeds(last))
    play.ledger.cancel(play.submit())
    done_elsewhere(play)
    for escalation in play.ledger.escalations():
        play.end(escalation.id, "resolved")


def done_elsewhere(play: Stage) -> None:
    """Two tasks of a tenant's subject: one was repaired, the other is in its hand for ever."""
    note = SessionNote(entry="a:1", task_type="t", mode="initial", seconds=1, loop=True, window=500)
    for number in (1, 2):
        job_id = play.submit_elsewhere(labels={"tenant": "acme"}, deadline=900)
        claim = play.take(job_id)
        play.ledger.store_output(claim.lease, answer())
        play.settle(claim, retries_at_once(claim, session=note))
        claim = play.take(job_id, 2)
        if number == 1:
            play.settle(claim, succeeds(claim, verify_on="lane"))


def seen_keys(client: redis.Redis) -> dict[str, str]:
    names = [name for name in client.scan_iter(count=1000) if not name.startswith("test:")]
    return {name: str(client.type(name)) for name in names}


def test_every_key_is_in_the_table_and_under_one_hash_tag(
    redis_stage: StageMaker, redis_client: redis.Redis, settings: SettingsMaker
) -> None:
    play = redis_stage()
    whole_life(play)
    play.escalated(labels={"tenant": "acme"})
    play.ledger.pause("queue:attempt")
    play.refusal(play.submit())
    play.ledger.resume("queue:attempt")
    play.ledger.pause("queue:verify")
    blob_store(settings()).put(b"a workspace")
    assert isinstance(play.ledger, RedisLedger)
    policy = BreakerPolicy(threshold=1)
    breakers = RedisBreakers(
        play.ledger.calls, prefix="mulligan", now=play.ledger.now, policy=policy
    )
    breakers.fault(TransportFault("503", "provider"))
    claimed = play.submit()
    play.take(claimed)
    play.submit()
    found = seen_keys(redis_client)
    assert {re.sub(r"^mulligan:\{(\w+)\}:.*", r"\1", name) for name in found} == {"p00", "fleet"}
    table = documented()
    met = {
        pattern
        for name, kind in found.items()
        for pattern, documented_kind in table.items()
        if re.fullmatch(pattern, _untagged(name)) and kind == documented_kind
    }
    unknown = [n for n in found if not any(re.fullmatch(p, _untagged(n)) for p in table)]
    assert unknown == []
    others = {name for name in table if re.search(OTHERS, name)}
    assert table.keys() - met - others == set()


#: Keys that are no ledger's: figures, alerts, tokens and presence have tests of their own.
OTHERS = (
    r"folded|figures|alert|deliver|tokens|workers|bulk|configured|edits|fleet.*(session|events)"
)
#: Keys without an end of their own, and what bounds them.
CAPPED = {
    "events": "events_cap",
    "watermarks": "one field per queue and priority",
    "swept_at": "one value",
}
#: Indexes of records that outlive jobs and end by their own retention: the sweep trims them.
INDEXES = {"cycles", "escalations", "escalations:ended", "groups"}


def test_after_the_retention_every_key_left_has_an_end_or_a_cap(
    redis_stage: StageMaker, redis_client: redis.Redis
) -> None:
    play = redis_stage()
    for _ in range(2):
        whole_life(play)
    cut = play.submit()
    claim = play.take(cut)
    play.ledger.cancel(cut)
    play.settle(claim, retries_at_once(claim))
    play.expire_leases()
    for wait in (play.settings.stale_after, play.settings.lease, play.settings.retention):
        play.advance(wait + 1000)
        play.sweep()
        for escalation in play.ledger.escalations():
            play.end(escalation.id, "resolved")
    play.advance(200_000)  # tokens of a day are kept for two
    left = {name.rpartition("}:")[2]: redis_client.pttl(name) for name in seen_keys(redis_client)}
    endless = {name for name, ttl in left.items() if ttl < 0}
    assert endless - INDEXES <= CAPPED.keys()
    assert not any(name.startswith("job") for name in left)
    play.advance(play.settings.cycle_retention)
    play.sweep()
    kept = {name.rpartition("}:")[2].partition(":")[0] for name in seen_keys(redis_client)}
    assert kept <= {*CAPPED, "remedy"}


def test_events_are_capped(redis_client: redis.Redis, settings: SettingsMaker) -> None:
    ledger = RedisLedger(redis_client, settings(events_cap=100), patience=5)
    ledger.accept([submission(ledger) for _ in range(1000)])
    assert redis_client.xlen("mulligan:{p00}:events") <= 300  # trimmed by whole nodes of 100


# -- partitions ---------------------------------------------------------------------------------


def test_three_partitions_work_from_end_to_end(
    redis_stage: StageMaker, redis_client: redis.Redis
) -> None:
    play = redis_stage(partitions=3)
    jobs = [play.submit() for _ in range(30)]
    assert {keys.partition_of(job_id) for job_id in jobs} == {"p00", "p01", "p02"}
    play.advance(play.settings.outbox_grace + 1)
    entries = [Entry("attempt", job_id, 1) for job_id in jobs]
    assert play.swept() == {str(entry) for entry in entries}
    play.ledger.stamp(entries)
    claims = [play.take(job_id) for job_id in jobs]
    assert play.ledger.renew([claim.lease for claim in claims]) == set()
    for claim in claims:
        play.ledger.store_output(claim.lease, answer())
        play.settle(claim, succeeds(claim))
    assert {view.id for view in play.ledger.jobs(state="succeeded")} == set(jobs)
    assert len(play.ledger.jobs(limit=7)) == 7
    assert {event.job_id for event in play.ledger.events()} == set(jobs)
    repaired = {play.repaired()[0] for _ in range(6)}
    assert {cycle.job_id for cycle in play.ledger.cycles(since=0, limit=50)} == repaired
    play.ledger.pause("queue:attempt")
    assert {play.refusal(play.submit()) for _ in range(9)} == {ClaimRefused("paused")}
    play.ledger.resume("queue:attempt")
    assert len(play.swept()) == 9
    tags = {name.split(":")[1] for name in seen_keys(redis_client)}
    assert tags == {"{p00}", "{p01}", "{p02}"}


def test_jobs_that_share_a_memory_share_a_partition(redis_stage: StageMaker) -> None:
    play = redis_stage(partitions=50)
    jobs = [play.submit(memory_scope="task_type", prompt=f"Number {n}.") for n in range(9)]
    assert len({keys.partition_of(job_id) for job_id in jobs}) == 1
