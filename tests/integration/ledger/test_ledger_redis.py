"""The ledger on a real Redis: scripts, patience, key names, partitions, real time."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
from support.jobs import answer, make_job, passed
from support.ledger_scenario import Scenario, ScenarioMaker, SettingsMaker
from support.loops import ADA, LoopScenario, item
from support.provider_calls import answer_call, ask, fail_call, start_call
from support.redis_server import RedisServer
from support.settlements import escalates, retries_by_policy, retries_immediately, succeeds
from support.waiting import wait_for

from mulligan.policies.jobs.job import Output
from mulligan.policies.jobs.provider_limits import Allowance, RateLimits
from mulligan.policies.loops.loop import ItemRecord, LoopChange
from mulligan.tasks.coordination.orders import emit, give_order
from mulligan.tasks.loops import change
from mulligan.tasks.ports.errors import LedgerUnavailable
from mulligan.tasks.ports.ledger import (
    Accepted,
    Claim,
    ClaimRefused,
    Entry,
    Remedy,
    Requester,
    SessionNote,
    Submission,
)
from mulligan.workers.ledger import keys
from mulligan.workers.ledger.connection.calls import SOCKET_TIMEOUT, connect
from mulligan.workers.ledger.connection.scripts import SCRIPTS
from mulligan.workers.ledger.open_ledger import open_ledger
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.ledger.stored import job_ids
from mulligan.workers.ledger.stores.blobs import blob_store
from mulligan.workers.settings.model import Settings

# -- scripts ---------------------------------------------------------------------------------------


def submission() -> Submission:
    return Submission(id=job_ids.job_id(partitions=1), job=make_job())


def test_scripts_missing_on_the_server_are_sent_again(
    ledger: RedisLedger, redis_client: redis.Redis
) -> None:
    """Given SCRIPT FLUSH or a fail-over, then single calls and batches still work."""
    redis_client.script_flush()
    batch = [submission() for _ in range(3)]
    results = ledger.accept(batch)
    assert [getattr(each, "status", None) for each in results] == ["accepted"] * 3
    redis_client.script_flush()
    assert isinstance(ledger.claim(Entry("attempt", batch[0].id, 1), worker="w"), Claim)


def test_a_server_compiles_every_script(redis_client: redis.Redis) -> None:
    """A variable with the name of a shared function would be a syntax error."""
    for script in SCRIPTS.values():
        assert redis_client.script_load(script.text) == script.sha


def test_an_error_of_redis_is_raised_at_once(
    ledger: RedisLedger, redis_client: redis.Redis
) -> None:
    batch = [submission()]
    redis_client.set(f"mulligan:{{p00}}:job:{batch[0].id}", "not a hash")
    with pytest.raises(LedgerUnavailable, match=r"refused: .*WRONGTYPE"):
        ledger.accept(batch)


def test_a_job_is_read_in_one_script(ledger: RedisLedger) -> None:
    """A reader never sees a state from before a step with an attempt from after it."""
    new = submission()
    ledger.accept([new])
    claim = ledger.claim(Entry("attempt", new.id, 1), worker="w")
    assert isinstance(claim, Claim)
    ledger.settle(claim.lease, retries_immediately(claim))
    before = ledger.round_trips
    view = ledger.job(new.id)
    assert ledger.round_trips == before + 1
    assert view is not None
    assert [attempt.settled_at is None for attempt in view.attempts] == [False, True]
    assert [cycle.status for cycle in view.cycles] == ["pending_immediate_retry"]
    assert ledger.job("p00-nowhere") is None


def run_published_attempt(ledger: RedisLedger) -> Callable[[], None]:
    """Return the ledger's steps of an attempt whose message was sent and whose answer is good."""
    new = submission()
    ledger.accept([new])
    ledger.stamp([Entry("attempt", new.id, 1)])

    def run() -> None:
        claim = ask(ledger, new.id, "provider")
        assert isinstance(claim, Claim)
        answer_call(ledger, claim)
        ledger.settle(claim.lease, succeeds(claim))

    return run


def commands(client: redis.Redis) -> int:
    stats: Any = client.info("stats")
    return int(stats["total_commands_processed"])


def test_the_cost_of_an_attempt(ledger: RedisLedger, redis_client: redis.Redis) -> None:
    """Given a known provider, then an attempt takes 54 commands, those inside scripts included,
    in 3 round trips. The README counts the commands of the broker, too, and no tokens."""
    run_published_attempt(ledger)()
    run = run_published_attempt(ledger)
    before, trips = commands(redis_client), ledger.round_trips
    run()
    trips = ledger.round_trips - trips
    assert (commands(redis_client) - before - 1, trips) == (54, 3)  # 1: the first INFO


# -- patience --------------------------------------------------------------------------------------


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path)
    yield server
    server.kill()


def test_a_ledger_that_stays_down_is_unavailable(
    own_redis: RedisServer, settings: SettingsMaker
) -> None:
    ledger = RedisLedger(connect(own_redis.ledger_url), settings(), patience=0.2)
    with pytest.raises(LedgerUnavailable, match="cannot reach the ledger at "):
        ledger.accept([submission()])
    with pytest.raises(LedgerUnavailable):
        ledger.now()


def test_a_ledger_that_comes_back_in_time_is_waited_for(
    own_redis: RedisServer, settings: SettingsMaker
) -> None:
    """Given a server that dies under an open connection, when it is back within the patience,
    then the waiting calls succeed."""
    own_redis.start()
    ledger = RedisLedger(connect(own_redis.ledger_url), settings(), patience=60)
    ledger.now()
    own_redis.kill()
    before = ledger.round_trips
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(ledger.accept, [submission()]) for _ in range(2)]
        wait_for(lambda: ledger.round_trips >= before + 2)
        own_redis.start()
        results = [call.result(60)[0] for call in waiting]
    assert all(isinstance(each, Accepted) for each in results)
    assert len(ledger.jobs()) == 2


def test_a_ledger_that_hangs_is_unavailable(
    own_redis: RedisServer, settings: SettingsMaker
) -> None:
    """Given a server that accepts requests and does not reply, then calls time out; and its late
    reply is not taken for the reply to the next request."""
    own_redis.start()
    hasty = connect(f"{own_redis.ledger_url}?socket_timeout=0.2")
    ledger = RedisLedger(hasty, settings(), patience=0)
    new = submission()
    ledger.now()
    own_redis.send_signal(signal.SIGSTOP)
    with pytest.raises(LedgerUnavailable, match="cannot reach the ledger at "):
        ledger.accept([new])
    own_redis.send_signal(signal.SIGCONT)
    wait_for(own_redis.answers)
    (accepted,) = ledger.accept([new])
    assert isinstance(accepted, Accepted)
    assert [row.id for row in ledger.jobs()] == [new.id]
    assert connect(own_redis.ledger_url).get_connection_kwargs()["socket_timeout"] == SOCKET_TIMEOUT


# -- time ------------------------------------------------------------------------------------------


def scripts_sent(client: redis.Redis, work: Callable[[], None]) -> dict[str, str]:
    """Return the scripts that the work runs on the server, by name, each with one request."""
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


def every_step(scenario: Scenario) -> None:
    scenario.sweep()
    scenario.repaired_job()
    scenario.ledger.renew([scenario.claim(scenario.submit()).lease])
    scenario.ledger.requeue(scenario.claim(scenario.submit()).lease, delay=5, detail="busy")
    scenario.hand_over(checked := scenario.submit(), [0])
    scenario.ledger.store_result(scenario.claim_verification(checked, 0).lease, passed(), elapsed=0)
    scenario.ledger.stamp([Entry("attempt", scenario.submit(), 1)])
    scenario.ledger.cancel(scenario.submit())
    scenario.end(f"{scenario.escalated_job()}:1", "resolved")
    scenario.submit_external()
    scenario.next_entry()
    scenario.view(checked)


def test_a_ledger_in_production_never_sends_a_time(
    redis_client: redis.Redis, new_redis_scenario: ScenarioMaker, settings: SettingsMaker
) -> None:
    """Scripts take the time from Redis. Only the ledger of a test overrides it."""
    ledger = open_ledger(settings(), patience=5)
    every_step(Scenario(ledger, settings()))  # loads the scripts
    sent = scripts_sent(redis_client, lambda: every_step(Scenario(ledger, settings())))
    assert len(sent) > 12
    assert [name for name, command in sent.items() if "now_ms" in command] == []
    sent = scripts_sent(redis_client, lambda: every_step(new_redis_scenario()))
    assert [name for name, command in sent.items() if "now_ms" not in command] == []


# -- concurrency -----------------------------------------------------------------------------------


def test_of_twenty_concurrent_claims_exactly_one_wins(contract_client: redis.Redis) -> None:
    ledger = RedisLedger(contract_client, Settings(), patience=5)
    new = submission()
    ledger.accept([new])
    entry = Entry("attempt", new.id, 1)
    with ThreadPoolExecutor(20) as pool:
        results = list(pool.map(lambda n: ledger.claim(entry, worker=f"w{n}"), range(20)))
    assert sum(isinstance(each, Claim) for each in results) == 1
    assert results.count(ClaimRefused("held")) == 19


def test_a_reader_misses_no_event_of_many_threads(contract_client: redis.Redis) -> None:
    ledger = RedisLedger(contract_client, Settings(), patience=5)
    batch = [submission() for _ in range(50)]

    def read_all() -> set[str]:
        after, found = "0", set[str]()
        while len(found) < len(batch):
            for event in ledger.events(after=after, block=10):
                after = event.id
                found.add(event.job_id)
        return found

    with ThreadPoolExecutor(5) as pool:
        reader = pool.submit(read_all)
        list(pool.map(lambda new: ledger.accept([new]), batch))
        assert reader.result(60) == {new.id for new in batch}


def test_a_real_lease_expires_in_real_time(
    redis_client: redis.Redis, settings: SettingsMaker
) -> None:
    """Given scripts on Redis TIME, then a silent worker loses its attempt."""
    ledger = RedisLedger(redis_client, settings(lease=0.05), patience=5)
    new = submission()
    ledger.accept([new])
    entry = Entry("attempt", new.id, 1)
    claim = ledger.claim(entry, worker="w")
    assert isinstance(claim, Claim)
    wait_for(lambda: ledger.sweep(empty_queues=()))
    assert ledger.settle(claim.lease, succeeds(claim)) == ClaimRefused("lost")
    assert isinstance(ledger.claim(entry, worker="w"), Claim)


# -- key names -------------------------------------------------------------------------------------


def documented_keys() -> dict[str, str]:
    """Return the table in keys.py: a pattern for each key, and its type."""
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


def run_every_kind_of_job(scenario: Scenario) -> None:
    """Take jobs through everything that can happen to them."""
    _, entry = scenario.repaired_job()
    scenario.sweep()
    scenario.advance(601, away=True)  # a sweep after a long time extends leases
    scenario.sweep()
    lease = scenario.claim_recheck(entry).lease
    scenario.ledger.settle_cycle(lease, status="completed", score=100)
    lost = scenario.submit(memory_scope="task_type")
    scenario.ledger.stamp([Entry("attempt", lost, 1)])
    claim = scenario.claim(lost)
    remedy = Remedy(coarse="json", technique="shorter", worked=True)
    scenario.settle(claim, retries_by_policy(claim, remedy=remedy))
    claim = scenario.claim(lost, 2)
    scenario.settle(claim, escalates(claim))
    checked = scenario.submit()
    scenario.hand_over(checked, [0])
    last = scenario.ledger.store_result(
        scenario.claim_verification(checked, 0).lease, passed(), elapsed=0
    )
    assert isinstance(last, Claim)
    scenario.settle(last, succeeds(last))
    scenario.ledger.cancel(scenario.submit())
    run_external_jobs(scenario)
    for escalation in scenario.ledger.escalations():
        scenario.end(escalation.id, "resolved")


def run_external_jobs(scenario: Scenario) -> None:
    """Run external jobs of a tenant: one is repaired; a retry and new work stay claimed."""
    note = SessionNote(entry="a:1", task_type="t", mode="initial", seconds=1, loop=True, window=500)
    for number in (1, 2):
        job_id = scenario.submit_external(labels={"tenant": "acme"}, deadline=900)
        claim = scenario.claim(job_id)
        scenario.ledger.store_output(claim.lease, answer())
        scenario.settle(claim, retries_immediately(claim, session=note))
        claim = scenario.claim(job_id, 2)
        if number == 1:
            scenario.settle(claim, succeeds(claim, verify_on="lane"))
    scenario.claim(scenario.submit_external(labels={"tenant": "acme"}, deadline=900))


def stored_keys(client: redis.Redis) -> dict[str, str]:
    names = [name for name in client.scan_iter(count=1000) if not name.startswith("test:")]
    return {name: str(client.type(name)) for name in names}


def test_every_key_is_in_the_table_and_under_one_hash_tag(
    new_redis_scenario: ScenarioMaker, redis_client: redis.Redis, settings: SettingsMaker
) -> None:
    scenario = new_redis_scenario(quotas={"acme": {"concurrency": 9}})
    run_every_kind_of_job(scenario)
    scenario.escalated_job(labels={"tenant": "acme"}, idempotency_key="once")
    signature = scenario.ledger.escalations()[0].signature
    assert scenario.ledger.mute(signature, until=scenario.ledger.now() + 60)
    unsendable = {Entry("attempt", scenario.submit(), 1): "WRONGTYPE"}
    for _ in range(scenario.settings.publish_tries):
        scenario.ledger.fail(unsendable)
    scenario.ledger.fail({Entry("attempt", scenario.submit(), 1): "WRONGTYPE"})
    scenario.ledger.pause("queue:attempt")
    scenario.refusal(scenario.submit())
    scenario.ledger.resume("queue:attempt")
    scenario.ledger.pause("queue:verify")
    blob_store(settings()).put(b"a workspace")
    assert isinstance(scenario.ledger, RedisLedger)
    fail_call(scenario.ledger, start_call(scenario.ledger, "provider"))
    start_call(scenario.ledger, "provider", labels={"tenant": "acme"})
    told = RateLimits(requests=Allowance(remaining=9, reset=9))
    answered = Output(text="31", rate_limits=told)
    scenario.ledger.store_output(start_call(scenario.ledger, "other").lease, answered)
    scenario.submit()
    scenario.ledger.refused_submissions.note([], id="1", origin="celery", raw={})
    scenario.ledger.refused_submissions.note_message(queue="q", reason="r", size=1, begins="x")
    scenario.ledger.unfinished_runs.begin("plan:a", process="host:1")
    scenario.ledger.live_transcripts.add("job", 1, ['{"seq": 1}'])
    use_loops(scenario)
    found = stored_keys(redis_client)
    assert {re.sub(r"^mulligan:\{(\w+)\}:.*", r"\1", name) for name in found} == {"p00", "fleet"}
    table = documented_keys()
    matched = {
        pattern
        for name, kind in found.items()
        for pattern, documented_kind in table.items()
        if re.fullmatch(pattern, _untagged(name)) and kind == documented_kind
    }
    unknown = [n for n in found if not any(re.fullmatch(p, _untagged(n)) for p in table)]
    assert unknown == []
    others = {name for name in table if re.search(OTHERS, name)}
    assert table.keys() - matched - others == set()


def use_loops(scenario: Scenario) -> None:
    loops = LoopScenario(scenario, slots=1)
    loops.create(item("z"), name="failing")
    loops.plan("failing")
    loops.fails("z", name="failing")
    loops.plan("failing")
    loops.create(item("a"), item("b"), budget={"attempt": {"tokens": 9}, "loop": {"tokens": 99}})
    loops.plan()
    scenario.ledger.set_loop_slots(1)
    loops.passes("a", tokens=1)
    change.skip(loops.context, "alpha", "b", Requester(by="ada", key="once", digest="skip"))
    change.reset(loops.context, "alpha", "b", ADA)
    loops.plan()
    loops.claim("b")
    loops.create(item("c"), name="beta")
    loops.plan("beta")
    coordinate_loops(loops)


def coordinate_loops(loops: LoopScenario) -> None:
    """Use locks, events, orders and decisions."""
    loops.scenario.ledger.set_loop_slots(10)
    loops.create(
        item("make", touches=["x.py"], emits=["made"]),
        item("wait", "other/x"),
        item("denied", touches=["x.py"]),
        name="gamma",
    )
    loops.plan("gamma")
    (lock,) = loops.read("gamma").fleet.locks
    seen = replace(lock, files=(*lock.files, "/y.py"))
    loops.scenario.ledger.declare_files(seen, seen=["/y.py"], new=["/y.py"], text="It changed.")
    give_order(loops.context, "gamma", "wait", "hold", ADA)
    emit(loops.context, "ready", tenant="", by="ada")
    parts = {"wait": ItemRecord(state="skipped")}
    change.change_loop(
        loops.context,
        "gamma",
        ADA,
        lambda _found, _now: LoopChange(items=parts, split={"wait": "wait.2"}),
    )
    loops.passes("make", name="gamma")
    loops.plan("gamma")
    loops.create(item("again", touches=["x.py"]), name="delta")
    loops.plan("delta")
    loops.create(item("soon", "delta/again"), name="urgent", priority=1)
    loops.plan("urgent")
    loops.plan("delta")


#: Keys that this test does not write: figures, alerts, tokens and heartbeats have their own tests.
OTHERS = (
    r"folded|figures|alert|deliver|tokens|workers|periodic|bulk|configured|edits|late_sweeps"
    r"|key:|partitions"  # test_ledger_contract_partitions.py
    r"|fleet.*(session|events)"
    r"|arriving"  # test_ledger_contract_moves.py
)
#: Keys that never expire, and what bounds them.
CAPPED = {
    "events": "events_cap",
    "watermarks": "one field per queue and priority",
    "swept_at": "one value",
    "late_sweeps": "one value",
    "limits": "one field per configured limit",
}
#: Indexes of records with a longer retention than jobs: the sweep trims them.
INDEXES = {"cycles", "escalations", "escalations:ended", "groups"}


def test_after_the_retention_every_remaining_key_expires_or_is_capped(
    new_redis_scenario: ScenarioMaker, redis_client: redis.Redis
) -> None:
    scenario = new_redis_scenario()
    for _ in range(2):
        run_every_kind_of_job(scenario)
    cut = scenario.submit()
    claim = scenario.claim(cut)
    scenario.ledger.cancel(cut)
    scenario.settle(claim, retries_immediately(claim))
    scenario.expire_leases()
    for wait in (
        scenario.settings.stale_after,
        scenario.settings.lease,
        scenario.settings.retention,
    ):
        scenario.advance(wait + 1000)
        scenario.sweep()
        for escalation in scenario.ledger.escalations():
            scenario.end(escalation.id, "resolved")
    scenario.advance(200_000)  # daily token counts are kept for two days
    left = {name.rpartition("}:")[2]: redis_client.pttl(name) for name in stored_keys(redis_client)}
    endless = {name for name, ttl in left.items() if ttl < 0}
    assert endless - INDEXES <= CAPPED.keys()
    assert not any(name.startswith("job") for name in left)
    scenario.advance(scenario.settings.cycle_retention)
    scenario.sweep()
    kept = {name.rpartition("}:")[2].partition(":")[0] for name in stored_keys(redis_client)}
    assert kept <= {*CAPPED, "remedy"}


def test_events_are_capped(redis_client: redis.Redis, settings: SettingsMaker) -> None:
    ledger = RedisLedger(redis_client, settings(events_cap=100), patience=5)
    ledger.accept([submission() for _ in range(1000)])
    assert redis_client.xlen("mulligan:{p00}:events") <= 300  # trimmed by whole nodes of 100


# -- partitions ------------------------------------------------------------------------------------


def test_three_partitions_work_end_to_end(
    new_redis_scenario: ScenarioMaker, redis_client: redis.Redis
) -> None:
    scenario = new_redis_scenario(partitions=3)
    jobs = [scenario.submit() for _ in range(30)]
    assert {keys.partition_of(job_id) for job_id in jobs} == {"p00", "p01", "p02"}
    scenario.advance(scenario.settings.outbox_grace + 1)
    entries = [Entry("attempt", job_id, 1) for job_id in jobs]
    assert scenario.swept_entries() == {str(entry) for entry in entries}
    scenario.ledger.stamp(entries)
    claims = [scenario.claim(job_id) for job_id in jobs]
    assert scenario.ledger.renew([claim.lease for claim in claims]) == set()
    for claim in claims:
        scenario.ledger.store_output(claim.lease, answer())
        scenario.settle(claim, succeeds(claim))
    assert {view.id for view in scenario.ledger.jobs(state="succeeded")} == set(jobs)
    assert len(scenario.ledger.jobs(limit=7)) == 7
    assert {event.job_id for event in scenario.ledger.events()} == set(jobs)
    repaired = {scenario.repaired_job()[0] for _ in range(6)}
    assert {cycle.job_id for cycle in scenario.ledger.cycles(since=0, limit=50)} == repaired
    scenario.ledger.pause("queue:attempt")
    assert {scenario.refusal(scenario.submit()).reason for _ in range(9)} == {"paused"}
    scenario.ledger.resume("queue:attempt")
    assert len(scenario.swept_entries()) == 9
    tags = {name.split(":")[1] for name in stored_keys(redis_client)}
    assert tags == {"{p00}", "{p01}", "{p02}"}


def test_jobs_that_share_a_memory_share_a_partition(new_redis_scenario: ScenarioMaker) -> None:
    scenario = new_redis_scenario(partitions=50)
    jobs = [scenario.submit(memory_scope="task_type", prompt=f"Number {n}.") for n in range(9)]
    assert len({keys.partition_of(job_id) for job_id in jobs}) == 1
