"""Batches of merges on real git, and once with real processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.coding_loop import (
    BRANCH,
    GOOD,
    LOOP,
    CodingLoop,
    check,
    check_merged,
    check_passed_means_merged,
    coding_document,
    has_line,
    item,
    merges,
    push,
)
from support.fleet import running_fleet
from support.git_repositories import UserRepository, files_of
from support.inline_fleet import ADA
from support.loop_hosts import CONTROL, work_pool
from support.waiting import wait_for

from mulligan.policies.coordination.locks import FileLock
from mulligan.policies.failures.failure import VerificationResult, VerificationStatus
from mulligan.policies.jobs.job import Output
from mulligan.tasks.jobs import verify
from mulligan.tasks.jobs.verify_merge import MergeVerification
from mulligan.tasks.loops.change import create_loop, move
from mulligan.tasks.ports.errors import RepositoryUnavailable, WorkspaceUnavailable
from mulligan.tasks.ports.ledger import Claim, Entry, LoopReading
from mulligan.tasks.ports.verifiers import Verifier
from mulligan.workers.ledger import loop_steps
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.repositories.git_repository import GitRepository

pytestmark = pytest.mark.real_models("command")

NAMES = ["A", "B", "C", "D", "E", "F"]
#: D breaks what A has made. The one of them that is merged second is asked again and mends it.
CLASH = f"""
{GOOD}
if item == "D":
    write("d.mode", "new\\n" if again else "old\\n")
if item == "A" and again:
    write("d.mode", "new\\n")
"""
TOGETHER = check("not (has('A.txt') and read('d.mode') == 'old\\n')", role="guard")


@pytest.fixture
def user(tmp_path: Path) -> UserRepository:
    return UserRepository.make(tmp_path / "user")


@pytest.fixture
def fleet(tmp_path: Path, user: UserRepository) -> CodingLoop:
    return CodingLoop(tmp_path, user.path)


def clashing(name: str) -> dict[str, object]:
    return item(name, verifiers=[has_line(f"{name}.txt", "done"), TOGETHER])


class _WorkerLost(BaseException):
    """The worker is killed."""


def begin_merges(fleet: CodingLoop, *items: dict[str, Any], code: str = GOOD) -> None:
    """Run a loop of these items until what runs at once waits for its merge."""
    fleet.start(*items, concurrency=len(items), code=code)

    def all_wait() -> bool:
        running = [name for name, state in fleet.states(LOOP).items() if state == "running"]
        begun = [each.entry for each in fleet.waiting]
        return bool(running) and all(merge_of(fleet, name) in begun for name in running)

    fleet.run(until=all_wait)


def merge_of(fleet: CodingLoop, name: str) -> Entry:
    place = len(fleet.job(name).job.verifiers) - 1
    return Entry("verification", fleet.snapshot.items[name].job_id, 1, place)


def landings(user: UserRepository) -> int:
    """Return how often the branch was moved after it was made."""
    return len(user.git("reflog", "show", BRANCH).splitlines()) - 1


def test_one_by_one_each_merge_lands_by_itself(
    fleet: CodingLoop, user: UserRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_steps, "MOST_WINDOW", 0)
    fleet.run_all(*map(item, NAMES), concurrency=6)
    assert landings(user) == len(NAMES)


def test_merges_that_wait_together_land_together(fleet: CodingLoop, user: UserRepository) -> None:
    states = fleet.run_all(*map(item, NAMES), concurrency=6)
    assert set(states.values()) == {"passed"}
    assert sorted(merges(user.path)) == NAMES
    assert landings(user) < len(NAMES) - 1
    assert fleet.loop.merge_window == 2 + landings(user)
    assert {len(fleet.job(name).attempts) for name in NAMES} == {1}
    check_merged(fleet, user.path)


def test_each_item_of_a_batch_is_a_checkpoint_that_can_be_rolled_back(
    fleet: CodingLoop, user: UserRepository
) -> None:
    fleet.run_all(*map(item, NAMES), concurrency=6)
    middle = merges(user.path)[3]
    fleet.roll_back(item=middle)
    assert sorted(files_of(user.path, BRANCH).keys() & {f"{name}.txt" for name in NAMES}) == [
        f"{name}.txt" for name in NAMES if name != middle
    ]
    fleet.run()
    check_merged(fleet, user.path)


def test_the_culprit_of_a_batch_is_found_and_corrected(
    fleet: CodingLoop, user: UserRepository
) -> None:
    states = fleet.run_all(*map(clashing, NAMES), code=CLASH, concurrency=6)
    assert set(states.values()) == {"passed"}
    attempts = {name: len(fleet.job(name).attempts) for name in NAMES}
    assert attempts == {**dict.fromkeys(NAMES, 1), "D": 2}
    assert "it passes alone, but not with" in fleet.results("D", 1)["git.merge"]
    assert landings(user) < len(NAMES)
    check_merged(fleet, user.path)


def test_a_check_that_fails_once_is_run_again_and_noted(
    fleet: CodingLoop, user: UserRepository
) -> None:
    """Given a check that fails the first time that it sees a merge of other work."""
    real, failed = verify.check_one, list[str]()

    def once(claim: Claim, output: Output, index: int, verifier: Verifier) -> VerificationResult:
        result = real(claim, output, index, verifier)
        is_guard = index == len(claim.job.verifiers) - 2
        work = fleet.ledger.job(claim.job_id)
        assert work is not None
        own = work.attempts[-1].output
        if is_guard and own is not None and output.commit != own.commit and not failed:
            failed.append(claim.job_id)
            return result.model_copy(update={"status": VerificationStatus.FAIL, "score": 0.0})
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify, "check_one", once)
        fleet.run_all(*map(item, NAMES), concurrency=6)
    assert len(failed) == 1
    assert {len(fleet.job(name).attempts) for name in NAMES} == {1}
    noted = [each for name in NAMES for each in fleet.warnings(name)]
    assert noted == ["command.subprocess failed, and passed when it ran again on the same files"]
    check_merged(fleet, user.path)


def test_work_that_cannot_be_read_is_left_out(
    fleet: CodingLoop, user: UserRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given an object of saved work that is lost until somebody brings it back."""
    real, lost = GitRepository.require, list[str | None]()

    def require(self: GitRepository, *ids: str) -> None:
        if any(each in lost for each in ids):
            raise RepositoryUnavailable("a commit is missing")
        real(self, *ids)

    monkeypatch.setattr(GitRepository, "require", require)
    begin_merges(fleet, *map(item, NAMES))
    output = fleet.job("A").attempts[-1].output
    assert output is not None
    lost.append(output.commit)
    fleet.run()
    assert fleet.states(LOOP) == {**dict.fromkeys(NAMES, "passed"), "A": "running"}
    lost.clear()
    fleet.wait(11)
    assert fleet.states(LOOP)["A"] == "passed"
    check_merged(fleet, user.path)


def test_work_whose_verifier_cannot_run_is_left_out(
    fleet: CodingLoop, user: UserRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given files of a verifier that are away until somebody brings them back."""
    real, away = verify.check_one, ["A"]

    def check_one(claim: Claim, output: Output, index: int, verifier: Verifier) -> Any:
        if claim.job.labels["item"] in away:
            raise WorkspaceUnavailable("its files are away")
        return real(claim, output, index, verifier)

    begin_merges(fleet, *map(item, NAMES))
    push(user.path, "user.txt")  # so that nothing lands without being verified
    with monkeypatch.context() as patch:
        patch.setattr(verify, "check_one", check_one)
        fleet.run()
    assert fleet.states(LOOP) == {**dict.fromkeys(NAMES, "passed"), "A": "running"}
    fleet.wait(11)
    assert fleet.states(LOOP)["A"] == "passed"
    check_merged(fleet, user.path)


def test_work_that_ends_its_worker_costs_others_nothing(
    fleet: CodingLoop, user: UserRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given work that ends the worker that verifies it with what was merged before."""
    real, ended = MergeVerification.verify, list[list[str]]()

    def verify_or_die(self: MergeVerification, claims: Sequence[Claim], **options: Any) -> Any:
        names = [each.job.labels["item"] for each in claims]
        if "D" in names:
            ended.append(names)
            raise _WorkerLost
        return real(self, claims, **options)

    begin_merges(fleet, *map(item, NAMES[:4]))
    monkeypatch.setattr(MergeVerification, "verify", verify_or_die)
    for _ in range(60):
        try:
            fleet.wait(fleet.settings.lease / 3)
        except _WorkerLost:
            continue
        if "running" not in fleet.states(LOOP).values():
            break
    states = {**dict.fromkeys(NAMES[:3], "passed"), "D": "quarantined"}
    assert fleet.states(LOOP) == states
    assert fleet.job("D").reason == "worker_lost"
    assert len([each for each in ended if each != ["D"]]) <= 1
    check_merged(fleet, user.path)


def test_work_whose_files_were_taken_before_stays_out(
    fleet: CodingLoop, user: UserRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given work that waited for its merge so long that another loop has its files."""
    real, taken = RedisLedger.read_loop, [True]

    def read_loop(ledger: RedisLedger, name: str) -> LoopReading | None:
        reading = real(ledger, name)
        if reading is None or not taken:
            return reading
        snapshot, locks = reading.snapshot, reading.fleet.locks
        other = FileLock(
            job_id="other", loop="other", item="X", space=snapshot.loop.space, files=("B.txt",)
        )
        kept = (each for each in locks if each.item != "B")
        return replace(reading, fleet=replace(reading.fleet, locks=(*kept, other)))

    items = [item(name, touches=[f"{name}.txt"]) for name in NAMES[:3]]
    begin_merges(fleet, *items, item("ABC", touches=["A.txt", "B.txt", "C.txt"]))
    with monkeypatch.context() as patch:
        patch.setattr(RedisLedger, "read_loop", read_loop)
        fleet.step(merge_of(fleet, "A"))
        assert merges(user.path) == ["A"], "B waits longest, and the window has two places"
    fleet.run()
    assert set(fleet.states(LOOP).values()) == {"passed"}
    check_merged(fleet, user.path)


def test_groups_that_touch_other_files_have_fences_of_their_own(
    fleet: CodingLoop, user: UserRepository
) -> None:
    items = [item(name, touches=[f"{name}.txt"]) for name in NAMES]
    assert set(fleet.run_all(*items, concurrency=6).values()) == {"passed"}
    fences = user.git("for-each-ref", "--format=%(refname)", "refs/mulligan/group-fence/")
    assert fences.splitlines() == [f"refs/mulligan/group-fence/{LOOP}/{name}" for name in NAMES]
    check_merged(fleet, user.path)


def test_what_lands_later_must_pass_with_what_has_landed_before(
    fleet: CodingLoop, user: UserRepository
) -> None:
    """Given two items of a batch that break the first one, then both stay out of it."""
    alone = check("not has('D.txt') and not has('E.txt')", role="guard")
    first = item("A", verifiers=[has_line("A.txt", "done"), alone], priority=1)
    others = [item(name, priority=n) for n, name in enumerate("DBE", 2)]
    begin_merges(fleet, first, *others)
    fleet.ledger.set_merge_window(LOOP, old=fleet.loop.merge_window, new=4)
    fleet.step(merge_of(fleet, "A"))
    assert merges(user.path) == ["A", "B"]
    assert fleet.loop.merge_window == 2, "half of what it was"


@pytest.mark.parametrize("who", ["a person", "another group"])
def test_what_meets_a_landing_in_between_is_verified_again(
    fleet: CodingLoop, user: UserRepository, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    """Given a commit between the verification and the landing that breaks what was verified."""
    code = f"{GOOD}\nwrite('shared.txt', 'of all\\n')"
    alone = check("has('Y.txt') and not has('X.txt')")
    begin_merges(
        fleet, item("Y", verifiers=[alone], touches=["Y.txt"]), item("X", touches=["X.txt"]),
        code=code,
    )  # fmt: skip
    real, landed = GitRepository.land, list[bool]()

    def land(self: GitRepository, *args: Any, **options: Any) -> Any:
        if not landed:
            landed.append(True)
            if who == "a person":
                push(user.path, "X.txt")
            else:
                fleet.step(merge_of(fleet, "X"))
        return real(self, *args, **options)

    monkeypatch.setattr(GitRepository, "land", land)
    fleet.step(merge_of(fleet, "Y"))
    assert merges(user.path) == ([] if who == "a person" else ["X"])


def test_a_fleet_lands_a_batch_and_finds_its_culprit(tmp_path: Path) -> None:
    """Six items pass at once on real workers; one of them breaks another one."""
    user = UserRepository.make(tmp_path / "user")
    with running_fleet(
        tmp_path / "fleet",
        pools=[CONTROL, work_pool(2, "one"), work_pool(2, "two")],
        repository_cache=tmp_path / "cache",
        lease=120.0,  # nobody dies here, and a busy computer renews late
    ) as fleet:
        loops = fleet.services.loops
        document = coding_document(
            user.path, *map(clashing, NAMES), code=CLASH, concurrency=6, max_attempts=3
        )
        create_loop(loops, document, by="ada")
        move(loops, LOOP, "start", ADA)

        def completed() -> bool:
            reading = fleet.ledger.read_loop(LOOP)
            assert reading is not None
            return reading.snapshot.loop.state == "completed"

        wait_for(completed, "the loop", seconds=400)
        reading = fleet.ledger.read_loop(LOOP)
        assert reading is not None
        check_passed_means_merged(loops, reading.snapshot)
        order = merges(user.path)
        assert sorted(order) == NAMES
        items = reading.snapshot.items
        views = {name: fleet.ledger.job(items[name].job_id) for name in NAMES}
        again = {name for name, view in views.items() if view and len(view.attempts) > 1}
        second = "D" if order.index("A") < order.index("D") else "A"
        assert {second} <= again <= {"A", "D"}
        assert files_of(user.path, BRANCH)["d.mode"][1] == b"new\n"
