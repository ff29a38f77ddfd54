"""The ledger's contract: loops, their items and the slots that they share."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pydantic import ValidationError
from support.jobs import answer
from support.ledger_scenario import Scenario, ScenarioMaker
from support.loops import ADA, LoopScenario, document, hint, item, used
from support.settlements import escalates, retries_immediately, succeeds

from mulligan.policies.jobs.job import RunnerSpec
from mulligan.tasks.loops import change
from mulligan.tasks.loops.change import LoopConflict, NoSuchLoop
from mulligan.tasks.loops.plan import decide
from mulligan.tasks.ports.errors import BadInput
from mulligan.tasks.ports.ledger import ClaimRefused, Entry, Requester, Written
from mulligan.workers.ledger import keys
from mulligan.workers.ledger.loop_steps import MOST_OF_TENANT


@pytest.fixture
def loops(scenario: Scenario) -> LoopScenario:
    return LoopScenario(scenario)


def test_a_loop_runs_its_items_after_those_they_depend_on(loops: LoopScenario) -> None:
    loops.create(item("a"), item("b", "a"), item("c", "a", "b"))
    assert loops.admitted() == ["a"]
    assert loops.states() == {"a": "running", "b": "pending", "c": "pending"}
    loops.passes("a")
    assert loops.admitted() == ["b"]
    loops.passes("b")
    assert loops.admitted() == ["c"]
    loops.passes("c")
    assert loops.plan().change.state == "completed"
    assert loops.loop().state == "completed"
    assert set(loops.states().values()) == {"passed"}


def test_an_admitted_item_has_a_job_to_publish(loops: LoopScenario) -> None:
    loops.create(item("a"))
    loops.published.clear()
    loops.plan()
    job_id = loops.item("a").job_id
    assert [str(each.entry) for each in loops.published] == [f"a:{job_id}/1"]
    view = loops.scenario.view(job_id)
    assert (view.state, view.job.labels) == ("queued", {"loop": "alpha", "item": "a"})


def test_settling_an_item_s_job_publishes_one_hint(loops: LoopScenario) -> None:
    loops.create(item("a"), item("b"), item("c", "a", "b"))
    loops.plan()
    claims = [loops.claim("a"), loops.claim("b")]
    for claim in claims:
        loops.scenario.ledger.store_output(claim.lease, answer())
    first = loops.settle(claims[0], succeeds(claims[0]))
    assert loops.hints(first) == ["alpha"]
    loops.scenario.ledger.stamp([hint()])
    assert loops.hints(loops.settle(claims[1], succeeds(claims[1]))) == []
    assert loops.loop().dirty > loops.loop().planned
    assert loops.admitted() == ["c"]
    assert loops.loop().dirty == loops.loop().planned


def test_a_hint_stays_if_something_happens_while_the_planner_decides(loops: LoopScenario) -> None:
    loops.create(item("a"), item("b", "a"))
    loops.plan()
    write = decide(loops.context, loops.read())
    loops.passes("a")
    written = loops.scenario.ledger.write_loop(write)
    assert isinstance(written, Written)
    assert loops.hints(written.publish) == ["alpha"]
    assert loops.admitted() == ["b"]


def test_a_plan_made_from_an_old_version_is_not_written(loops: LoopScenario) -> None:
    loops.create(item("a"))
    write = decide(loops.context, loops.read())
    loops.move("pause")
    assert loops.scenario.ledger.write_loop(write) == "stale"
    assert loops.states() == {"a": "pending"}


def test_two_planners_give_one_slot_once(loops: LoopScenario) -> None:
    loops.slots = 1
    loops.create(item("a"), name="alpha")
    loops.create(item("b"), name="beta")
    first, second = (decide(loops.context, loops.read(name)) for name in ("alpha", "beta"))
    assert isinstance(loops.scenario.ledger.write_loop(first), Written)
    assert loops.scenario.ledger.write_loop(second) == "stale"
    loops.plan("beta")
    assert len(loops.read().fleet.live) == 1


def test_a_repeated_write_answers_the_same(loops: LoopScenario) -> None:
    """The first answer may be lost on its way."""
    loops.create(item("a"))
    ledger = loops.scenario.ledger
    write = decide(loops.context, loops.read())
    token = ledger.new_token()
    ledger.new_token = lambda: token
    assert ledger.write_loop(write) == ledger.write_loop(write)
    assert loops.item("a").runs == 1


def test_a_lost_hint_is_found_by_the_sweep(loops: LoopScenario) -> None:
    loops.create(item("a"))
    ledger = loops.scenario.ledger
    ledger.stamp([hint()])
    loops.scenario.advance(61)
    assert str(hint()) in loops.scenario.swept_entries("loop")


def test_the_sweep_finds_a_loop_whose_hint_is_gone(loops: LoopScenario) -> None:
    loops.create(item("a"))
    prefix = loops.scenario.ledger.prefixes()[0]
    for key in ("outbox", "outbox:entries"):
        loops.scenario.ledger.calls.run("DEL", f"{prefix}{key}")
    assert loops.scenario.swept_entries() == {str(hint())}


def test_the_workspaces_of_a_loop_do_not_expire_while_it_exists(loops: LoopScenario) -> None:
    """Given a stopped loop, when the sweep looks at it once a day, then its workspace is kept."""
    here = {"workspace": {"snapshot": "sha256:aa"}}
    loops.create(item("a", **here), item("b", **here), item("c"))
    loops.move("stop")
    loops.plan()
    loops.plan()
    assert loops.kept == ["sha256:aa"]  # once an hour is enough
    assert loops.scenario.swept_entries("loop") == set()
    loops.scenario.advance(86401)
    assert loops.scenario.swept_entries("loop") == {str(hint())}
    loops.plan()
    assert loops.kept == ["sha256:aa"] * 2


# -- slots -----------------------------------------------------------------------------------------


def test_an_item_that_nobody_claims_leaves_its_slot_to_a_more_urgent_loop(
    loops: LoopScenario,
) -> None:
    """Given a slot whose item waits in the queue, when a loop of higher priority comes."""
    loops.slots = 1
    loops.create(item("a"))
    loops.plan()
    loops.create(item("x"), name="same")
    loops.plan("same")
    loops.scenario.advance(601)
    loops.scenario.sweep()
    assert loops.admitted("same") == []  # not for its own kind
    loops.create(item("u"), name="urgent", priority=1)
    loops.plan("urgent")
    loops.scenario.sweep()
    assert loops.admitted("urgent") == ["u"]
    assert loops.refusal("a").detail == "slot:alpha"
    loops.passes("u", name="urgent")
    assert loops.admitted() == ["x"]  # alpha had its turn
    loops.passes("x", name="same")
    assert loops.admitted() == ["a"]
    loops.passes("a")


def test_an_item_that_has_been_claimed_keeps_its_slot(loops: LoopScenario) -> None:
    loops.slots = 1
    loops.create(item("a"))
    loops.plan()
    loops.claim("a")
    loops.create(item("u"), name="urgent", priority=1)
    loops.plan("urgent")
    loops.scenario.advance(601)
    loops.scenario.sweep()  # its lease expires; it is queued again
    assert loops.admitted("urgent") == []


def test_the_deadline_of_an_item_counts_from_the_first_worker(loops: LoopScenario) -> None:
    """Given a fleet that was off for days, then what was admitted before is still done."""
    loops.create(item("a"), item("b", "a"))
    loops.plan()
    loops.scenario.advance(3 * 86400)
    loops.scenario.sweep()
    loops.passes("a")
    loops.plan()
    assert loops.states() == {"a": "passed", "b": "running"}


def test_an_item_that_waits_for_a_provider_ends_at_its_deadline(loops: LoopScenario) -> None:
    loops.create(item("a"), item("b", "a"))
    loops.plan()
    loops.scenario.ledger.pause("task_type:alpha")
    loops.refusal("a")
    loops.scenario.advance(86401)
    loops.scenario.sweep()
    loops.plan()
    assert (loops.item("a").state, loops.item("a").reason) == ("failed", "deadline")
    assert loops.item("b").state == "blocked"


def test_a_pause_of_the_loop_stops_the_clock_of_a_deadline_that_was_set(
    loops: LoopScenario,
) -> None:
    """Given an item that waited for something else, when its loop is paused for days."""
    loops.create(item("a"))
    loops.plan()
    loops.scenario.ledger.pause("task_type:alpha")
    loops.refusal("a")
    loops.scenario.ledger.resume("task_type:alpha")
    loops.move("pause")
    loops.scenario.sweep()
    loops.refusal("a")
    loops.scenario.advance(2 * 86400)
    loops.scenario.sweep()
    assert loops.item("a").state == "running"
    loops.move("resume")
    loops.plan()
    loops.passes("a")


def test_a_mandatory_retry_keeps_its_item_s_slot(loops: LoopScenario) -> None:
    loops.slots = 1
    loops.create(item("a"), item("b"))
    assert loops.admitted() == ["a"]
    claim = loops.claim("a")
    loops.scenario.ledger.store_output(claim.lease, answer())
    loops.settle(claim, retries_immediately(claim))
    assert loops.admitted() == []
    loops.claim("a", 2)


def test_an_item_has_its_slot_while_slow_verifiers_check_it(loops: LoopScenario) -> None:
    loops.slots = 1
    loops.create(item("a"), item("b"))
    loops.plan()
    claim = loops.claim("a")
    loops.scenario.ledger.store_output(claim.lease, answer(), verifications=[0])
    loops.scenario.expire_leases()
    assert loops.admitted() == []


def test_a_lost_worker_s_item_keeps_its_slot(loops: LoopScenario) -> None:
    loops.slots = 1
    loops.create(item("a"), item("b"))
    loops.plan()
    loops.claim("a")
    assert f"a:{loops.item('a').job_id}/1" in loops.scenario.expire_leases()
    assert loops.admitted() == []
    loops.claim("a")


def test_an_item_that_waits_for_something_else_leaves_its_slot(loops: LoopScenario) -> None:
    loops.slots = 1
    loops.create(item("a", task_type="slow"), item("b"))
    loops.plan()
    loops.scenario.ledger.pause("task_type:slow")
    assert loops.refusal("a").reason == "paused"
    assert loops.admitted() == ["b"]
    loops.scenario.ledger.resume("task_type:slow")
    assert f"a:{loops.item('a').job_id}/1" not in loops.scenario.swept_entries()
    view = loops.scenario.view(loops.item("a").job_id)
    assert (view.waiting_for, view.waiting_behind) == ("slot", "slot:alpha")
    assert loops.admitted() == []
    loops.passes("b")
    assert loops.admitted() == ["a"]
    loops.claim("a")


def test_concurrency_limits_one_loop(loops: LoopScenario) -> None:
    loops.create(item("a"), item("b"), item("c"), concurrency=2)
    assert loops.admitted() == ["a", "b"]
    loops.passes("a")
    assert loops.admitted() == ["c"]


def test_a_freed_slot_goes_to_another_loop(loops: LoopScenario) -> None:
    loops.slots = 1
    loops.create(item("a"), name="alpha")
    loops.plan("alpha")
    loops.create(item("b"), name="beta")
    assert loops.admitted("beta") == []
    loops.passes("a")
    assert loops.admitted("alpha") == ["b"]
    assert loops.item("b", "beta").state == "running"


def test_slots_set_by_a_person_win(loops: LoopScenario) -> None:
    loops.slots = 1
    loops.create(item("a"), item("b"), item("c"))
    loops.plan()
    assert loops.hints(loops.scenario.ledger.set_loop_slots(2)) == ["alpha"]
    assert loops.admitted() == ["b"]
    loops.scenario.ledger.set_loop_slots(None)
    loops.passes("a")
    assert loops.admitted() == []


# -- failures --------------------------------------------------------------------------------------


def test_a_failed_item_blocks_what_depends_on_it(loops: LoopScenario) -> None:
    loops.create(item("a"), item("b", "a"), item("c", "b"))
    loops.plan()
    loops.fails("a", "max_attempts")
    loops.plan()
    assert loops.states() == {"a": "failed", "b": "blocked", "c": "blocked"}
    assert loops.item("c").reason == "a failed"
    assert (loops.loop().state, loops.loop().reason) == ("blocked", "a failed")


def test_items_go_on_without_a_failed_one_if_the_loop_says_so(loops: LoopScenario) -> None:
    loops.create(item("a"), item("b", "a"), on_blocked="continue")
    loops.plan()
    loops.fails("a")
    assert loops.admitted() == ["b"]
    loops.passes("b")
    loops.plan()
    assert (loops.loop().state, loops.loop().reason) == ("blocked", "a failed")


def test_lost_workers_quarantine_an_item(loops: LoopScenario) -> None:
    loops.create(item("a"))
    loops.plan()
    for _ in range(loops.scenario.settings.max_claims):
        loops.claim("a")
        loops.scenario.expire_leases()
    assert loops.refusal("a").detail == "worker_lost"
    assert (loops.item("a").state, loops.item("a").reason) == ("quarantined", "worker_lost ×3")


def test_a_reset_item_runs_again_in_a_new_context(loops: LoopScenario) -> None:
    loops.create(item("a"), item("b", "a"))
    loops.plan()
    loops.fails("a")
    loops.plan()
    first = loops.item("a").job_id
    change.reset(loops.context, "alpha", "a", ADA)
    assert loops.admitted() == ["a"]
    assert loops.states() == {"a": "running", "b": "pending"}
    assert loops.item("a").job_id != first
    assert loops.claim("a").memory.count("json_invalid|$") == 0
    (escalation,) = loops.scenario.ledger.escalations(only_open=False)
    assert (escalation.state, escalation.ended_by) == ("resolved", "ada")


def test_a_run_after_another_remembers_its_failures(loops: LoopScenario) -> None:
    """The memory belongs to the item, also when its job is requeued or the loop was stopped."""
    loops.create(item("a"))
    loops.plan()
    claim = loops.claim("a")
    loops.scenario.ledger.store_output(claim.lease, answer())
    loops.settle(claim, retries_immediately(claim))
    loops.move("stop")
    loops.move("start")
    assert loops.admitted() == ["a"]
    assert loops.claim("a").memory.count("json_invalid|$") == 1


def test_skipping_an_item_lets_the_others_go_on(loops: LoopScenario) -> None:
    loops.create(item("a"), item("b", "a"))
    loops.plan()
    loops.fails("a")
    change.skip(loops.context, "alpha", "a", ADA, reason="not needed")
    assert loops.admitted() == ["b"]
    loops.passes("b")
    loops.plan()
    assert loops.loop().state == "completed"
    assert loops.item("a").reason == "not needed"


def test_requeueing_the_escalated_job_of_an_item_resumes_the_item(loops: LoopScenario) -> None:
    loops.slots = 1
    loops.create(item("a"), item("b"))
    loops.plan()
    loops.fails("a")
    assert loops.admitted() == ["b"]
    job_id = loops.item("a").job_id
    loops.scenario.end(f"{job_id}:1", "requeued")
    assert loops.item("a").state == "running"
    assert loops.admitted() == []  # it waits for the slot of b
    loops.passes("b")
    assert loops.admitted() == ["a"]
    assert loops.claim("a", 2).memory.count("json_invalid|$") == 0


def test_the_job_of_an_earlier_run_cannot_be_requeued(loops: LoopScenario) -> None:
    loops.create(item("a"))
    loops.plan()
    loops.fails("a")
    job_id = loops.item("a").job_id
    change.skip(loops.context, "alpha", "a", ADA)
    change.reset(loops.context, "alpha", "a", ADA)
    refused = loops.scenario.ledger.end_escalation(f"{job_id}:1", how="requeued", by="ada")
    assert isinstance(refused, ClaimRefused)
    assert loops.item("a").state == "pending"


def test_an_item_whose_job_is_gone_fails_at_the_next_plan(loops: LoopScenario) -> None:
    loops.create(item("a"))
    loops.plan()
    key = keys.job(loops.scenario.ledger.prefixes()[0], loops.item("a").job_id)
    loops.scenario.ledger.calls.run("DEL", key)
    loops.plan()
    assert (loops.item("a").state, loops.item("a").reason) == ("failed", "its job is gone")


def test_a_running_loop_is_looked_at_every_minute(loops: LoopScenario) -> None:
    loops.create(item("a"))
    loops.plan()
    assert str(hint()) not in loops.scenario.swept_entries()
    loops.scenario.advance(61)
    assert str(hint()) in loops.scenario.swept_entries()


# -- pausing and stopping --------------------------------------------------------------------------


def test_a_paused_loop_finishes_what_runs_and_starts_nothing(loops: LoopScenario) -> None:
    loops.create(item("a"), item("b", "a"))
    loops.plan()
    claim = loops.claim("a")
    loops.move("pause")
    loops.scenario.ledger.store_output(claim.lease, answer())
    loops.settle(claim, retries_immediately(claim))
    assert loops.admitted() == []
    assert loops.refusal("a", 2).reason == "paused"
    view = loops.scenario.view(loops.item("a").job_id)
    assert (view.state, view.waiting_for, view.waiting_behind) == ("waiting", "pause", "loop:alpha")
    loops.move("resume")
    assert loops.admitted() == ["a"]
    loops.claim("a", 2)


def test_the_time_in_a_pause_does_not_count_against_the_deadline(loops: LoopScenario) -> None:
    loops.create(item("a"))
    loops.plan()
    claim = loops.claim("a")
    loops.move("pause")
    loops.scenario.ledger.store_output(claim.lease, answer())
    loops.settle(claim, retries_immediately(claim))
    loops.scenario.advance(3 * 86400)
    loops.scenario.sweep()
    assert loops.item("a").state == "running"
    loops.move("resume")
    assert loops.admitted() == ["a"]
    loops.claim("a", 2)


def test_stopping_cancels_what_runs_and_starting_runs_it_again(loops: LoopScenario) -> None:
    loops.slots = 1
    loops.create(item("a"))
    loops.plan()
    claim = loops.claim("a")
    loops.move("stop")
    assert loops.scenario.view(claim.job_id).state == "cancelled"
    assert loops.scenario.ledger.renew([claim.lease]) == {claim.lease.entry}
    loops.move("start")
    assert loops.admitted() == []  # the worker may still run it
    loops.scenario.expire_leases()
    assert loops.admitted() == ["a"]
    assert loops.item("a").runs == 2


def test_cancelling_the_job_of_an_item_fails_the_item(loops: LoopScenario) -> None:
    loops.create(item("a"))
    loops.plan()
    loops.scenario.ledger.cancel(loops.item("a").job_id)
    assert (loops.item("a").state, loops.item("a").reason) == ("failed", "cancelled")


# -- the registry ----------------------------------------------------------------------------------


def test_creating_the_same_loop_twice_is_one_loop(loops: LoopScenario) -> None:
    made = document(item("a"))
    assert change.create_loop(loops.context, made, by="ada").status == "written"
    assert change.create_loop(loops.context, made, by="ada").status == "seen"
    with pytest.raises(LoopConflict, match="another loop"):
        change.create_loop(loops.context, document(item("b")), by="ada")
    assert [loop.name for loop in loops.scenario.ledger.loops()] == ["alpha"]


def test_items_can_be_added_to_a_completed_loop(loops: LoopScenario) -> None:
    loops.create(item("a"))
    loops.plan()
    loops.passes("a")
    loops.plan()
    change.inject(loops.context, "alpha", document(item("b", "a")).items, ADA)
    assert loops.admitted() == ["b"]
    assert loops.loop().state == "running"
    with pytest.raises(LoopConflict, match="the loop has b already"):
        change.inject(loops.context, "alpha", document(item("b")).items, ADA)


def test_a_change_with_an_idempotency_key_is_made_once(loops: LoopScenario) -> None:
    loops.create(item("a"))
    loops.plan()
    loops.fails("a")
    caller = Requester(by="ada", key="k1", digest="reset a")
    change.reset(loops.context, "alpha", "a", caller)
    loops.plan()
    loops.fails("a")
    change.reset(loops.context, "alpha", "a", caller)
    assert loops.item("a").state == "failed"
    with pytest.raises(LoopConflict, match="idempotency_key"):
        change.skip(loops.context, "alpha", "a", Requester(by="ada", key="k1", digest="skip a"))


def test_a_loop_that_has_not_ended_cannot_be_deleted(loops: LoopScenario) -> None:
    loops.create(item("a"))
    loops.plan()
    with pytest.raises(LoopConflict, match="stop it first"):
        change.delete(loops.context, "alpha", ADA)
    loops.move("stop")
    change.delete(loops.context, "alpha", ADA)
    with pytest.raises(NoSuchLoop):
        change.delete(loops.context, "alpha", ADA)
    prefix = loops.scenario.ledger.prefixes()[0]
    assert loops.scenario.ledger.calls.run("KEYS", f"{prefix}loop:*") == []


def test_a_repeated_deletion_has_been_done(loops: LoopScenario) -> None:
    loops.create(item("a"))
    loops.move("stop")
    caller = Requester(by="ada", key="k1", digest="delete alpha")
    change.delete(loops.context, "alpha", caller)
    change.delete(loops.context, "alpha", caller)
    with pytest.raises(NoSuchLoop):
        change.delete(loops.context, "alpha", Requester(by="bob", key="k1", digest="delete alpha"))


def test_another_loop_of_the_name_has_other_jobs(loops: LoopScenario) -> None:
    loops.create(item("a"))
    loops.plan()
    first = loops.item("a").job_id
    loops.move("stop")
    change.delete(loops.context, "alpha", ADA)
    loops.create(item("a"))
    loops.plan()
    assert loops.item("a").job_id != first


def test_a_record_of_an_item_is_small(loops: LoopScenario) -> None:
    name = "x" * 80
    loops.create(item(name))
    loops.plan()
    claim = loops.claim(name)
    loops.settle(claim, escalates(claim, "r" * 500))
    assert len(str(loops.item(name)).encode()) <= 200


def test_loops_live_in_the_first_partition(new_scenario: ScenarioMaker) -> None:
    loops = LoopScenario(new_scenario(partitions=3))
    loops.create(*(item(f"i{n}") for n in range(8)))
    loops.plan()
    jobs = [record.job_id for record in loops.read().snapshot.items.values()]
    assert {job_id.partition("-")[0] for job_id in jobs} == {"p00"}
    for n in range(8):
        loops.passes(f"i{n}")
    loops.plan()
    assert loops.loop().state == "completed"


def test_the_log_says_why_an_item_got_its_slot(loops: LoopScenario) -> None:
    loops.slots = 1
    loops.create(item("a"), name="alpha", priority=1)
    loops.create(item("b"), name="beta", priority=5)
    loops.plan("beta")
    notes = [note.note for note in loops.scenario.ledger.loop_log("beta")]
    assert notes[0] == "b got a slot: no other loop waits"
    loops.plan("alpha")
    loops.passes("b", name="beta")
    loops.create(item("c"), name="gamma", priority=5)
    loops.plan("gamma")
    notes = [note.note for note in loops.scenario.ledger.loop_log("alpha")]
    assert notes[0] == "a got a slot: priority 1 before gamma with 5"


def test_three_loops_share_two_slots_by_priority_and_weight(loops: LoopScenario) -> None:
    loops.slots = 2
    settings = {"first": (1, 1.0), "double": (5, 2.0), "single": (5, 1.0)}
    for name, (priority, weight) in settings.items():
        items = [item(f"{name}-{n:02}") for n in range(12)]
        loops.create(*items, name=name, priority=priority, weight=weight)
    order: list[str] = []
    for name in settings:  # every loop has said what is ready before the first item ends
        order += [each.loop for each in loops.plan(name).admitted]
    while live := loops.read("first").fleet.live:
        assert len(live) <= 2
        loops.passes(live[0].item, name=live[0].loop)
        order += [each.loop for each in loops.plan(live[0].loop).admitted]
    assert order[:12] == ["first"] * 12
    shared = order[12:30]
    assert (shared.count("double"), shared.count("single")) == (12, 6)
    assert set(order[30:]) == {"single"}
    notes = [each.note for each in loops.scenario.ledger.loop_log("first", limit=20)]
    assert sum("priority 1 before" in note for note in notes) >= 9
    notes = [each.note for each in loops.scenario.ledger.loop_log("single", limit=20)]
    assert any("share" in note and "before double with" in note for note in notes)


def test_an_entry_of_a_loop_is_read_as_it_is_written() -> None:
    assert Entry.parse(str(hint("a.b-c"))) == hint("a.b-c")
    assert hint("a.b-c").loop == "a.b-c"


@pytest.mark.parametrize(
    "name", ["b\u0301", "a\u200d", "a\u0661", "x:items", "a/b", "a\n", "", "a" * 81, "\u202ea"]
)
def test_only_plain_names_are_names_of_loops(loops: LoopScenario, name: str) -> None:
    """A name that could be created, but not addressed afterwards, would stay for ever."""
    with pytest.raises(ValidationError):
        loops.create(item("a"), name=name)
    assert loops.scenario.ledger.read_loop(name) is None


def test_one_tenant_cannot_take_the_place_of_all_others(loops: LoopScenario) -> None:
    for n in range(MOST_OF_TENANT):
        change.create_loop(
            loops.context, document(item("a"), name=f"a{n}"), tenant="acme", by="ada"
        )
    with pytest.raises(LoopConflict, match="too many loops"):
        change.create_loop(loops.context, document(item("a"), name="b"), tenant="acme", by="ada")
    change.create_loop(loops.context, document(item("a"), name="c"), tenant="zeta", by="ada")


@pytest.mark.parametrize("reason", ["a\x1b[2J", "two\nlines", "\u202e", "x" * 201])
def test_a_reason_is_one_short_plain_line(loops: LoopScenario, reason: str) -> None:
    loops.create(item("a"))
    with pytest.raises(BadInput, match="one line of at most 200"):
        change.skip(loops.context, "alpha", "a", ADA, reason=reason)


def test_a_limit_of_money_that_is_added_later_needs_every_price(loops: LoopScenario) -> None:
    own = {"kind": "scripted", "answers": ["other"]}
    loops.create(item("a"), item("b", runner=own))
    dear = RunnerSpec.model_validate(own)
    context = replace(loops.context, price=lambda runner: None if runner == dear else 0.1)
    with pytest.raises(BadInput, match="has no price"):
        change.configure(context, "alpha", {"budget": {"loop": {"money": 1}}}, ADA)


def test_deleting_a_loop_ends_what_a_person_requeued_meanwhile(loops: LoopScenario) -> None:
    loops.create(item("a"))
    loops.plan()
    loops.fails("a")
    job_id = loops.item("a").job_id
    loops.move("stop")
    loops.scenario.end(f"{job_id}:1", "requeued")
    change.delete(loops.context, "alpha", ADA)
    assert loops.scenario.view(job_id).state == "cancelled"
    loops.create(item("a"))
    assert loops.admitted() == ["a"]
    assert loops.claim("a").memory.count("json_invalid|$") == 0


def test_an_attempt_of_a_deleted_loop_is_not_charged_to_the_next_of_its_name(
    loops: LoopScenario,
) -> None:
    loops.create(item("a"), budget={"attempt": {"tokens": 50}, "loop": {"tokens": 100}})
    loops.plan()
    claim = loops.claim("a")
    loops.scenario.ledger.cancel(claim.job_id)
    loops.plan()
    change.delete(loops.context, "alpha", ADA)
    loops.create(item("a"))
    loops.scenario.ledger.store_output(claim.lease, answer(tokens=40))
    assert used(loops.read())["loop:tokens"] == 0
