"""The ledger's contract: a loop moves to another ledger with all its records, or not at all."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from support.jobs import answer
from support.ledger_scenario import Scenario, ScenarioMaker
from support.loops import ADA, LoopScenario, item, used
from support.moved_loops import EVE, STAYS, exported, imported, whole_state
from support.settlements import escalates, retries_by_policy, retries_immediately, succeeds

from mulligan.policies.loops.heal_record import HealRecord
from mulligan.policies.loops.loop import LoopChange
from mulligan.policies.loops.merge_batches import START_WINDOW
from mulligan.policies.regressions.record import CommitCheck, Regression, RegressionLog
from mulligan.tasks.coordination.orders import emit, give_order
from mulligan.tasks.loops import change, transfer
from mulligan.tasks.loops.change import LoopConflict
from mulligan.tasks.ports.errors import LedgerUnavailable
from mulligan.tasks.ports.ledger import ClaimRefused, Entry, LoopWrite, Written
from mulligan.workers.ledger import keys
from mulligan.workers.ledger.coordination_steps import MOST_SIGNALS
from mulligan.workers.ledger.stored.moved_records import (
    ATTEMPT,
    CYCLE,
    ESCALATION,
    JOB,
    LOOP,
    PARTS,
    SPENT,
    moving,
)

HOUR = 3600.0
_VERIFICATION = re.compile(r"v(token|claims|hard|shared|faults|faults_last):\d+")


@pytest.fixture
def here(new_scenario: ScenarioMaker) -> LoopScenario:
    return LoopScenario(new_scenario(key_prefix="here"))


@pytest.fixture
def there(new_scenario: ScenarioMaker, here: LoopScenario) -> LoopScenario:
    """Another ledger, to which a loop is on its way for an hour."""
    other = new_scenario(key_prefix="there")
    assert other.clock is not None
    other.clock.shift += HOUR
    return LoopScenario(other)


def settle_retried(loops: LoopScenario, name: str) -> None:
    """Let an item fail at its first attempt and pass at its mandatory retry."""
    first = loops.claim(name)
    loops.scenario.ledger.store_output(first.lease, answer("no"))
    loops.settle(first, retries_immediately(first))
    second = loops.claim(name, 2)
    loops.scenario.ledger.store_output(second.lease, answer("yes"))
    loops.settle(second, succeeds(second, verify_after=600.0))


def wait_delayed(loops: LoopScenario, name: str, delay: float) -> None:
    first = loops.claim(name)
    loops.scenario.ledger.store_output(first.lease, answer("no"))
    loops.settle(first, retries_by_policy(first, delay=delay))


def create_busy_loop(loops: LoopScenario, **config: Any) -> None:
    """A loop at half-time, paused: everything that can have happened to an item has."""
    budget = {
        "attempt": {"tokens": 10, "seconds": 10},
        "loop": {"tokens": 60},
        "day": {"seconds": 1000},
    }
    names = ("passed", "failed", "retried", "delayed", "queued")
    last = item("last", "failed", "passed")
    loops.create(*map(item, names), last, **{"budget": budget, **config})
    loops.plan()
    loops.passes("passed")
    loops.fails("failed")
    settle_retried(loops, "retried")
    wait_delayed(loops, "delayed", 2 * HOUR)
    heal = HealRecord(number=1, at=1.5, item="failed", action="unblock", reason="why")
    done = LoopChange(heals=[heal.ended("failed", now=2.0)])
    write = LoopWrite(reading=loops.read(), change=done)
    assert isinstance(loops.scenario.ledger.write_loop(write), Written)
    loops.move("pause")
    loops.plan()
    assert isinstance(loops.refusal("queued"), ClaimRefused)  # and waits behind the pause


def records(loops: LoopScenario, name: str = "alpha") -> dict[str, Any]:
    found = loops.scenario.ledger.export_loop(name)
    assert found is not None
    assert found.busy == []
    plain: dict[str, Any] = json.loads(json.dumps(found.records))
    return plain


def keys_of(loops: LoopScenario) -> list[str]:
    prefix = keys.partition_prefix(loops.scenario.settings.key_prefix, "p00")
    return sorted(
        each.removeprefix(prefix) for each in loops.scenario.ledger.calls.run("KEYS", f"{prefix}*")
    )


# -- what moves ------------------------------------------------------------------------------------


def assert_same(here: LoopScenario, there: LoopScenario) -> None:
    """CommitCheck that nothing of a loop is different in the new place."""
    old, new = (
        whole_state(each.scenario.ledger, each.scenario.settings.key_prefix)
        for each in (here, there)
    )
    assert old.keys() == new.keys()
    for name in old:
        assert new[name] == old[name], name


def test_every_record_of_a_loop_moves(here: LoopScenario, there: LoopScenario) -> None:
    create_busy_loop(here)
    assert imported(there.context, exported(here.context, "alpha")) == "written"
    assert_same(here, there)
    assert len(records(there)["jobs"]) == 5
    assert there.loop().state == "paused"
    assert there.states() == here.states()
    assert used(there.read()) == used(here.read())
    assert there.read().budget.limits == here.read().budget.limits
    for job in records(here)["jobs"]:
        old, new = (each.scenario.ledger.job(job["id"]) for each in (here, there))
        assert new is not None
        assert new == old


def test_what_people_ordered_and_gave_off_moves(here: LoopScenario, there: LoopScenario) -> None:
    """Given one item that a person holds, one that need not wait, and one that waits for an event
    of a person, when the loop moves, then all of that counts there, too."""
    here.create(item("held"), item("free", waits_for=["never"]), item("told", waits_for=["said"]))
    give_order(here.context, "alpha", "held", "hold", ADA)
    give_order(here.context, "alpha", "free", "ignore_waits", ADA)
    here.move("pause")
    emit(here.context, "said", tenant="", by="ada")
    emit(here.context, "other", tenant="", by="ada")
    here.scenario.ledger.set_merge_window("alpha", old=START_WINDOW, new=5)
    assert imported(there.context, exported(here.context, "alpha"), name="beta") == "written"
    assert there.read("beta").snapshot.orders == here.read().snapshot.orders
    assert there.loop("beta").merge_window == 5
    events = there.scenario.ledger.coordination().events
    assert [(each.name, each.by) for each in events] == [("said", ("eve",))]
    for loops, name in ((here, "alpha"), (there, "beta")):
        loops.move("resume", name)
        assert sorted(loops.admitted(name)) == ["free", "told"]


def test_events_that_come_with_a_loop_count_for_who_brings_it(
    here: LoopScenario, there: LoopScenario
) -> None:
    here.create(item("told", waits_for=["said"]))
    here.move("pause")
    emit(here.context, "said", tenant="", by="ada")
    archive = exported(here.context, "alpha")
    there.scenario.ledger.calls.run("HSET", "there:{p00}:loops:signals", "acme/eve", MOST_SIGNALS)
    with pytest.raises(LoopConflict, match="too many events"):
        imported(there.context, archive, tenant="acme")
    assert there.scenario.ledger.loops() == []
    assert imported(there.context, archive) == "written"


def test_open_escalations_and_repeated_runs_move(here: LoopScenario, there: LoopScenario) -> None:
    """Given an item that failed again after a person requeued it, one that a person skipped, and
    one that runs anew, when the loop moves, then their records are the same there."""
    here.create(*map(item, ("again", "left", "anew")))
    here.plan()
    here.fails("again")
    (escalation,) = here.scenario.ledger.escalations(only_open=True)
    here.scenario.end(escalation.id, "requeued")
    here.plan()
    second = here.claim("again", 2)
    here.scenario.ledger.store_output(second.lease, answer("no"))
    here.settle(second, escalates(second))
    here.fails("left")
    change.skip(here.context, "alpha", "left", ADA, reason="not needed")
    here.fails("anew")
    change.reset(here.context, "alpha", "anew", ADA)
    here.plan()
    wait_delayed(here, "anew", HOUR)
    here.move("pause")
    assert imported(there.context, exported(here.context, "alpha")) == "written"
    assert_same(here, there)
    assert [each.job_id for each in there.scenario.ledger.escalations(only_open=True)] == [
        here.item("again").job_id
    ]


def test_every_part_of_a_loop_is_listed() -> None:
    table = keys.__doc__ or ""
    parts = set(re.findall(r"^mulligan:\{p00\}:loop:<name>(?::(\w+))?[ :]", table, re.MULTILINE))
    assert parts | {"begun"} == {*PARTS}


def test_every_field_of_a_record_moves_or_is_known_to_stay(here: LoopScenario) -> None:
    create_busy_loop(here)
    prefix = keys.partition_prefix("here", "p00")
    kinds: list[tuple[str, Any, str]] = [
        ("loop", LOOP, r"loop:alpha"),
        ("job", JOB, r"job:[\w-]+"),
        ("attempt", ATTEMPT, r"job:[\w-]+:\d+"),
        ("cycle", CYCLE, r"cycle:.*"),
        ("escalation", ESCALATION, r"escalation:.*"),
        ("spent", SPENT, r"loop:alpha:spent"),
    ]
    seen = set()
    for kind, fields, pattern in kinds:
        for name in keys_of(here):
            if re.fullmatch(pattern, name):
                row = here.scenario.ledger.calls.records([f"{prefix}{name}"])[0]
                left = {
                    each for each in row.keys() - moving(row, fields).keys()
                    if not _VERIFICATION.fullmatch(each)
                }  # fmt: skip
                assert left <= STAYS.get(kind, set()), name
                seen.add(kind)
    assert len(seen) == len(kinds)


def test_the_time_of_the_move_does_not_count(here: LoopScenario, there: LoopScenario) -> None:
    """Given an attempt that is due in two hours, when the loop moves for an hour, then it is due in
    two hours again; its deadline and its loop's pause are as far away as before."""
    create_busy_loop(here, budget={})
    imported(there.context, exported(here.context, "alpha"))
    for name in ("delayed", "queued"):
        old, new = here.item(name), there.item(name)
        assert new.since - old.since == pytest.approx(HOUR, abs=30)
        place = keys.job(keys.partition_prefix("here", "p00"), old.job_id)
        (there_row,) = there.scenario.ledger.calls.records([place.replace("here", "there")])
        (here_row,) = here.scenario.ledger.calls.records([place])
        later = float(there_row["deadline_at"]) - float(here_row["deadline_at"])
        assert later == pytest.approx(HOUR * 1000, abs=30_000)
    assert there.item("passed").since == here.item("passed").since
    there.move("resume")
    there.plan()
    assert there.refusal("delayed", 2).reason == "early"
    there.scenario.advance(1.9 * HOUR)
    assert there.refusal("delayed", 2).reason == "early"
    there.scenario.advance(0.2 * HOUR)
    assert there.refusal("delayed", 2).reason == "no_slot"
    there.plan()
    assert there.claim("delayed", 2).plan.prompt == "Do it right."


def test_what_waits_goes_on_with_its_memory_and_its_budget(
    here: LoopScenario, there: LoopScenario
) -> None:
    create_busy_loop(here)
    imported(there.context, exported(here.context, "alpha"))
    there.move("resume")
    there.plan()
    there.passes("queued")
    assert used(there.read())["loop:tokens"] == 60
    there.plan()
    assert (there.loop().state, there.loop().paused_by) == ("paused", "budget")
    prefix = keys.partition_prefix("there", "p00")
    (memory,) = there.scenario.ledger.calls.records([f"{prefix}memory:item:alpha/failed"])
    assert memory
    assert memory == records(here)["memory"]["failed"]


def test_an_open_escalation_and_a_delayed_verification_go_on_in_the_new_place(
    here: LoopScenario, there: LoopScenario
) -> None:
    create_busy_loop(here)
    imported(there.context, exported(here.context, "alpha"))
    (failed,) = there.scenario.ledger.escalations(only_open=True)
    assert (failed.job_id, failed.reason) == (here.item("failed").job_id, "max_attempts")
    assert [group.open for group in there.scenario.ledger.groups()] == [1]
    job = there.scenario.ledger.job(there.item("retried").job_id)
    assert job is not None
    (cycle,) = job.cycles
    assert cycle.status == "pending_delayed_verification"
    entry = Entry.parse(f"c:{cycle.id}")
    there.scenario.advance(500)
    assert entry not in [each.entry for each in there.scenario.ledger.sweep(empty_queues=())]
    there.scenario.advance(200)
    assert entry in [each.entry for each in there.scenario.ledger.sweep(empty_queues=())]


def test_files_that_an_item_was_seen_to_change_move_and_its_events_are_given_off_anew(
    here: LoopScenario, there: LoopScenario
) -> None:
    here.create(item("a", emits=["built"]), item("b", "a", touches=["src/**"]))
    here.plan()
    here.passes("a")
    here.plan()
    done = LoopChange(seen_files={"b": ("docs/x.md",)})
    write = LoopWrite(reading=here.read(), change=done)
    assert isinstance(here.scenario.ledger.write_loop(write), Written)
    here.move("stop")
    imported(there.context, exported(here.context, "alpha"))
    spec = there.read().snapshot.spec("b")
    assert spec is not None
    assert there.read().snapshot.files(spec) == ("src/**", "docs/x.md")
    assert there.loop().space == here.loop().space
    transfer.go_on(there.context, "alpha", Written(), EVE)
    there.plan()
    events = there.scenario.ledger.calls.run("HKEYS", "there:{p00}:loops:events")
    assert [name.rpartition("/")[2] for name in events] == ["built"]


def test_a_check_for_regressions_is_made_again_in_the_new_place(
    here: LoopScenario, there: LoopScenario
) -> None:
    """Given a check under way, whose job does not move, then what was found before it does."""
    here.create(item("a"))
    check = CommitCheck(number=2, commit="c", reason="merge", items=("a",), job_id="p00-x", at=1.0)
    found = Regression(
        number=1, item="a", runs=1, at=1.0, good="g", bad="b", seen="b", job_id="p00-y", probe="p"
    )
    log = RegressionLog(next_number=3, commit="c", check=check, found=(found,))
    write = LoopWrite(reading=here.read(), change=LoopChange(regressions=log))
    assert isinstance(here.scenario.ledger.write_loop(write), Written)
    here.move("stop")
    imported(there.context, exported(here.context, "alpha"))
    plain = found.changed(job_id="", probe="")
    kept = RegressionLog(next_number=3, commit="c", found=(plain,), asked=("a",))
    assert there.loop().regressions == kept


# -- all or nothing --------------------------------------------------------------------------------


class Killed(Exception):
    """A process that is killed here."""


@pytest.mark.parametrize(
    "step", ["work_imported", "blobs_imported", "first_record", "later_record", "last_record"]
)
def test_an_import_that_is_killed_leaves_nothing_and_can_be_made_again(
    here: LoopScenario, there: LoopScenario, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_busy_loop(here)
    archive = exported(here.context, "alpha")
    calls = there.scenario.ledger.calls
    real: Callable[..., Any] = calls.many
    real_one: Callable[..., Any] = calls.one

    def killed_at(name: str, *_: Any) -> None:
        if name == step:
            raise Killed

    batches = []

    def many(name: str, requests: Any) -> Any:
        if name == "stage_record":
            batches.append(name)
        if len(batches) == {"first_record": 1, "later_record": 2}.get(step):
            real(name, requests[:1])
            raise Killed
        return real(name, requests)

    def one(name: str, prefix: str, /, **request: Any) -> Any:
        if step == "last_record" and name == "import_loop":
            raise Killed
        return real_one(name, prefix, **request)

    context = there.context
    with monkeypatch.context() as patched:
        patched.setattr(calls, "many", many)
        patched.setattr(calls, "one", one)
        object.__setattr__(context, "step", killed_at)
        with pytest.raises(Killed):
            imported(context, archive)
    left = [name for name in keys_of(there) if not name.startswith(("arriving:", "partitions"))]
    assert left == []
    assert there.scenario.ledger.loops() == []
    assert imported(there.context, archive) == "written"
    assert there.states() == here.states()
    there.scenario.advance(HOUR + 1)
    assert [name for name in keys_of(there) if name.startswith("arriving:")] == []


def test_an_import_that_is_killed_once_it_is_written_is_whole(
    here: LoopScenario, there: LoopScenario
) -> None:
    """Given a process that dies before it publishes what waits, then a sweep does."""
    create_busy_loop(here, budget={})
    archive = exported(here.context, "alpha")

    def killed(_: Any) -> None:
        raise Killed

    context = there.context
    object.__setattr__(context, "publish", killed)
    with pytest.raises(Killed):
        imported(context, archive)
    assert_same(here, there)
    assert imported(there.context, archive) == "seen"
    there.move("resume")
    there.plan()
    there.passes("queued")
    there.scenario.advance(3 * HOUR)
    entry = Entry("attempt", there.item("delayed").job_id, 2)
    there.scenario.sweep()
    there.plan()
    assert there.scenario.claim(entry.job_id, entry.attempt).plan.number == 2


def test_records_that_expired_meanwhile_are_not_a_part_of_a_loop(
    here: LoopScenario, there: LoopScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_busy_loop(here)
    archive = exported(here.context, "alpha")
    calls = there.scenario.ledger.calls
    real: Callable[..., Any] = calls.one

    def late(name: str, prefix: str, /, **request: Any) -> Any:
        if name == "import_loop":
            there.scenario.advance(HOUR + 1)
        return real(name, prefix, **request)

    with monkeypatch.context() as patched:
        patched.setattr(calls, "one", late)
        with pytest.raises(LedgerUnavailable, match="took too long"):
            imported(there.context, archive)
    assert there.scenario.ledger.loops() == []
    assert imported(there.context, archive) == "written"


def test_importing_twice_is_one_loop(here: LoopScenario, there: LoopScenario) -> None:
    create_busy_loop(here)
    archive = exported(here.context, "alpha")
    assert imported(there.context, archive) == "written"
    before = {
        name: there.scenario.ledger.calls.run("TYPE", f"there:{{p00}}:{name}")
        for name in keys_of(there)
    }
    assert imported(there.context, archive) == "seen"
    assert {
        name: there.scenario.ledger.calls.run("TYPE", f"there:{{p00}}:{name}")
        for name in keys_of(there)
    } == before
    with pytest.raises(LoopConflict, match="under another name"):
        imported(there.context, archive, name="beta")


def test_another_loop_of_that_name_stays(here: LoopScenario, there: LoopScenario) -> None:
    create_busy_loop(here)
    there.create(item("other"))
    archive = exported(here.context, "alpha")
    with pytest.raises(LoopConflict, match="another loop"):
        imported(there.context, archive)
    assert there.states() == {"other": "pending"}
    assert imported(there.context, archive, name="beta") == "written"
    assert there.states("beta") == here.states()
    there.move("resume", "beta")
    there.plan("beta")
    there.passes("queued", name="beta")
    job = there.scenario.ledger.job(there.item("queued", "beta").job_id)
    assert job is not None
    assert job.job.labels["loop"] == "beta"


def test_a_loop_belongs_to_whoever_imports_it(here: LoopScenario, there: LoopScenario) -> None:
    create_busy_loop(here)
    imported(there.context, exported(here.context, "alpha"), tenant="acme", owner="bob")
    assert (there.loop().tenant, there.loop().owner) == ("acme", "bob")
    for row in records(there)["jobs"]:
        job = there.scenario.ledger.job(row["id"])
        assert job is not None
        assert (job.tenant, job.owner, job.job.labels["tenant"]) == ("acme", "bob", "acme")
    (failed,) = there.scenario.ledger.escalations(only_open=True)
    assert failed.tenant == "acme"


# -- what cannot move, and what is left ------------------------------------------------------------


def test_a_loop_that_runs_is_not_exported(here: LoopScenario) -> None:
    here.create(item("a"))
    here.plan()
    claim = here.claim("a")
    with pytest.raises(LoopConflict, match="the loop is running, a runs: pause it"):
        exported(here.context, "alpha")
    here.move("pause")
    with pytest.raises(LoopConflict, match="now: a runs"):
        exported(here.context, "alpha")
    here.scenario.ledger.store_output(claim.lease, answer())
    here.settle(claim, escalates(claim))
    exported(here.context, "alpha")


def test_a_loop_that_was_moved_is_stopped_and_says_so(
    here: LoopScenario, there: LoopScenario
) -> None:
    create_busy_loop(here)
    archive = exported(here.context, "alpha", keep=False)
    assert (here.loop().state, here.loop().reason) == ("stopped", "moved to elsewhere")
    assert here.loop().has_moved
    assert here.scenario.ledger.escalations(only_open=True) == []
    assert here.scenario.ledger.loop_log("alpha")[0].note == "moved to elsewhere"
    imported(there.context, archive)
    assert there.states()["queued"] == "running"


def test_a_loop_that_changes_after_its_export_is_not_left(here: LoopScenario) -> None:
    create_busy_loop(here)
    export = here.scenario.ledger.export_loop("alpha")
    assert export is not None
    here.move("resume")
    with pytest.raises(LoopConflict, match="export it again"):
        transfer.leave(here.context, export, "elsewhere", EVE)
    assert here.loop().state == "running"


def test_a_loop_can_come_back(here: LoopScenario, there: LoopScenario) -> None:
    """Given a loop that moved and was deleted here, when it comes back, it goes on as there."""
    create_busy_loop(here)
    imported(there.context, exported(here.context, "alpha", keep=False))
    there.move("resume")
    there.plan()
    there.passes("queued")
    there.move("pause")
    change.delete(here.context, "alpha", ADA)
    here.scenario.clock.shift += HOUR  # type: ignore[union-attr]
    assert imported(here.context, exported(there.context, "alpha")) == "written"
    assert here.states() == there.states()
    assert here.states()["queued"] == "passed"


def test_a_loop_that_never_ran_moves(
    here: LoopScenario, there: LoopScenario, scenario: Scenario
) -> None:
    del scenario
    here.create(item("a"), item("b", "a"))
    here.move("stop")
    imported(there.context, exported(here.context, "alpha"))
    transfer.go_on(there.context, "alpha", Written(), EVE)
    assert there.admitted() == ["a"]
