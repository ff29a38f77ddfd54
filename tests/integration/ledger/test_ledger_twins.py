"""The in-memory ledger cannot lie: random stories, told to both ledgers, are heard the same."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from support.ledger_stage import (
    Stage,
    TwinsMaker,
    answer,
    cut_short,
    escalates,
    make_job,
    passed,
    retries_at_once,
    retries_by_policy,
    succeeds,
)

from mulligan.policies.jobs.job import Job
from mulligan.tasks.ports.ledger import (
    Claim,
    CycleClaim,
    Ended,
    Entry,
    EscalationEnd,
    Lease,
    Ledger,
    ParkedCounts,
    SessionNote,
    Settlement,
    Submission,
)

STORIES = 60
STEPS = 100

SETTLEMENTS: list[Callable[[Claim], Settlement]] = [
    succeeds,
    escalates,
    lambda claim: escalates(claim, about="v1:json"),
    lambda claim: cut_short(claim, "budget_tokens"),
    retries_at_once,
    retries_at_once,
    retries_by_policy,
    lambda claim: retries_by_policy(claim, delay=15, score=None),
    lambda claim: retries_at_once(claim, score=65.0, signatures=("other",)),
]
PAUSES = ["queue:attempt", "queue:repair", "queue:verify", "task_type:extract"]
QUEUES = ["attempt", "repair", "verify"]
TENANTS = [None, None, "acme", "other"]
SUBJECTS = ["mia", "noa"]
HOW: list[EscalationEnd] = ["resolved", "requeued", "requeued", "cancelled"]
QUOTAS = {"acme": {"concurrency": 1}, "*": {"concurrency": 2, "tokens_per_day": 60}}


def heard(value: Any) -> Any:
    """What a ledger answered, without what may differ: tokens, and the order of a set."""
    match value:
        case Claim():
            return replace(value, lease=Lease(value.lease.entry, ""))
        case CycleClaim():
            return replace(value, lease=Lease(value.lease.entry, ""), claim=heard(value.claim))
        case ParkedCounts():
            return replace(value, token="held" if value.token else None)
        case list():
            return sorted(value, key=str)
        case _:
            return value


def told_by(ledger: Ledger) -> dict[str, list[Mapping[str, Any]]]:
    """Every event, in order within its job."""
    told: dict[str, list[Mapping[str, Any]]] = {}
    for event in ledger.events():
        told.setdefault(event.job_id, []).append(event.data)
    return told


class Story:
    """Every step is one of some worker's, alive or dead, of a person's, or of the sweep."""

    def __init__(self, memory: Stage, redis: Stage, seed: int) -> None:
        self.memory, self.redis = memory, redis
        self.random = random.Random(seed)
        self.jobs: list[str] = []
        self.entries: list[Entry] = []
        #: Published and not yet delivered.
        self.messages: list[Entry] = []
        #: Every lease ever given, by both ledgers: the forgotten ones are the zombies'.
        self.claims: list[tuple[Claim, Claim]] = []
        self.cycles: list[tuple[CycleClaim, CycleClaim]] = []
        #: The leases that their worker has given up, as the first ledger names them.
        self.ended: set[Lease] = set()
        #: What was done and heard so far: what a failing test shows.
        self.told: list[str] = []

    def play(self) -> None:
        steps: dict[Callable[[], None], int] = {
            self.submit: 2,
            self.claim: 10,
            self.store: 5,
            self.store_result: 6,
            self.settle: 8,
            self.requeue: 3,
            self.renew: 2,
            self.settle_cycle: 2,
            self.recheck: 4,
            self.sweep: 8,
            self.stamp: 2,
            self.pause: 1,
            self.resume: 2,
            self.cancel: 1,
            self.submit_elsewhere: 2,
            self.next_task: 7,
            self.hold: 2,
            self.store_cycle_output: 1,
            self.refuse_verification: 1,
            self.end_escalation: 3,
            self.mute: 1,
        }
        self.submit()
        for _ in range(STEPS):
            (step,) = self.random.choices(list(steps), list(steps.values()))
            step()
        for job_id in self.jobs:
            self.compare(job_id)
        self.both("jobs", lambda ledger, _: ledger.jobs())
        self.both("cycles", lambda ledger, _: ledger.cycles(since=0, limit=50))
        self.both("events", lambda ledger, _: told_by(ledger))
        self.both("groups", lambda ledger, _: ledger.groups(only_open=False))
        for tenant in (None, "acme"):
            self.both(
                f"escalations of {tenant}",
                lambda ledger, _: ledger.escalations(only_open=False, tenant=tenant),  # noqa: B023
            )
        for subject in SUBJECTS:
            self.both(f"session of {subject}", lambda ledger, _: ledger.session(subject))  # noqa: B023
            self.both(f"next of {subject}", lambda ledger, _: ledger.next_of(subject))  # noqa: B023

    def both(self, what: str, step: Callable[[Ledger, int], Any]) -> tuple[Any, Any]:
        """Do one step in both ledgers, and hear the same."""
        told = step(self.memory.ledger, 0), step(self.redis.ledger, 1)
        self.told.append(f"{what}: {told[0]}")
        assert heard(told[0]) == heard(told[1]), "\n".join(self.told)
        return told

    def compare(self, job_id: str) -> None:
        told = [stage.ledger.job(job_id) for stage in (self.memory, self.redis)]
        assert told[0] == told[1], "\n".join(self.told)

    def recent(self, several: list[Any]) -> Any:
        """Mostly the newest, so that stories get somewhere; None of nothing."""
        if not several:
            return None
        return several[-1 - min(int(self.random.expovariate(0.7)), len(several) - 1)]

    # -- producers and people -------------------------------------------------------------------

    def submit(self) -> None:
        job: Job = make_job(
            priority=self.random.randrange(10),
            memory_scope=self.random.choice(["job", "task_type"]),
            deadline=self.random.choice([86400, 86400, 100]),
            labels=self.labels(),
        )
        self.accept(job)
        self.messages.append(self.entries[-1])

    def labels(self) -> dict[str, str]:
        tenant = self.random.choice(TENANTS)
        return {"tenant": tenant} if tenant else {}

    def submit_elsewhere(self) -> None:
        job = make_job(
            subject=self.random.choice(SUBJECTS),
            runner={"kind": "external"},
            verifiers=["external.score"],
            delayed_verification={"mode": "reformulate"},
            deadline=self.random.choice([86400, 86400, 100]),
            labels=self.labels() if self.random.random() < 0.3 else {},
        )
        self.accept(job)

    def accept(self, job: Job) -> None:
        job_id = f"p00-job{len(self.jobs)}"
        new = [Submission(id=job_id, job=job)]
        self.both(f"accept {job_id}", lambda ledger, _: ledger.accept(new))
        self.jobs.append(job_id)
        self.entries.append(Entry("attempt", job_id, 1))

    def cancel(self) -> None:
        job_id = self.recent(self.jobs)
        self.both(f"cancel {job_id}", lambda ledger, _: ledger.cancel(job_id))
        self.compare(job_id)

    def pause(self) -> None:
        pause = self.random.choice(PAUSES)
        self.both(f"pause {pause}", lambda ledger, _: ledger.pause(pause))

    def resume(self) -> None:
        for pause in self.both("paused", lambda ledger, _: ledger.paused())[0]:
            self.both(f"resume {pause}", lambda ledger, _: ledger.resume(pause))  # noqa: B023

    def escalation(self) -> str | None:
        """One of the last escalations, open or ended; or one that never was."""
        found, _ = self.both("escalations", lambda ledger, _: ledger.escalations(only_open=False))
        ids: list[str] = sorted(each.id for each in found)
        escalation_id: str | None = self.recent(ids)
        return escalation_id if self.random.random() < 0.95 else "p00-job0:99"

    def end_escalation(self) -> None:
        escalation_id, how = self.escalation(), self.random.choice(HOW)
        if escalation_id is None:
            return
        prompt = self.random.choice([None, "In other words."])
        told, _ = self.both(
            f"end {escalation_id} {how}",
            lambda ledger, _: ledger.end_escalation(
                escalation_id, how=how, by="ada", note="because", prompt=prompt
            ),
        )
        if isinstance(told, Ended) and told.publication is not None:
            self.messages.append(told.publication.entry)
            self.entries.append(told.publication.entry)
        self.compare(escalation_id.partition(":")[0])

    def mute(self) -> None:
        signature = self.random.choice(["v1:json", "reason:max_attempts", "v1:unknown"])
        until = self.random.choice([None, 5000.5])
        self.both(f"mute {signature}", lambda ledger, _: ledger.mute(signature, until=until))

    # -- subjects -------------------------------------------------------------------------------

    def next_task(self) -> None:
        """A subject asks for its next task, and mostly takes it."""
        subject, tenant = self.random.choice(SUBJECTS), self.random.choice([None, None, "acme"])
        told = self.both(
            f"next of {subject}", lambda ledger, _: ledger.next_of(subject, tenant=tenant)
        )
        if told[0] is None or told[0].token is not None or self.random.random() < 0.2:
            return
        self.claim_entry(told[0].entry, lease=100)

    def hold(self) -> None:
        pair = self.recent(self.leases())
        if pair is not None and pair[0].entry.kind != "verification":
            self.both(f"hold {pair[0].entry}", lambda ledger, i: ledger.hold(pair[i]))

    def store_cycle_output(self) -> None:
        pair = self.recent(self.cycles)
        if pair is not None:
            self.both(
                f"store {pair[0].lease.entry}",
                lambda ledger, i: ledger.store_cycle_output(pair[i].lease, answer("again")),
            )
            self.compare(pair[0].lease.entry.job_id)

    def refuse_verification(self) -> None:
        pair = self.recent(self.cycles)
        if pair is not None:
            self.both(
                f"refuse {pair[0].lease.entry}",
                lambda ledger, i: ledger.refuse_verification(pair[i].lease, reason="why"),
            )

    # -- workers --------------------------------------------------------------------------------

    def claim(self) -> None:
        """A message is delivered; or one that was delivered long ago, once more."""
        if self.messages and self.random.random() < 0.8:
            entry = self.recent(self.messages)
            self.messages.remove(entry)
        else:
            entry = self.recent(self.entries)
        self.claim_entry(entry)

    def claim_entry(self, entry: Entry, lease: float | None = None) -> None:
        claims: dict[str, Callable[[Ledger], Any]] = {
            "attempt": lambda ledger: ledger.claim(entry, worker="w", lease=lease),
            "verification": lambda ledger: ledger.claim_verification(entry, worker="w"),
            "cycle": lambda ledger: ledger.claim_cycle(entry, worker="w", lease=lease),
        }
        told = self.both(f"claim {entry}", lambda ledger, _: claims[entry.kind](ledger))
        if isinstance(told[0], Claim):
            self.claims.append(told)
        elif isinstance(told[0], CycleClaim):
            self.cycles.append(told)
        self.compare(entry.job_id)

    def held(self, kind: str) -> tuple[Claim, Claim] | None:
        """A claim in somebody's hand; now and then one that has ended, a zombie's."""
        found = [pair for pair in self.claims if pair[0].lease.entry.kind == kind]
        if self.random.random() < 0.85:
            found = [pair for pair in found if pair[0].lease not in self.ended]
        pair: tuple[Claim, Claim] | None = self.recent(found)
        return pair

    def store(self) -> None:
        pair = self.held("attempt")
        if pair is None:
            return
        entry, slow = pair[0].lease.entry, self.random.choice([(), (0,), (0, 1)])
        self.both(
            f"store {entry} {slow}",
            lambda ledger, i: ledger.store_output(pair[i].lease, answer(), verifications=slow),
        )
        self.entries += [Entry("verification", entry.job_id, entry.attempt, i) for i in slow]
        self.compare(entry.job_id)

    def store_result(self) -> None:
        pair = self.held("verification")
        if pair is None:
            return
        told = self.both(
            f"store result {pair[0].lease.entry}",
            lambda ledger, i: ledger.store_result(pair[i].lease, passed(), elapsed=0.25),
        )
        self.ended.add(pair[0].lease)
        if isinstance(told[0], Claim):
            self.claims.append(told)
        self.compare(pair[0].job_id)

    def settle(self) -> None:
        pair = self.held("attempt")
        if pair is None:
            return
        entry = pair[0].lease.entry
        repaired = pair[0].plan.mode == "immediate_retry" and self.random.random() < 0.6
        settlement = (succeeds if repaired else self.random.choice(SETTLEMENTS))(pair[0])
        settlement = self.noted(pair[0], settlement)
        told, _ = self.both(
            f"settle {entry} {settlement.then}",
            lambda ledger, i: ledger.settle(pair[i].lease, settlement),
        )
        self.ended.add(pair[0].lease)
        if isinstance(told, list):
            self.messages += [publication.entry for publication in told]
        if settlement.cycle is not None:
            loop = settlement.cycle.loop_index
            self.entries.append(Entry("cycle", entry.job_id, entry.attempt, loop))
        self.entries.append(Entry("attempt", entry.job_id, entry.attempt + 1))
        self.compare(entry.job_id)

    def noted(self, claim: Claim, settlement: Settlement) -> Settlement:
        """With what the verbs add for work done elsewhere."""
        if claim.job.subject is None:
            return replace(settlement, verify_on=self.random.choice(["verify", "attempt"]))
        note = SessionNote(
            entry=str(claim.lease.entry),
            task_type=claim.job.task_type,
            mode=claim.plan.mode,
            seconds=1.5,
            loop=settlement.cycle is not None,
            window=5400,
        )
        return replace(settlement, verify_on="lane", session=note, facts={"labels": {}, "n": None})

    def leases(self) -> list[tuple[Lease, Lease]]:
        cycles = [(memory.lease, redis.lease) for memory, redis in self.cycles]
        return cycles + [(memory.lease, redis.lease) for memory, redis in self.claims]

    def requeue(self) -> None:
        pair = self.recent([pair for pair in self.leases() if pair[0] not in self.ended])
        if pair is None:
            return
        terms: dict[str, Any] = {
            "delay": self.random.choice([0, 1, 20, 150]),
            "counter": self.random.choice([None, "faults", "faults"]),
            "limit": self.random.choice([None, 2]),
        }
        self.both(
            f"requeue {pair[0].entry} {terms}",
            lambda ledger, i: ledger.requeue(pair[i], detail="503", reason="limit", **terms),
        )
        self.ended.add(pair[0])
        self.compare(pair[0].entry.job_id)

    def renew(self) -> None:
        leases = self.leases()
        self.both("renew", lambda ledger, i: ledger.renew([pair[i] for pair in leases]))

    def recheck(self) -> None:
        """A delayed verification, in time or late."""
        entry = self.recent([entry for entry in self.entries if entry.kind == "cycle"])
        if entry is not None:
            self.sweep_after(self.random.choice([31, 700, 700, 700, 6000]))
            self.next_task()
            self.claim_entry(entry)

    def settle_cycle(self) -> None:
        pair = self.recent(self.cycles)
        if pair is None:
            return
        status = self.random.choice(["completed", "escalated"])
        self.both(
            f"settle {pair[0].lease.entry} {status}",
            lambda ledger, i: ledger.settle_cycle(
                pair[i].lease, status=status, score=50.0, reason="checked"
            ),
        )
        self.compare(pair[0].lease.entry.job_id)

    # -- the sweep and the clock ----------------------------------------------------------------

    def sweep(self) -> None:
        self.sweep_after(self.random.choice([0, 0, 0, 3, 3, 31, 61]))

    def sweep_after(self, seconds: float) -> None:
        self.redis.advance(seconds)  # one clock for both
        empty = self.random.sample(QUEUES, self.random.randrange(3))
        found, _ = self.both(
            f"sweep after {seconds}", lambda ledger, _: ledger.sweep(empty_queues=empty)
        )
        if self.random.random() < 0.7:
            entries = [publication.entry for publication in found]
            self.messages += entries
            self.both("stamp", lambda ledger, _: ledger.stamp(entries))

    def stamp(self) -> None:
        entry = self.recent(self.entries)
        self.both(f"stamp {entry}", lambda ledger, _: ledger.stamp([entry]))


#: What the stories must come by, or they prove nothing.
MILESTONES = [
    *("reason='gone'", "reason='finished'", "reason='held'", "reason='verifying'"),
    *("reason='paused'", "reason='early'", "reason='stored'", "reason='lost'"),
    *("detail='deadline'", "detail='worker_lost'", "detail='limit'"),
    *(
        "detail='missing_delayed_verification'",
        "CycleClaim(",
        "kind='verification'",
        "kind='cycle'",
    ),
    *("reason='over_quota'", "Ended(state='requeued'", "Ended(state='cancelled'", "SessionNote("),
    *("Waiting(entry=Entry(kind='cycle'", "Waiting(entry=Entry(kind='attempt'", "token='"),
    *("detail='the job is no longer kept'", "EscalationGroup(", "since=1"),
]


def test_random_stories_are_heard_the_same_by_both_ledgers(twins: TwinsMaker) -> None:
    met: Counter[str] = Counter()
    for seed in range(STORIES):
        story = Story(*twins(retention=2000.5, max_claims=2, quotas=QUOTAS), seed)
        story.play()
        met.update(mark for line in story.told for mark in MILESTONES if mark in line)
    assert set(MILESTONES) - met.keys() == set()
