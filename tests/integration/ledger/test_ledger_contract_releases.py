"""The ledger's contract: the order in which waiting entries are released, and that none is lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from support.ledger_scenario import Scenario, ScenarioMaker
from support.provider_calls import answer_call, ask, start_call, submit_for
from support.settlements import retries_by_policy

from mulligan.policies.jobs.provider_limits import ProviderLimits
from mulligan.tasks.ports.ledger import Claim, ClaimRefused, Entry
from mulligan.workers.ledger.redis_ledger import RedisLedger

ACME: dict[str, Any] = {"labels": {"tenant": "acme"}}


def waits(found: Claim | ClaimRefused) -> bool:
    return isinstance(found, ClaimRefused) and found.reason in ("provider_busy", "over_quota")


def limited(scenario: Scenario, **ceilings: int) -> RedisLedger:
    limits = {name: ProviderLimits(concurrency=most) for name, most in ceilings.items()}
    scenario.ledger.limit_providers(lambda: limits)
    return scenario.ledger


def test_a_retry_is_released_before_first_attempts_that_wait_longer(scenario: Scenario) -> None:
    ledger = limited(scenario, api=2)
    again = start_call(ledger, "api")
    running = start_call(ledger, "api")
    first = submit_for(ledger, "of-api", priority=0)
    assert waits(ask(ledger, first, "api"))
    scenario.advance(1)
    answer_call(ledger, again)  # releases the first attempt
    scenario.settle(again, retries_by_policy(again))
    assert isinstance(ask(ledger, first, "api"), Claim)
    second = submit_for(ledger, "of-api", priority=0)
    assert waits(ask(ledger, second, "api"))
    scenario.advance(1)
    assert waits(ask(ledger, again.job_id, "api", 2))
    assert answer_call(ledger, running) == [f"a:{again.job_id}/2"]


def test_a_due_retry_is_in_the_next_sweep_whatever_else_is_due(
    new_redis_scenario: ScenarioMaker,
) -> None:
    """Given 2,000 entries that have been due for longer than a retry."""
    scenario = new_redis_scenario(sweep_limit=50)
    failed = scenario.claim(scenario.submit())
    for _ in range(2000):
        scenario.submit()
    scenario.settle(failed, retries_by_policy(failed, delay=10))
    scenario.advance(11)
    retry = f"a:{failed.job_id}/2"
    assert retry in scenario.swept_entries()


def test_a_quota_that_is_no_longer_configured_releases_what_it_held(
    new_scenario: ScenarioMaker,
) -> None:
    """Given a fleet that restarts without the quota."""
    scenario = new_scenario(quotas={"acme": {"concurrency": 1}})
    scenario.claim(scenario.submit(**ACME))
    waiting = [scenario.submit(**ACME) for _ in range(3)]
    for job_id in waiting:
        assert scenario.refusal(job_id).reason == "over_quota"
    assert scenario.swept_entries() == set()
    restarted = replace(scenario, ledger=new_scenario(quotas={}).ledger)
    restarted.sweep()  # finds that the ledger has other limits, and writes its own
    assert restarted.swept_entries() == {f"a:{job_id}/1" for job_id in waiting}
    for job_id in waiting:
        restarted.claim(job_id)


def test_an_answer_releases_what_is_next_in_any_partition(new_scenario: ScenarioMaker) -> None:
    scenario = new_scenario(partitions=3)
    ledger = limited(scenario, api=3)
    found = [(job_id, ask(ledger, job_id, "api")) for job_id in jobs_everywhere(ledger)]
    running = [claim for _, claim in found if isinstance(claim, Claim)]
    waiting = [job_id for job_id, claim in found if waits(claim)]
    assert len(running) == 3
    assert len(running) + len(waiting) == len(found)
    for claim in running:
        (entry,) = answer_call(ledger, claim)
        job_id = Entry.parse(entry).job_id
        assert job_id == waiting.pop(0)
        assert isinstance(ask(ledger, job_id, "api"), Claim)
    ledger.limit_providers(dict)
    released = {publication.entry.job_id for publication in scenario.sweep()}
    assert released
    assert released <= set(waiting)


def jobs_everywhere(ledger: RedisLedger) -> list[str]:
    """Return jobs of which every partition has at least three."""
    jobs: list[str] = []
    while any(sum(j.startswith(p) for j in jobs) < 3 for p in ("p00", "p01", "p02")):
        jobs.append(submit_for(ledger, "of-api"))
    return jobs


def test_a_parked_entry_with_an_unreadable_record_is_quarantined(scenario: Scenario) -> None:
    scenario.ledger.pause("queue:attempt")
    broken, healthy = scenario.submit(), scenario.submit()
    for job_id in (broken, healthy):
        assert scenario.refusal(job_id).reason == "paused"
    scenario.ledger.calls.run("HSET", "mulligan:{p00}:outbox:entries", f"a:{broken}/1", "garbage")
    scenario.ledger.resume("queue:attempt")
    assert scenario.swept_entries() == {f"a:{healthy}/1"}
    scenario.advance(1)
    scenario.sweep()
    (quarantined,) = scenario.ledger.quarantine.entries()
    assert quarantined.id == f"a:{broken}/1"
    assert scenario.view(broken).state == "escalated"
