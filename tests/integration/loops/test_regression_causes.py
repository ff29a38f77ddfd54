"""What is due to be verified again, and who is to blame, after more than one thing has happened."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.coding_loop import BRANCH, LOOP, CodingLoop, check, item, merges, push
from support.git_repositories import UserRepository, files_of, git
from support.inline_fleet import ADA
from support.regressions import BREAKS, Surroundings, chain, check_jobs, checks, found, settle

from mulligan.tasks.jobs import commit_check
from mulligan.tasks.loops.change import LoopConflict
from mulligan.tasks.loops.regressions import verify_loop
from mulligan.tasks.ports.ledger import Entry
from mulligan.workers.repositories.git_repository import GitRepository

pytestmark = pytest.mark.real_models("command")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return UserRepository.make(tmp_path / "user").path


@pytest.fixture
def fleet(tmp_path: Path, repository: Path) -> CodingLoop:
    return CodingLoop(tmp_path, repository)


def merge_of(fleet: CodingLoop, name: str) -> Entry:
    place = len(fleet.job(name).job.verifiers) - 1
    return Entry("verification", fleet.snapshot.items[name].job_id, 1, place)


def run_until_merges_wait(fleet: CodingLoop, *names: str) -> None:
    def all_wait() -> bool:
        running = all(fleet.states(LOOP)[name] == "running" for name in names)
        begun = [each.entry for each in fleet.waiting]
        return running and all(merge_of(fleet, name) in begun for name in names)

    fleet.run(until=all_wait)


def test_what_people_ask_for_adds_up_to_what_is_due(fleet: CodingLoop, repository: Path) -> None:
    """Given two requests before the sweep looks, then what a merge broke is found all the same."""
    git(repository, "branch", "release")
    code = BREAKS.replace('write("A.txt", "broken', 'write("B.txt", "broken')
    fleet.start(*chain("A", "B", "C", "BREAK"), code=code, deliver={"fast_forward": "release"})
    with pytest.raises(LoopConflict, match="no item has passed yet"):
        verify_loop(fleet.services.loops, LOOP, ADA)
    fleet.run()
    for name in "AC":
        verify_loop(fleet.services.loops, LOOP, ADA, item=name)
    settle(fleet)
    (first, *_) = reversed(check_jobs(fleet))
    assert len(first.job.verifiers) == 3 + 1, "A and C were asked for, and B is due"
    (regression,) = found(fleet)
    assert (regression.item, regression.culprit_item) == ("B", "BREAK")
    assert files_of(repository, "release")["B.txt"][1] == b"done\n"
    assert fleet.loop.regressions.asked == ()


def test_what_was_checked_for_a_person_is_not_checked_again_by_schedule(
    fleet: CodingLoop, repository: Path
) -> None:
    fleet.run_all(*chain("A", "B"), regressions={"every": "1h"})
    verify_loop(fleet.services.loops, LOOP, ADA)
    settle(fleet)
    assert checks(fleet) == 1
    log = fleet.loop.regressions
    assert log.full_commit == log.good_commit == git(repository, "rev-parse", BRANCH)
    fleet.wait(3700)
    settle(fleet)
    assert checks(fleet) == 1
    push(repository, "new.txt")
    fleet.wait(3700)
    settle(fleet)
    assert checks(fleet) == 2


def test_a_merge_that_was_undone_is_not_blamed_for_what_breaks_later(
    fleet: CodingLoop, repository: Path
) -> None:
    """Given work that broke an item, was undone and redone well, then the next one is blamed."""
    code = """
write(f"{item}.txt", "done\\n")
if item == "BREAK" and "undone" not in prompt: write("B.txt", "broken\\n")
if item == "D" and "undone" not in prompt: write("B.txt", "broken by D\\n")
"""
    later = [item(name, "B", priority=7) for name in ("X", "Y")]
    items = [item("B"), item("BREAK", "B"), *later]
    fleet.run_all(*items, code=code, regressions={"roll_back": True})
    settle(fleet)
    fleet.add(item("D"))
    fleet.run()
    settle(fleet)
    assert [(each.culprit_item, each.status) for each in found(fleet)] == [
        ("BREAK", "repaired"),
        ("D", "repaired"),
    ]
    assert merges(repository) == ["B", "BREAK", "X", "Y", "BREAK", "D", "D"]
    assert set(fleet.states(LOOP).values()) == {"passed"}


def test_what_was_mended_before_a_check_is_not_blamed(fleet: CodingLoop, repository: Path) -> None:
    """Given commits that break an item and mend it, and a check that found it good, then a third
    one that breaks it is blamed."""
    good = check(
        "has('A.txt') and (not has('bad') or has('fix')) and (not has('late') or has('ok'))"
    )
    code = "write(f'{item}.txt', 'done\\n')\nif 'Regression:' in prompt: write('ok', '')"
    touches = ["bad", "fix", "late"]
    fleet.run_all(item("A", verifiers=[good], touches=touches), code=code)
    for name in ("bad", "fix"):
        push(repository, name)
    fleet.wait(61)
    settle(fleet)
    assert found(fleet) == []
    late = push(repository, "late")
    fleet.wait(61)
    settle(fleet)
    (regression,) = found(fleet)
    assert (regression.culprit, regression.status) == (late, "repaired")
    assert regression.commits == 1


def test_an_item_that_was_merged_last_is_checked_as_every_other_one(
    fleet: CodingLoop, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given an item that fails where it was merged, then a person decides before a delivery."""
    git(repository, "branch", "release")
    rules = {"every": "1h"}
    fleet.start(item("A"), deliver={"fast_forward": "release"}, regressions=rules)
    fleet.run(until=lambda: fleet.states(LOOP) == {"A": "passed"})
    surroundings = Surroundings()
    surroundings.away = True
    monkeypatch.setattr(commit_check, "check_one", surroundings.check)
    fleet.clock.shift += 3700
    settle(fleet)
    (regression,) = found(fleet)
    assert (regression.status, regression.awaits_person) == ("escalated", True)
    assert regression.result == "it fails where it passed before: its surroundings have changed"
    assert [each.item for each in fleet.snapshot.heals] == ["A"]
    assert fleet.loop.delivered == ""


def test_what_landed_beside_another_group_is_verified_with_it(
    fleet: CodingLoop, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given work that lands between the verification of other work and its landing, and breaks it,
    then a person is told that it was not verified there."""
    git(repository, "branch", "release")
    alone = check("has('Y.txt') and not has('X.txt')")
    items = [item("Y", verifiers=[alone], touches=["Y.txt"]), item("X", touches=["X.txt"])]
    fleet.start(*items, item("Z", touches=["Z.txt"]), concurrency=3,
                deliver={"fast_forward": "release"})  # fmt: skip
    run_until_merges_wait(fleet, "X", "Y", "Z")
    fleet.step(merge_of(fleet, "Z"))
    real, landed = GitRepository.land, list[bool]()

    def land(self: GitRepository, *args: object, **options: object) -> object:
        if not landed:
            landed.append(True)
            fleet.step(merge_of(fleet, "X"))
        return real(self, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(GitRepository, "land", land)
    fleet.step(merge_of(fleet, "Y"))
    settle(fleet)
    assert merges(repository) == ["Z", "X", "Y"]
    (regression,) = found(fleet)
    assert (regression.item, regression.status) == ("Y", "escalated")
    assert regression.result.startswith("it fails where it was merged")
    assert fleet.loop.delivered == ""
    assert checks(fleet) == 1


def test_a_checkpoint_inside_a_batch_is_not_taken_for_good(
    fleet: CodingLoop, repository: Path
) -> None:
    """Given an item that is good only with what was merged after it in its batch, then what breaks
    it later is found."""
    good = check(
        "has('X.txt') and (not has('W.txt') or has('Y.txt')) and (not has('Z.txt') or has('ok'))"
    )
    code = "write(f'{item}.txt', 'done\\n')\nif 'Regression:' in prompt: write('ok', '')\n"
    broken = item("X", verifiers=[good], priority=2, touches=["*.txt"])
    fleet.start(item("W", priority=1), broken, item("Y", priority=3), code=code, concurrency=9)
    fleet.ledger.set_merge_window(LOOP, old=fleet.loop.merge_window, new=5)
    run_until_merges_wait(fleet, "W", "X", "Y")
    fleet.step(merge_of(fleet, "W"))
    assert merges(repository) == ["W", "X", "Y"]
    fleet.run()
    settle(fleet)
    assert checks(fleet) == 0, "it was verified at the end of its batch"
    fleet.add(item("Z"))
    fleet.run()
    settle(fleet)
    (regression,) = found(fleet)
    assert (regression.culprit_item, regression.status) == ("Z", "repaired")
    assert regression.commits == 1
