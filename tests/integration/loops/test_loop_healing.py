"""Loops that heal themselves: what gave up goes on in another way, and the record says how."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.coding_loop import (
    LOOP,
    CodingLoop,
    agent,
    check,
    check_merged,
    coding_document,
    item,
    merges,
)
from support.git_repositories import UserRepository, git
from support.inline_fleet import ADA

from mulligan.policies.loops.heal_record import HealRecord
from mulligan.tasks.loops import heal
from mulligan.tasks.loops.change import LoopConflict

#: An agent that does its item only after it was told about an earlier run.
NEEDS_ADVICE = """
if "An earlier run of this task did not pass" in prompt or item != "A":
    write(f'{item}.txt', 'done\\n')
else:
    write(f'{item}.txt', 'half\\n')
"""
#: An agent that never does the item A.
NEVER_A = "write(f'{item}.txt', 'half\\n' if item == 'A' else 'done\\n')"


pytestmark = pytest.mark.real_models("command")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return UserRepository.make(tmp_path / "user").path


@pytest.fixture
def fleet(tmp_path: Path, repository: Path) -> CodingLoop:
    return CodingLoop(tmp_path, repository)


def heals(fleet: CodingLoop) -> list[tuple[str, str, str, str]]:
    return [(h.item, h.action, h.parameter, h.outcome) for h in fleet.snapshot.heals]


def record(fleet: CodingLoop, action: str) -> HealRecord:
    return next(each for each in fleet.snapshot.heals if each.action == action)


def notes(fleet: CodingLoop) -> list[str]:
    return [each.note for each in fleet.ledger.loop_log(LOOP)]


def open_escalations(fleet: CodingLoop) -> int:
    return sum(each.open for each in fleet.ledger.groups())


def test_an_item_that_failed_runs_again_in_another_way(fleet: CodingLoop, repository: Path) -> None:
    """Given an agent that fails alike, when the loop may heal, then a changed strategy passes."""
    states = fleet.run_all(item("A"), item("B", "A"), code=NEEDS_ADVICE, auto_heal=True)
    assert states == {"A": "passed", "B": "passed"}
    assert heals(fleet) == [("A", "change_strategy", "fresh context", "passed")]
    assert "All 3 attempts failed in the same way" in record(fleet, "change_strategy").reason
    assert merges(repository) == ["A", "B"]
    assert open_escalations(fleet) == 0  # what was healed needs nobody
    assert any(note.startswith("A: change_strategy → passed") for note in notes(fleet))
    check_merged(fleet, repository)


def test_without_auto_heal_the_item_waits_for_a_person(fleet: CodingLoop) -> None:
    states = fleet.run_all(item("A"), item("B", "A"), code=NEEDS_ADVICE)
    assert states == {"A": "failed", "B": "blocked"}
    assert heals(fleet) == [("A", "escalate", "a person", "pending")]
    assert open_escalations(fleet) == 1


def test_a_stronger_runner_takes_over(fleet: CodingLoop, repository: Path) -> None:
    strong = agent("write(f'{item}.txt', 'done\\n')")
    states = fleet.run_all(
        item("A"), code=NEVER_A, auto_heal=["change_strategy", "escalate"], escalate_to=[strong]
    )
    assert states == {"A": "passed"}
    assert heals(fleet) == [
        ("A", "change_strategy", "fresh context", "failed"),
        ("A", "escalate", "command 1", "passed"),
    ]


def test_what_nothing_heals_is_escalated_with_an_analysis(fleet: CodingLoop) -> None:
    """Given an item that nobody can do, then every step is done once and a person is told."""
    states = fleet.run_all(
        item("A"), item("B", "A"), code=NEVER_A, auto_heal=["change_strategy", "escalate"]
    )
    assert states == {"A": "failed", "B": "blocked"}
    assert heals(fleet) == [
        ("A", "change_strategy", "fresh context", "failed"),
        ("A", "escalate", "a person", "pending"),
    ]
    advice = record(fleet, "escalate").advice
    assert "All 3 attempts failed in the same way" in advice
    assert "Tried so far:" in advice
    assert advice.endswith(f"Suggested: mulligan loops heal {LOOP} A --action split")
    fleet.wait(3600)
    assert len(heals(fleet)) == 2  # nothing is repeated


def test_dependents_go_on_without_what_cannot_be_healed(
    fleet: CodingLoop, repository: Path
) -> None:
    states = fleet.run_all(
        item("P"),
        item("A", "P"),
        item("B", "A"),
        code=NEVER_A,
        auto_heal=["change_strategy", "repair_dependency_chain", "escalate"],
        on_blocked="reroute",
    )
    assert states == {"P": "passed", "A": "failed", "B": "passed"}
    b = fleet.snapshot.spec("B")
    assert b is not None
    assert b.depends_on == ("P",)
    assert ("A", "repair_dependency_chain", "reroute", "passed") in heals(fleet)
    check_merged(fleet, repository)


def test_an_item_is_left_out_only_if_the_loop_names_that(fleet: CodingLoop) -> None:
    states = fleet.run_all(item("A"), item("B", "A"), code=NEVER_A, auto_heal=["skip"])
    assert states == {"A": "skipped", "B": "passed"}
    assert fleet.loop.state == "completed"


# -- split -----------------------------------------------------------------------------------------


def draft(first: dict[str, Any], second: dict[str, Any] | None = None) -> str:
    return json.dumps(
        {"first": first, "second": second or {"title": "", "prompt": "Item A: rest."}}
    )


def first_part(**fields: Any) -> dict[str, Any]:
    verifier = check("has('part.txt')")
    return {
        "title": "part",
        "prompt": "Item part: make part.txt.",
        "verifiers": [verifier],
        **fields,
    }


#: An agent that can do the parts, but not the whole.
ONLY_PARTS = """
if item == "part":
    write("part.txt", "done\\n")
elif has("part.txt"):
    write("A.txt", "done\\n")
"""


def test_an_item_is_split_into_two(fleet: CodingLoop, repository: Path) -> None:
    """Given an item that is too large, then a draft of two parts is made, checked and done."""
    answer = draft(first_part())
    code = f"""
if "Split it into two smaller tasks" in prompt:
    print({answer!r}); sys.exit()
{ONLY_PARTS}
if item == "B": write("B.txt", "done\\n")
"""
    # The item's name in the prompt of the draft is that of the task.
    whole = item("A", verifiers=[check("has('part.txt')"), check("read('A.txt') == 'done\\n'")])
    fleet.start(whole, item("B", "A"), code=code, auto_heal=["split"])
    fleet.run()
    for _ in range(5):
        fleet.wait(6)
    assert fleet.states(LOOP) == {"A": "skipped", "A.1": "passed", "A.2": "passed", "B": "passed"}
    assert fleet.snapshot.record("A").reason == "split into A.1, A.2"
    b = fleet.snapshot.spec("B")
    assert b is not None
    assert b.depends_on == ("A.2",)
    assert heals(fleet) == [("A", "split", "two parts", "passed")]
    assert merges(repository) == ["A.1", "A.2", "B"]


def test_the_guards_of_an_item_hold_for_its_first_part(fleet: CodingLoop, repository: Path) -> None:
    """Given a first part that breaks what the item must keep, then it is not merged."""
    code = f"""
if "Split it into two smaller tasks" in prompt:
    print({draft(first_part())!r}); sys.exit()
write("part.txt" if item == "part" else "A.txt", "half\\n")
write("broken.txt", "x\\n")
"""
    guard = check("not has('broken.txt')", role="guard")
    fleet.start(
        item("A", verifiers=[check("has('part.txt')"), guard]), code=code, auto_heal=["split"]
    )
    fleet.run()
    for _ in range(5):
        fleet.wait(6)
    assert fleet.states(LOOP)["A.1"] == "failed"
    assert merges(repository) == []


@pytest.mark.parametrize(
    ("first", "problem"),
    [
        (first_part(verifiers=[{"id": "text.match", "contains": "x"}]), "no check text.match"),
        (
            first_part(verifiers=[{"id": "command.subprocess", "argv": ["sh", "-c", "true"]}]),
            "may only run a program of the task's own checks",
        ),
        (
            first_part(verifiers=[check("has('part.txt')", role="guard")]),
            "every verifier is a guard",
        ),
    ],
)
def test_a_draft_that_is_no_valid_spec_is_made_again_and_then_refused(
    fleet: CodingLoop, first: dict[str, Any], problem: str
) -> None:
    code = f"""
if "Split it into two smaller tasks" in prompt:
    print({draft(first)!r}); sys.exit()
write("A.txt", "half\\n")
"""
    whole = item("A", verifiers=[check("has('part.txt')")])
    fleet.start(whole, code=code, auto_heal=["split", "escalate"])
    fleet.run()
    for _ in range(5):
        fleet.wait(6)
    refused = record(fleet, "split")
    assert refused.outcome == "refused"
    assert problem in refused.result
    job = fleet.ledger.job(refused.job_id)
    assert job is not None
    assert problem in (job.job.prompt or "")  # of the second draft
    assert heals(fleet)[-1][1:3] == ("escalate", "a person")


# -- rollback --------------------------------------------------------------------------------------


def test_a_broken_branch_goes_back_to_the_last_good_checkpoint(
    fleet: CodingLoop, repository: Path
) -> None:
    """Given a merge that breaks a guard of another item, then it is rolled back and done again."""
    code = """
if item == "A":
    write("A.txt", "done\\n")
    if not has("again.txt"): write("broken.txt", "x\\n")
else:
    write(f"{item}.txt", "done\\n")
"""
    guarded = item("B", "A")
    guarded["verifiers"] = [*guarded["verifiers"], check("not has('broken.txt')", role="guard")]
    fleet.start(item("A"), guarded, code=code, auto_heal=True)
    fleet.run()
    assert fleet.snapshot.record("B").reason.startswith("guard_fails_before")
    assert record(fleet, "rollback").outcome == "pending"
    fleet.sweep()
    assert not git(repository, "ls-tree", "mulligan/demo", "broken.txt")
    fleet.run(until=lambda: fleet.snapshot.record("A").state == "passed", most=50)
    assert merges(repository).count("A") == 2


def test_a_persons_commit_is_never_rolled_back_by_itself(
    fleet: CodingLoop, repository: Path
) -> None:
    guarded = item("B")
    guarded["verifiers"] = [*guarded["verifiers"], check("has('nothing')", role="guard")]
    fleet.run_all(guarded, auto_heal=True)
    assert record(fleet, "rollback").outcome == "refused"
    assert heals(fleet)[-1][1:3] == ("escalate", "a person")


# -- what loops learn from each other --------------------------------------------------------------


def test_a_failure_seen_in_one_loop_changes_what_another_one_tries_first(
    tmp_path: Path, repository: Path
) -> None:
    """Given a correction that helped none of three loops, then it is not the first of a fourth."""
    fleet = CodingLoop(tmp_path, repository)
    code = """
way = "done" if "in another way" in prompt else "half"
write(f"{item}.txt", f"{way}\\n")
"""
    for name in ("first", "second", "third"):
        fleet.create(coding_document(repository, item("A"), code=code, name=name))
        fleet.run()
    reading = fleet.ledger.read_loop("first")
    assert reading is not None
    job = fleet.ledger.job(reading.snapshot.record("A").job_id)
    assert job is not None
    plain = job.attempts[1].plan.technique
    assert [each.plan.technique for each in job.attempts] == [None, plain, f"{plain}+fresh_context"]
    assert fleet.run_all(item("A"), code=code) == {"A": "passed"}
    learned = fleet.job("A").attempts
    assert [each.plan.technique for each in learned] == [None, f"{plain}+fresh_context"]
    assert learned[1].plan.mode == "immediate_retry"


# -- people and orchestrators ----------------------------------------------------------------------


def test_people_heal_by_the_same_actions(fleet: CodingLoop) -> None:
    fleet.run_all(item("A"), item("B", "A"), code=NEEDS_ADVICE)
    loops = fleet.services.loops
    found = heal.analyse_item(loops, fleet.snapshot, "A")
    assert found.pattern == "same"
    command = heal.suggest(fleet.snapshot, "A", fleet.ledger.now())
    assert command == f"mulligan loops heal {LOOP} A --action change_strategy"
    made = heal.repair_dependency_chain(loops, LOOP, ADA)
    assert [(each.item, each.action, each.by) for each in made] == [("A", "change_strategy", "ada")]
    fleet.run()
    assert fleet.states(LOOP) == {"A": "passed", "B": "passed"}
    with pytest.raises(LoopConflict, match="A is passed: there is nothing to heal"):
        heal.unblock_test(loops, LOOP, "A", ADA)


def test_an_orchestrator_is_told_when_no_stronger_runner_is_left(fleet: CodingLoop) -> None:
    fleet.run_all(item("A"), code=NEVER_A)
    made = heal.escalate(fleet.services.loops, LOOP, "A", ADA, to_human=False)
    assert made.parameter == "the orchestrator"
    assert "Suggested: " in made.advice
