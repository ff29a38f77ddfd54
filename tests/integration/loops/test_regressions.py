"""Regressions: what passed and broke later is found, blamed on its culprit and repaired."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.coding_loop import (
    BRANCH,
    LOOP,
    CodingLoop,
    check,
    has_line,
    item,
    merges,
    push,
)
from support.git_repositories import UserRepository, git
from support.inline_fleet import ADA
from support.regressions import (
    BREAKS,
    Surroundings,
    chain,
    check_jobs,
    checks,
    found,
    settle,
)

from mulligan.policies.failures.failure import VerificationResult, VerificationStatus
from mulligan.policies.jobs.job import Output
from mulligan.policies.loops.loop import LoopChange
from mulligan.policies.regressions.bisect import most_steps
from mulligan.policies.regressions.record import MOST_ROUNDS, MOST_TRIES
from mulligan.tasks.jobs import commit_check, verify
from mulligan.tasks.loops.change import LoopConflict, change_loop, configure, skip
from mulligan.tasks.loops.regressions import RegressionSweep, verify_loop
from mulligan.tasks.loops.rollback import finish_rollback
from mulligan.tasks.ports.ledger import Claim
from mulligan.tasks.ports.verifiers import Verifier

pytestmark = pytest.mark.real_models("command")

#: An agent whose item B adds a line to the file of A, which is harmless.
TOUCHES = "write(f'{item}.txt', 'done\\n')\nif item == 'B': write('A.txt', 'done\\nmore\\n')"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return UserRepository.make(tmp_path / "user").path


@pytest.fixture
def fleet(tmp_path: Path, repository: Path) -> CodingLoop:
    return CodingLoop(tmp_path, repository)


def test_a_planted_regression_is_blamed_on_its_culprit_and_repaired(
    fleet: CodingLoop, repository: Path
) -> None:
    """Given a merge in the middle of others that breaks an item, then the item is done again."""
    names = ["A", "B", "C", "BREAK", "D", "E"]
    fleet.run_all(*chain(*names), code=BREAKS)
    settle(fleet)
    (regression,) = found(fleet)
    assert (regression.item, regression.culprit_item) == ("A", "BREAK")
    assert regression.commits == 5
    assert 1 <= regression.steps <= most_steps(5) == 3
    assert regression.status == "repaired"
    assert fleet.states(LOOP) == dict.fromkeys(names, "passed")
    assert merges(repository) == [*names, "A"]
    prompt = fleet.job("A").job.prompt or ""
    assert "Regression: this task was done before" in prompt
    assert "(item BREAK)" in prompt
    assert "-done\n+broken" in prompt
    assert fleet.loop.state == "completed"
    assert sum(each.open for each in fleet.ledger.groups()) == 0


def test_a_guard_that_broke_is_what_the_next_run_repairs(
    fleet: CodingLoop, repository: Path
) -> None:
    """Given a broken guard, then the run is not refused because a guard fails before the work."""
    guard = check("'bad' not in read('shared.txt')", role="guard")
    code = """
write(f"{item}.txt", "done\\n")
if item == "BREAK":
    write("shared.txt", "bad\\n")
if "Regression:" in prompt:
    write("shared.txt", "good\\n")
"""
    guarded = item("A", verifiers=[has_line("A.txt", "done"), guard], touches=["shared.txt"])
    fleet.run_all(guarded, item("BREAK", "A"), item("B", "BREAK"), code=code)
    settle(fleet)
    (regression,) = found(fleet)
    assert (regression.item, regression.culprit_item) == ("A", "BREAK")
    assert regression.status == "repaired"
    assert fleet.states(LOOP) == {"A": "passed", "BREAK": "passed", "B": "passed"}


def test_the_culprit_is_rolled_back_by_policy_and_runs_again(
    fleet: CodingLoop, repository: Path
) -> None:
    items = [item("A"), item("BREAK", "A"), item("C", "A")]
    fleet.run_all(*items, code=BREAKS, regressions={"roll_back": True})
    settle(fleet)
    (regression,) = found(fleet)
    assert regression.status == "repaired"
    assert (regression.culprit_item, regression.repairs) == ("BREAK", "BREAK")
    assert fleet.states(LOOP) == {"A": "passed", "BREAK": "passed", "C": "passed"}
    assert merges(repository) == ["A", "BREAK", "C", "BREAK"]
    prompt = fleet.job("BREAK").job.prompt or ""
    assert "broke A and was undone" in prompt
    guards = fleet.job("BREAK").job.verifiers[-1].options["guard"]
    assert len(guards) == 1, "the item that broke is a guard of the new run"


def test_what_cannot_be_rolled_back_alone_is_repaired_where_it_broke(
    fleet: CodingLoop, repository: Path
) -> None:
    """Given later work on the same lines as the culprit's."""
    code = """
write(f"{item}.txt", "done\\n")
if "Regression:" in prompt:
    write("A.txt", "done\\n")
elif item == "BREAK":
    write("A.txt", "broken\\n")
elif item == "LATER":
    write("A.txt", "broken in another way\\n")
"""
    items = [item("A"), item("BREAK"), item("LATER")]
    fleet.run_all(*items, code=code, regressions={"roll_back": True})
    settle(fleet)
    (regression,) = found(fleet)
    assert (regression.status, regression.culprit_item) == ("repaired", "BREAK")
    assert regression.repairs == "A"
    assert merges(repository) == ["A", "BREAK", "LATER", "A"]


def test_a_commit_of_a_person_is_named_and_never_undone(
    fleet: CodingLoop, repository: Path
) -> None:
    fleet.run_all(item("A", verifiers=[check("has('A.txt') and not has('new.txt') or has('ok')")],
                       touches=["new.txt"]),
                  code=f"{'write(chr(65) + chr(46) + chr(116) + chr(120) + chr(116), chr(10))'}\n"
                       "if 'Regression:' in prompt: write('ok', '')",
                  regressions={"roll_back": True})  # fmt: skip
    commit = push(repository, "new.txt")
    fleet.wait(61)
    settle(fleet)
    (regression,) = found(fleet)
    assert (regression.culprit, regression.culprit_kind) == (commit, "other")
    assert (regression.status, regression.repairs) == ("repaired", "A")
    assert "a commit that is no work of the loop" in (fleet.job("A").job.prompt or "")


def test_a_failure_that_does_not_repeat_blames_nobody(
    fleet: CodingLoop, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a check that fails the first time it is run again."""
    runs = list[str]()

    def flaky(claim: Claim, output: Output, index: int, verifier: Verifier) -> VerificationResult:
        result = verify.check_one(claim, output, index, verifier)
        runs.append(output.commit or "")
        status = VerificationStatus.FAIL if len(runs) == 1 else result.status
        return result.model_copy(update={"status": status})

    monkeypatch.setattr(commit_check, "check_one", flaky)
    fleet.run_all(item("A"), item("B", "A", touches=["A.txt"]), code=TOUCHES)
    settle(fleet)
    (regression,) = found(fleet)
    assert (regression.item, regression.status, regression.culprit) == ("A", "flake", "")
    assert len(runs) == 2, "the failure was repeated once, and nothing else was checked"
    assert merges(repository) == ["A", "B"]


def test_what_is_repaired_meanwhile_is_said(fleet: CodingLoop, repository: Path) -> None:
    """Given a person who repairs the branch while the culprit is searched."""
    good = check("has('A.txt') and (not has('bad.txt') or has('fix.txt'))")
    one = item("A", verifiers=[good], touches=["bad.txt"])
    code = "write(f'{item}.txt', 'done\\n')\nif item == 'BREAK': write('bad.txt', '')"
    fleet.run_all(one, item("BREAK"), item("C"), code=code)
    fleet.sweep()  # begins the check
    fleet.run()
    fleet.sweep()  # reads it
    assert [each.status for each in found(fleet)] == ["bisecting"]
    push(repository, "fix.txt")
    settle(fleet)
    (regression,) = found(fleet)
    assert (regression.status, regression.culprit_item) == ("repaired", "BREAK")
    assert regression.result == "the newest commit is good again"
    assert merges(repository) == ["A", "BREAK", "C"]


def test_items_that_break_each_other_end_with_a_person(fleet: CodingLoop, repository: Path) -> None:
    """Given two items of which only one can be good, then none of them is merged in turn."""
    code = "write(f'{item}.txt', 'done\\n')\nwrite('owner.txt', f'{item}\\n')"
    one = item("A", verifiers=[has_line("owner.txt", "A")])
    two = item("B", "A", verifiers=[has_line("owner.txt", "B")])
    fleet.run_all(one, two, code=code)
    for _ in range(3):
        settle(fleet)
        fleet.wait(61)
    assert fleet.states(LOOP) == {"A": "failed", "B": "passed"}
    assert merges(repository) == ["A", "B"]
    assert [(e.item, e.parameter) for e in fleet.snapshot.heals] == [("A", "a person")]


def test_an_item_that_is_broken_again_and_again_ends_with_a_person(
    fleet: CodingLoop, repository: Path
) -> None:
    """Given somebody who breaks the same item after each repair."""
    code = "n = prompt.count('x')\nwrite(f'{item}.txt', 'done\\n')\nfor n in range(9):\n"
    code += "    if has(f'bad{n}'): write(f'ok{n}', '')"
    good = check("has('A.txt') and all(has(f'ok{n}') or not has(f'bad{n}') for n in range(9))")
    fleet.run_all(item("A", verifiers=[good], touches=["bad*"]), code=code)
    for number in range(MOST_ROUNDS + 1):
        push(repository, f"bad{number}")
        fleet.wait(61)
        settle(fleet)
    statuses = [each.status for each in found(fleet)]
    assert statuses == [*["repaired"] * MOST_ROUNDS, "escalated"]
    (told,) = fleet.snapshot.heals
    assert (told.item, told.action, told.parameter) == ("A", "escalate", "a person")
    made = checks(fleet)
    fleet.wait(61)
    settle(fleet)
    assert checks(fleet) == made, "nothing is tried again"
    runs = fleet.snapshot.items["A"].runs
    push(repository, "bad8")  # it is checked again, and is still broken
    fleet.wait(61)
    settle(fleet)
    assert fleet.snapshot.items["A"].runs == runs
    assert len(found(fleet)) == MOST_ROUNDS + 1, "nobody is told again"
    verify_loop(fleet.services.loops, LOOP, ADA, item="A")  # a person wants it to be tried again
    settle(fleet)
    assert fleet.snapshot.items["A"].runs == runs + 1
    assert [each.status for each in found(fleet)][-1] == "repaired"


def test_a_delivery_waits_for_what_is_due(fleet: CodingLoop, repository: Path) -> None:
    git(repository, "branch", "release")
    config = {"deliver": {"fast_forward": "release"}}
    start = fleet.services.repository_sweep
    fleet.run_all(*chain("A", "BREAK"), code=BREAKS, **config)
    start.deliver()
    assert fleet.loop.delivered == "", "what the last merge touched is not verified yet"
    settle(fleet)
    assert fleet.loop.regressions.found[0].status == "repaired"
    start.deliver()
    assert fleet.loop.delivered


def test_a_check_that_somebody_cancelled_is_made_again(fleet: CodingLoop, repository: Path) -> None:
    """Given a check that is lost, then what it was about is not called verified."""
    git(repository, "branch", "release")
    fleet.run_all(*chain("A", "BREAK"), code=BREAKS, deliver={"fast_forward": "release"})
    fleet.sweep()
    running = fleet.loop.regressions.check
    assert running is not None
    fleet.ledger.cancel(running.job_id)
    settle(fleet)
    assert found(fleet)[0].status == "repaired"
    assert "done" in git(repository, "show", "release:A.txt")


def test_what_cannot_be_verified_any_more_is_not_delivered(
    fleet: CodingLoop, repository: Path
) -> None:
    """Given a culprit that removes the program that would find it, then a person decides."""
    git(repository, "branch", "release")
    code = """
write(f"{item}.txt", "done\\n")
if item == "A": write("check", "#!/bin/sh\\nexec grep -qsx done A.txt\\n"); os.chmod("check", 0o755)
if item == "BREAK" : os.remove("check"); write("A.txt", "broken\\n")
"""
    argv = {"id": "command.subprocess", "argv": ["./check"]}
    items = [item("A", verifiers=[check("has('A.txt')"), argv], touches=["A.txt", "check"])]
    items += [item(name, before) for name, before in (("X", "A"), ("BREAK", "X"))]
    fleet.run_all(*items, code=code, deliver={"fast_forward": "release"})
    settle(fleet)
    (told,) = found(fleet)
    assert (told.item, told.status, told.awaits_person) == ("A", "escalated", True)
    assert "could not be verified" in told.result
    assert [each.item for each in fleet.snapshot.heals] == ["A"]
    assert fleet.loop.delivered == ""
    made = checks(fleet)
    verify_loop(fleet.services.loops, LOOP, ADA, item="A")
    settle(fleet)
    assert checks(fleet) == made + 1 + MOST_TRIES
    assert [each.awaits_person for each in found(fleet)] == [False, True]
    assert fleet.loop.delivered == ""


def test_every_item_is_verified_by_schedule_once_for_a_commit(
    fleet: CodingLoop, repository: Path
) -> None:
    rules = {"every": "1h", "after_merge": False}
    fleet.run_all(*chain("A", "BREAK", "C"), code=BREAKS, regressions=rules)
    settle(fleet)
    assert checks(fleet) == 0
    fleet.wait(3700)
    settle(fleet)
    assert found(fleet)[0].status == "repaired"
    for _ in range(2):
        made = checks(fleet)
        fleet.wait(3700)
        settle(fleet)
    assert checks(fleet) == made, "the same commit is not checked again"


def test_a_person_asks_for_a_check(fleet: CodingLoop, repository: Path) -> None:
    off = {"after_merge": False}
    fleet.run_all(*chain("A", "BREAK"), code=BREAKS, regressions=off)
    settle(fleet)
    assert found(fleet) == []
    verify_loop(fleet.services.loops, LOOP, ADA, item="A")
    settle(fleet)
    assert [each.status for each in found(fleet)] == ["repaired"]
    configure(fleet.services.loops, LOOP, {"regressions": False}, ADA)
    with pytest.raises(LoopConflict, match="regressions"):
        verify_loop(fleet.services.loops, LOOP, ADA)
    assert BRANCH in fleet.loop.config.target


def test_checks_leave_no_escalation_cycle_or_figure_of_failure(
    fleet: CodingLoop, repository: Path
) -> None:
    fleet.run_all(*chain("A", "BREAK"), code=BREAKS)
    settle(fleet)
    made = check_jobs(fleet)
    assert {each.state for each in made} == {"succeeded"}
    assert not any(each.cycles for each in made)
    assert all(each.job.runner.kind == "scripted" and not each.tokens for each in made)
    assert sum(each.open for each in fleet.ledger.groups()) == 0


class Died(Exception):
    """The sweep's process ends here."""


@pytest.mark.parametrize("roll_back", [False, True])
def test_a_sweep_may_die_at_every_step_and_be_doubled(
    fleet: CodingLoop, repository: Path, roll_back: bool
) -> None:
    """Given sweeps that die before and after each write in turn, then nothing is done twice."""
    names = ["A", "B", "BREAK", "C"]
    fleet.run_all(*chain(*names), code=BREAKS, regressions={"roll_back": roll_back})
    died = list[tuple[str, int]]()

    def step(name: str, _loop: str) -> None:
        place = (name, fleet.loop.version)
        if name.startswith(("regression_", "rollback_")) and place not in died:
            died.append(place)
            raise Died

    dies = replace(fleet.services.loops, step=step)
    for _ in range(80):
        reading = fleet.ledger.read_loop(LOOP)
        assert reading is not None
        with suppress(Died):
            RegressionSweep(dies).advance(reading)
        # A second one decides from the same reading, and writes nothing.
        RegressionSweep(fleet.services.loops).advance(reading)
        with suppress(Died):
            finish_rollback(dies, LOOP)
        fleet.run()
    (regression,) = found(fleet)
    assert (regression.item, regression.culprit_item) == ("A", "BREAK")
    assert regression.status == "repaired"
    assert fleet.states(LOOP) == dict.fromkeys(names, "passed")
    assert len(died) >= 10
    # Of the checks of one step, one was made.
    assert checks(fleet) <= 2 + regression.steps + 1


def test_a_check_survives_its_worker(fleet: CodingLoop, repository: Path) -> None:
    """Given a worker that dies with the check in its hands, then another one makes it."""
    fleet.run_all(*chain("A", "BREAK"), code=BREAKS)
    fleet.sweep()
    (message,) = [each for each in fleet.waiting if each.entry.kind == "attempt"]
    claim = fleet.ledger.claim(message.entry, worker="dies")
    assert isinstance(claim, Claim)
    fleet.waiting.clear()
    fleet.wait(fleet.settings.lease + 1)
    settle(fleet)
    assert [each.status for each in found(fleet)] == ["repaired"]
    assert fleet.states(LOOP) == {"A": "passed", "BREAK": "passed"}


def test_an_item_that_a_person_skips_holds_nothing_up(fleet: CodingLoop, repository: Path) -> None:
    git(repository, "branch", "release")
    fleet.run_all(*chain("A", "BREAK"), code=BREAKS, deliver={"fast_forward": "release"})
    for _ in range(10):
        fleet.sweep()
        if fleet.states(LOOP)["A"] == "pending":
            skip(fleet.services.loops, LOOP, "A", ADA)
        fleet.run(until=lambda: fleet.loop.regressions.repaired_by("A") is not None)
    settle(fleet)
    assert [(each.status, each.result) for each in found(fleet)] == [("gone", "A was skipped")]
    fleet.wait(61)
    fleet.sweep()
    assert fleet.loop.delivered


@pytest.fixture
def surroundings(monkeypatch: pytest.MonkeyPatch) -> Surroundings:
    found = Surroundings()
    monkeypatch.setattr(commit_check, "check_one", found.check)
    return found


@pytest.mark.parametrize("roll_back", [False, True])
def test_what_fails_where_it_passed_before_blames_nobody(
    fleet: CodingLoop, repository: Path, surroundings: Surroundings, roll_back: bool
) -> None:
    """Given checks that fail at every commit, then no work is undone or done again."""
    names = ["A", "B", "C", "D"]
    fleet.run_all(*chain(*names), regressions={"roll_back": roll_back})
    settle(fleet)
    surroundings.away = True
    verify_loop(fleet.services.loops, LOOP, ADA, item="A")
    settle(fleet)
    (regression,) = found(fleet)
    assert (regression.status, regression.culprit) == ("escalated", "")
    assert regression.result == "it fails where it passed before: its surroundings have changed"
    assert regression.steps == 2 <= most_steps(3) + 1
    assert merges(repository) == names
    (told,) = fleet.snapshot.heals
    assert (told.item, told.parameter) == ("A", "a person")


@pytest.mark.parametrize("way", ["verified", "run again"])
def test_nothing_is_delivered_while_a_person_must_decide(
    fleet: CodingLoop, repository: Path, surroundings: Surroundings, way: str
) -> None:
    """Given an escalated item, then it must pass again before the loop is delivered."""
    git(repository, "branch", "release")
    rules: dict[str, Any] = {
        "deliver": {"fast_forward": "release"},
        "regressions": {"after_merge": False},
    }
    fleet.start(item("A"), item("B"), **rules)
    fleet.run(until=lambda: fleet.states(LOOP) == {"A": "passed", "B": "passed"})
    surroundings.away = True
    verify_loop(fleet.services.loops, LOOP, ADA, item="A")
    settle(fleet)
    fleet.wait(61)
    fleet.sweep()
    assert [each.status for each in found(fleet)] == ["escalated"]
    assert fleet.loop.delivered == ""
    surroundings.away = False
    if way == "verified":
        verify_loop(fleet.services.loops, LOOP, ADA, item="A")
    else:
        fleet.roll_back(item="A")
    settle(fleet)
    fleet.wait(61)
    fleet.sweep()
    assert [each.status for each in found(fleet)] == ["escalated"]
    assert fleet.loop.delivered


@pytest.mark.parametrize("times", [1, 9])
def test_a_check_without_a_verdict_is_repeated(
    fleet: CodingLoop, repository: Path, times: int
) -> None:
    """Given checks that somebody cancels, then what is broken is not forgotten or delivered."""
    git(repository, "branch", "release")
    names = ["A", "B", "BREAK", "C", "D"]
    fleet.run_all(*chain(*names), code=BREAKS, deliver={"fast_forward": "release"})
    cancelled = list[str]()
    for _ in range(20):
        fleet.sweep()
        searching = fleet.loop.regressions.searching
        if searching and searching.job_id and len(cancelled) < times:
            fleet.ledger.cancel(searching.job_id)
            cancelled.append(searching.probe)
        fleet.run()
    settle(fleet)
    fleet.wait(61)
    fleet.sweep()
    (regression,) = found(fleet)
    if times == 1:
        assert (regression.status, regression.culprit_item) == ("repaired", "BREAK")
        assert fleet.loop.delivered
    else:
        assert (len(cancelled), len({*cancelled})) == (1 + MOST_TRIES, 1)
        assert regression.status == "escalated"
        assert regression.result == f"{cancelled[0][:10]} could not be checked"
        assert fleet.loop.delivered == ""


@pytest.mark.parametrize("state", ["running", "skipped"])
def test_a_refused_rollback_leaves_an_item_that_was_changed_meanwhile(
    fleet: CodingLoop, repository: Path, state: str
) -> None:
    """Given a person who rolls the broken item back first, then it is not reopened once more."""
    fleet.run_all(item("A"), item("BREAK", "A"), code=BREAKS, regressions={"roll_back": True})
    for _ in range(20):
        if fleet.loop.rollback:
            break
        reading = fleet.ledger.read_loop(LOOP)
        assert reading is not None
        RegressionSweep(fleet.services.loops).advance(reading)
        fleet.run(until=lambda: bool(fleet.loop.rollback))
    assert [each.status for each in found(fleet)] == ["rolling_back"]
    refused = LoopChange(rollback="", note="the rollback was not possible")
    change_loop(fleet.services.loops, LOOP, ADA, lambda _found, _now: refused)
    fleet.roll_back(item="A")
    if state == "skipped":
        skip(fleet.services.loops, LOOP, "A", ADA)
    else:
        fleet.run(until=lambda: fleet.states(LOOP)["A"] == "running")
    reading = fleet.ledger.read_loop(LOOP)
    assert reading is not None
    RegressionSweep(fleet.services.loops).advance(reading)
    assert fleet.states(LOOP)["A"] == state
    assert [each.status for each in found(fleet)] == ["gone"]


def test_a_check_ends_when_no_item_has_passed_any_more(fleet: CodingLoop, repository: Path) -> None:
    git(repository, "branch", "release")
    fleet.start(item("A"), deliver={"fast_forward": "release"})
    fleet.run(until=lambda: fleet.states(LOOP) == {"A": "passed"})
    verify_loop(fleet.services.loops, LOOP, ADA, item="A")
    fleet.services.repository_sweep.run()
    assert fleet.loop.regressions.check is not None
    fleet.roll_back(item="A")
    skip(fleet.services.loops, LOOP, "A", ADA)
    settle(fleet)
    assert fleet.loop.regressions.check is None
    fleet.wait(61)
    fleet.sweep()
    assert fleet.loop.delivered
