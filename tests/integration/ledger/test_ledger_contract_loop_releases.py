"""The ledger's contract: loops that this release and the one before it plan on one ledger."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.ledger_scenario import Scenario
from support.loops import ADA, LoopScenario, document, item

from mulligan.policies.loops.spec import ItemSpec, LoopConfig
from mulligan.tasks.coordination import orders
from mulligan.tasks.loops import change
from mulligan.workers.ledger import keys
from mulligan.workers.ledger.stored.loop_rows import config_fields, read_config

PREFIX = "mulligan:{p00}:"
#: The fields of items and loops that the release before coordination can read (schema 5).
ITEM = {"id", "title", "prompt", "depends_on", "verifiers", "pass_criteria", "priority", "touches",
        "runner", "workspace", "task_type"}  # fmt: skip
LOOP = {"already_done", "auto_heal", "base", "branch", "budget", "concurrency", "deliver",
        "edits", "escalate_to", "max_attempts", "name", "on_blocked", "priority",
        "protect", "repo", "runner", "setup", "specs", "sync", "version", "weight",
        "workspace"}  # fmt: skip


@pytest.fixture
def loops(scenario: Scenario) -> LoopScenario:
    return LoopScenario(scenario)


def held(loops: LoopScenario) -> dict[str, tuple[str, ...]]:
    return {each.name: each.files for each in loops.scenario.ledger.coordination().locks}


def as_before(loops: LoopScenario, name: str) -> None:
    """Leave of a loop what the earlier release has written."""
    run = loops.scenario.ledger.calls.run
    row = keys.loop(PREFIX, name)
    run("HDEL", row, "space", "declared", "outer", "scored", "asks")
    run("DEL", f"{row}:files", f"{row}:urgent", f"{PREFIX}loops:locks")


def can_read(loops: LoopScenario, name: str) -> bool:
    """Whether the earlier release reads a loop: it refuses fields that it does not know."""
    run = loops.scenario.ledger.calls.run
    try:
        config = json.loads(run("HGET", keys.loop(PREFIX, name), "config"))
    except ValueError:
        return False
    items = json.loads(run("GET", f"{keys.loop(PREFIX, name)}:spec"))
    assert set(config) <= LOOP
    assert all(set(each) <= ITEM for each in items)
    assert not any("/" in other for each in items for other in each.get("depends_on", ()))
    return True


def gives_slots(loops: LoopScenario, name: str) -> bool:
    """Whether the earlier release, when it plans another loop, finds room in this one."""
    run = loops.scenario.ledger.calls.run
    return int(run("HGET", keys.loop(PREFIX, name), "concurrency")) > 0


# -- what the earlier release has written ----------------------------------------------------------


def test_loops_of_the_earlier_release_share_files_with_all_others(loops: LoopScenario) -> None:
    """Given one with an item that runs, and another loop that is planned first."""
    files = {"touches": ["x.py"]}
    loops.create(item("a", **files), item("b", **files), name="old", concurrency=3)
    loops.create(item("c", **files), name="older", concurrency=3)
    loops.plan("old")
    as_before(loops, "old")
    as_before(loops, "older")
    loops.create(item("n", **files), item("free"), name="new", concurrency=3)
    assert loops.admitted("new") == ["free"]
    assert held(loops) == {"old/a": ("x.py",)}
    assert loops.loop("old").space == loops.loop("new").space
    loops.passes("a", name="old")
    assert [each.name for each in loops.plan("new").admitted] == ["new/n"]


def test_items_that_the_earlier_release_adds_share_files_too(loops: LoopScenario) -> None:
    loops.create(item("a"), name="old", concurrency=3)
    loops.create(item("n", touches=["x.py"]), name="new", concurrency=3)
    loops.plan("new")
    more = document(item("b", touches=["x.py"])).items
    change.inject(loops.context, "old", more, ADA)
    run = loops.scenario.ledger.calls.run
    run("DEL", f"{keys.loop(PREFIX, 'old')}:files")
    run("HSET", keys.loop(PREFIX, "old"), "declared", "the address of the items before")
    loops.plan("new")
    assert loops.states("old") == {"a": "pending", "b": "pending"}
    assert loops.admitted("old") == ["a"]


def test_two_items_that_the_earlier_release_let_run_at_once_both_have_their_files(
    loops: LoopScenario,
) -> None:
    """It knows no files. Whoever comes next waits for both of them."""
    loops.create(*(item(name, touches=["x.py"]) for name in "ab"), name="old")
    orders.give_order(loops.context, "old", "b", "ignore_locks", ADA)
    assert loops.admitted("old") == ["a", "b"]
    as_before(loops, "old")
    loops.create(item("n", touches=["x.py"]), name="new")
    assert loops.admitted("new") == []
    assert held(loops) == {"old/a": ("x.py",), "old/b": ("x.py",)}
    tokens = {each.token for each in loops.read("new").fleet.locks}
    assert len(tokens) == 2
    assert tokens == {each.token for each in loops.read("new").fleet.locks}


# -- what the earlier release reads ----------------------------------------------------------------


def test_it_is_known_of_every_field_whether_the_earlier_release_reads_it() -> None:
    """A loop with another field is left to this release: see `config_fields`."""
    assert {*LoopConfig.model_fields} == {*LOOP, "regressions"}
    assert {*ItemSpec.model_fields} == {*ITEM, "emits", "waits_for"}


def test_the_earlier_release_plans_loops_that_use_nothing_new(loops: LoopScenario) -> None:
    loops.create(item("a", touches=["x.py"]), item("b", "a"), name="plain")
    loops.create(item("e", emits=["ev"]), name="emits")
    loops.plan("plain")
    loops.plan("emits")
    assert can_read(loops, "plain")
    assert gives_slots(loops, "plain")


@pytest.mark.parametrize(
    "fields",
    [{"emits": ["ev"]}, {"waits_for": ["ev"]}, {"depends_on": ["other/a"]}],
    ids=str,
)
def test_the_earlier_release_leaves_other_loops_alone(
    loops: LoopScenario, fields: dict[str, Any]
) -> None:
    """It shows none that it cannot read, and reads none for the slots of others."""
    loops.create(item("first"), name="new", concurrency=3)
    assert can_read(loops, "new")
    change.inject(loops.context, "new", document(item("a") | fields).items, ADA)
    loops.plan("new")
    assert not can_read(loops, "new")
    assert not gives_slots(loops, "new")
    assert loops.loop("new").config.concurrency == 3
    assert loops.states("new")["first"] == "running"
    change.create_loop(loops.context, document(item("a") | fields, name="made"), by="ada")
    assert not can_read(loops, "made")


def test_a_setting_that_the_earlier_release_does_not_know_is_left_to_this_one() -> None:
    plain = LoopConfig(name="a", repo="r", concurrency=3)
    assert config_fields(plain, ())["concurrency"] == 3
    fields = config_fields(plain.model_copy(update={"regressions": False}), ())
    assert fields["concurrency"] == -3
    assert not fields["config"].startswith("{")
    assert read_config(fields["config"]).regressions is False
