"""Loops on a git repository: real git, real confinement, agents of a few lines.

Here: what people do with the loop and its branch, and what must never be done to them.
"""

from __future__ import annotations

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
    coding_document,
    has_line,
    item,
    merges,
    push,
)
from support.git_repositories import UserRepository, add_hook, files_of, write
from support.inline_fleet import ADA
from support.jobs import read_job

from mulligan.console.cli.loops.loop_screen import print_loops
from mulligan.console.http.models.loop_models import row
from mulligan.policies.loops.spec import LoopConfig
from mulligan.tasks.jobs.attempt import run_attempt
from mulligan.tasks.jobs.outcome import Requeued
from mulligan.tasks.jobs.submit import submit_jobs
from mulligan.tasks.loops.change import LoopConflict, check_loop, move, repository_problems
from mulligan.tasks.loops.registry import list_loops, read_log
from mulligan.tasks.loops.repository_sweep import RepositorySweep
from mulligan.tasks.loops.rollback import preview_rollback, read_checkpoints, request_rollback
from mulligan.tasks.loops.view import why
from mulligan.tasks.loops.work_views import item_diff
from mulligan.tasks.ports.errors import BadInput, RepositoryUnavailable
from mulligan.tasks.ports.ledger import Entry

pytestmark = pytest.mark.real_models("command")

HOOKS = (
    "applypatch-msg", "commit-msg", "fsmonitor-watchman", "post-checkout", "post-commit",
    "post-index-change", "post-merge", "post-receive", "post-rewrite", "post-update", "pre-commit",
    "pre-merge-commit", "pre-push", "pre-receive", "prepare-commit-msg", "proc-receive",
    "push-to-checkout", "reference-transaction", "update",
)  # fmt: skip


@pytest.fixture
def user(tmp_path: Path) -> UserRepository:
    return UserRepository.make(tmp_path / "user")


@pytest.fixture
def fleet(tmp_path: Path, user: UserRepository) -> CodingLoop:
    return CodingLoop(tmp_path, user.path)


def names(user: UserRepository, commit: str = BRANCH) -> set[str]:
    """Return the files that a commit has and the user's branch has not."""
    return files_of(user.path, commit).keys() - files_of(user.path, "main").keys()


# -- rollback --------------------------------------------------------------------------------------


def test_a_rollback_to_a_checkpoint_reopens_what_came_later(
    fleet: CodingLoop, user: UserRepository
) -> None:
    items = [item("A"), item("B", "A"), item("C", "B")]
    assert fleet.run_all(*items) == dict.fromkeys("ABC", "passed")
    before = user.git("rev-parse", BRANCH)
    merged = {each.item: each for each in read_checkpoints(fleet.services.loops, fleet.snapshot)}
    fleet.roll_back(to=merged["A"].commit[:12])
    assert names(user) == {"A.txt"}
    assert user.git("merge-base", "--is-ancestor", before, BRANCH) == ""
    assert fleet.states(LOOP)["A"] == "passed"
    check_merged(fleet, user.path)
    fleet.run()
    assert fleet.states(LOOP) == dict.fromkeys("ABC", "passed")
    assert fleet.loop.state == "completed"
    assert names(user) == {"A.txt", "B.txt", "C.txt"}
    assert merges(user.path) == ["A", "B", "C", "B", "C"]
    check_merged(fleet, user.path)


def test_a_rollback_may_only_bring_work_back(fleet: CodingLoop, user: UserRepository) -> None:
    """Given a rollback, after which nothing was merged: going back before it undoes nothing."""
    fleet.run_all(item("A"), item("B"))
    tip = user.git("rev-parse", BRANCH)
    fleet.roll_back(item="B")
    plan = preview_rollback(fleet.services.loops, fleet.snapshot, to=tip)
    assert (plan.items, plan.brought_back) == ([], ["B"])
    fleet.roll_back(to=tip)
    assert read_log(fleet.services.loops, LOOP, limit=1)[0].note == "brought back: B"
    fleet.run()
    assert fleet.states(LOOP) == dict.fromkeys("AB", "passed")
    assert merges(user.path) == ["A", "B"]
    check_merged(fleet, user.path)


def test_a_rollback_says_which_commits_of_others_it_removes_and_brings_back(
    fleet: CodingLoop, user: UserRepository
) -> None:
    fleet.run_all(item("A"))
    first = user.git("rev-parse", f"{BRANCH}^")
    pushed = push(user.path, "user.txt")
    fleet.roll_back(to=first)
    notes = [each.note for each in read_log(fleet.services.loops, LOOP, limit=2)]
    assert notes == [
        f"rolled back: A; also removed 1 commit of others: {pushed[:10]}",
        f"rollback to {first[:10]} requested",
    ]
    assert names(user) == set()
    fleet.roll_back(to=pushed)
    (note, *_) = (each.note for each in read_log(fleet.services.loops, LOOP, limit=1))
    assert note == f"brought back: A; also brought back 1 commit of others: {pushed[:10]}"
    assert names(user) == {"A.txt", "user.txt"}
    fleet.run()
    check_merged(fleet, user.path)


def test_an_item_whose_earlier_work_comes_back_is_named_once(
    fleet: CodingLoop, user: UserRepository
) -> None:
    """Given B, which was undone and merged again, and a rollback to its first merge."""
    fleet.run_all(item("A"), item("B"))
    tip = user.git("rev-parse", BRANCH)
    fleet.roll_back(item="B")
    fleet.run()
    assert merges(user.path) == ["A", "B", "B"]
    plan = preview_rollback(fleet.services.loops, fleet.snapshot, to=tip)
    assert (plan.items, plan.brought_back) == ([], ["B"])
    fleet.roll_back(to=tip)
    fleet.run()
    assert fleet.states(LOOP) == dict.fromkeys("AB", "passed")
    check_merged(fleet, user.path)


def test_a_rollback_says_which_attempts_it_ends(fleet: CodingLoop) -> None:
    fleet.start(item("A"), item("B", "A"), item("C"))
    fleet.run(until=lambda: fleet.states(LOOP) == {"A": "passed", "B": "running", "C": "passed"})
    plan = preview_rollback(fleet.services.loops, fleet.snapshot, item="A")
    assert (plan.items, plan.interrupted) == (["A"], ["B"])
    fleet.roll_back(item="A")
    assert fleet.states(LOOP)["B"] == "pending"


def test_a_rollback_of_one_item_takes_its_dependents_along(
    fleet: CodingLoop, user: UserRepository
) -> None:
    items = [item("A"), item("B", "A"), item("C", "B"), item("D")]
    fleet.run_all(*items)
    fleet.roll_back(item="B")
    assert names(user) == {"A.txt", "D.txt"}
    check_merged(fleet, user.path)
    fleet.run()
    assert fleet.states(LOOP) == dict.fromkeys("ABCD", "passed")
    assert sorted(merges(user.path)) == ["A", "B", "B", "C", "C", "D"]
    with pytest.raises(LoopConflict, match="no item"):
        request_rollback(fleet.services.loops, LOOP, ADA, item="X")
    check_merged(fleet, user.path)


def test_an_attempt_in_flight_does_not_bring_back_what_was_rolled_back(
    fleet: CodingLoop, user: UserRepository
) -> None:
    fleet.run_all(item("A"), item("B"))
    fleet.add(item("C"))
    count = len(fleet.outcomes)
    fleet.run(until=lambda: len(fleet.outcomes) > count)
    fleet.roll_back(item="B")
    assert names(user) == {"A.txt"}
    fleet.run(until=lambda: fleet.states(LOOP)["C"] == "passed")
    history = user.git("log", "--format=%s", "--first-parent", "-3", BRANCH).splitlines()
    assert fleet.states(LOOP)["C"] == "passed", history
    fleet.run()
    assert fleet.states(LOOP) == dict.fromkeys("ABC", "passed")
    check_merged(fleet, user.path)


def test_an_item_that_was_rolled_back_and_is_done_by_others_is_skipped(
    fleet: CodingLoop, user: UserRepository
) -> None:
    """Its old merge is undone, so it must not count as merged."""
    either = item("A", verifiers=[check("has('A.txt') or has('B.txt')")])
    assert fleet.run_all(either, item("B")) == {"A": "passed", "B": "passed"}
    fleet.roll_back(item="A")
    fleet.run()
    assert fleet.states(LOOP) == {"A": "skipped", "B": "passed"}
    assert names(user) == {"B.txt"}
    check_merged(fleet, user.path)


def test_an_item_whose_work_is_on_the_branch_is_not_reset(
    fleet: CodingLoop, user: UserRepository
) -> None:
    """Unless somebody has moved the branch: then it is done again."""
    fleet.run_all(item("A"))
    with pytest.raises(LoopConflict, match=f"mulligan loops rollback {LOOP} --item A"):
        fleet.reset("A")
    assert fleet.states(LOOP) == {"A": "passed"}
    user.git("update-ref", f"refs/heads/{BRANCH}", "main")
    fleet.reset("A")
    fleet.run()
    assert fleet.states(LOOP) == {"A": "passed"}
    assert names(user) == {"A.txt"}
    check_merged(fleet, user.path)


# -- what people see of work that is not merged ----------------------------------------------------


def test_the_work_of_a_stopped_attempt_can_be_seen(fleet: CodingLoop) -> None:
    """Also during the next run, which has saved nothing yet."""
    fleet.start(item("A"), code="write('half.txt', 'half')")
    assert item_diff(fleet.services.loops, fleet.snapshot, "A") is None
    fleet.run(until=lambda: bool(fleet.outcomes))
    move(fleet.services.loops, LOOP, "stop", ADA)
    for verb in ("stop", "start"):
        move(fleet.services.loops, LOOP, verb, ADA)
        found = item_diff(fleet.services.loops, fleet.snapshot, "A")
        assert found is not None
        assert [each.path for each in found.changes] == ["half.txt"]
        assert (found.merged, found.attempt) == (False, 1)
        fleet.run(until=lambda: fleet.states(LOOP) == {"A": "running"})


def test_of_a_failed_item_the_best_attempt_is_seen(fleet: CodingLoop) -> None:
    code = "write('worse.txt' if again else 'half.txt', '')\nif again: os.remove('half.txt')"
    checks = [check("has('half.txt')"), check("has('A.txt')")]
    states = fleet.run_all(item("A", verifiers=checks), code=code, max_attempts=2)
    assert states == {"A": "failed"}
    assert len(fleet.job("A").attempts) == 2
    found = item_diff(fleet.services.loops, fleet.snapshot, "A")
    assert found is not None
    assert ([each.path for each in found.changes], found.attempt) == (["half.txt"], 1)


# -- delivery --------------------------------------------------------------------------------------


def test_a_completed_loop_moves_another_branch_forward(
    fleet: CodingLoop, user: UserRepository
) -> None:
    user.git("branch", "release")
    fleet.start(item("A"), deliver={"fast_forward": "release"})
    fleet.sweep()
    assert "A.txt" not in names(user, "release")
    fleet.run()
    fleet.sweep()
    assert user.git("rev-parse", "release") == user.git("rev-parse", BRANCH)
    assert fleet.loop.delivered == user.git("rev-parse", BRANCH)
    before = user.git("rev-parse", "release")
    fleet.roll_back(item="A")
    fleet.clock.shift += 120
    fleet.sweep()  # before anybody has planned the loop again
    assert user.git("rev-parse", "release") == before
    fleet.run()
    fleet.clock.shift += 120
    fleet.sweep()
    assert user.git("rev-parse", "release") == user.git("rev-parse", BRANCH)


def test_a_branch_that_is_checked_out_is_delivered_later(
    fleet: CodingLoop, user: UserRepository
) -> None:
    before = user.state()
    fleet.run_all(item("A"), deliver={"fast_forward": "main"})
    fleet.sweep()
    assert fleet.loop.delivery_problem == (
        f"main is checked out in {user.path}: switch to another branch there"
    )
    assert user.state() == before
    user.git("switch", "-q", "-c", "mine")
    fleet.clock.shift += 120
    fleet.sweep()
    assert user.git("rev-parse", "main") == user.git("rev-parse", BRANCH)
    assert (fleet.loop.delivery_problem, fleet.loop.delivered) == (
        "",
        user.git("rev-parse", BRANCH),
    )


@pytest.mark.parametrize("sync", ["release", None])
def test_a_branch_that_moved_is_delivered_when_somebody_has_merged(
    fleet: CodingLoop,
    user: UserRepository,
    sync: str | None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Given new commits in the branch to deliver to, with which nothing was verified."""
    monkeypatch.setenv("COLUMNS", "300")
    user.git("branch", "release")
    fleet.run_all(item("A"), deliver={"fast_forward": "release"}, sync=sync)
    user.git("switch", "-q", "release")
    user.commit({"other.txt": "other\n"})
    user.git("switch", "-q", "main")
    fleet.sweep()
    problem = (
        f"release has commits that {BRANCH} does not have: merge {BRANCH} into release yourself"
    )
    if sync:
        problem += ", or add an item: its merge takes them over if both pass together"
    assert fleet.loop.delivery_problem == problem
    reason = why(fleet.services.loops, LOOP)
    assert (reason.cause, problem in reason.text) == ("delivery", True)
    (listed,) = list_loops(fleet.services.loops)
    assert row(listed).delivery_problem == problem
    print_loops([listed])
    assert "not delivered: release has commits" in " ".join(capsys.readouterr().out.split())
    if sync:
        fleet.add(item("B"))
        fleet.run()
    else:
        user.git("switch", "-q", "release")
        user.git("merge", "-q", "--no-edit", BRANCH)
    fleet.clock.shift += 120
    fleet.sweep()
    assert (fleet.loop.delivery_problem, fleet.loop.delivered) == (
        "",
        user.git("rev-parse", BRANCH),
    )
    assert names(user, "release") >= {"A.txt", "other.txt"}
    assert why(fleet.services.loops, LOOP).cause == "done"


def test_a_conflict_with_upstream_is_in_the_log_once(
    fleet: CodingLoop, user: UserRepository
) -> None:
    user.git("branch", "release")
    code = f"{GOOD}\nwrite('a.txt', 'ours\\n')"
    fleet.run_all(item("A"), code=code, sync="release", deliver={"fast_forward": "release"})
    user.git("switch", "-q", "release")
    user.commit({"a.txt": "theirs\n"})
    user.git("switch", "-q", "main")
    for _ in range(3):
        # Each time another process: one that was restarted, or another control worker.
        sweep = RepositorySweep(fleet.services.loops)
        sweep.run()
        sweep.deliver()
        fleet.clock.shift += 1200
    notes = [each.note for each in read_log(fleet.services.loops, LOOP, limit=50)]
    said = f"release is not merged into {BRANCH} (sync): they conflict in a.txt. Merge it there"
    assert len([each for each in notes if each.startswith(said)]) == 1
    assert fleet.loop.delivery_problem == (
        f"release has commits that {BRANCH} does not have and conflicts with it in a.txt: merge"
        f" {BRANCH} into release yourself"
    )


def test_a_branch_without_the_work_is_reported_and_not_delivered(
    fleet: CodingLoop, user: UserRepository
) -> None:
    """Given a branch that somebody moved back, then nothing is delivered until the work is back."""
    user.git("branch", "release")
    fleet.run_all(item("A"), item("B", "A"), deliver={"fast_forward": "release"})
    work = user.git("rev-parse", BRANCH)
    user.git("update-ref", f"refs/heads/{BRANCH}", "main")
    fleet.sweep()
    problem = (
        f"A and 1 more passed, but the work is not on {BRANCH}: bring the branch back, or reset the"
        " items"
    )
    assert (fleet.loop.delivery_problem, fleet.loop.delivered) == (problem, "")
    notes = [each.note for each in read_log(fleet.services.loops, LOOP, limit=10)]
    assert problem in notes
    user.git("update-ref", f"refs/heads/{BRANCH}", work)
    fleet.clock.shift += 1200
    fleet.sweep()
    assert (fleet.loop.delivery_problem, fleet.loop.delivered) == ("", work)
    assert user.git("rev-parse", "release") == work


def test_a_command_delivers_a_completed_loop(fleet: CodingLoop, user: UserRepository) -> None:
    code = "import os, sys; names = [os.environ[each] for each in ('LOOP', 'BRANCH', 'COMMIT')]\n"
    code += "sys.exit(' '.join([*names, open('A.txt').read()]))"
    fleet.run_all(item("A"), deliver={"command": ["python3", "-c", code]})
    fleet.sweep()
    tip = user.git("rev-parse", BRANCH)
    assert fleet.loop.delivery_problem == f"python3 exited with code 1: {LOOP} {BRANCH} {tip} done"
    assert not fleet.loop.delivered


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"argv": ["sh", "-c", "exit 3"], "timeout": "6s"}, "sh exited with code 3: "),
        ({"argv": ["true"], "timeout": "soon"}, "[commands.publish] of mulligan.toml: timeout: "),
        ({"timeout": 6}, "[commands.publish] of mulligan.toml: argv: "),
    ],
)
def test_a_configured_command_delivers_within_its_time(
    tmp_path: Path, user: UserRepository, options: dict[str, Any], problem: str
) -> None:
    fleet = CodingLoop(tmp_path, user.path, commands={"publish": options})
    fleet.run_all(item("A"), deliver={"command": "publish"})
    fleet.sweep()
    assert fleet.loop.delivery_problem.startswith(problem)


@pytest.mark.parametrize("error", [KeyError("x"), RepositoryUnavailable("/srv/shop is away")])
def test_an_error_of_one_delivery_holds_up_no_other(
    fleet: CodingLoop, user: UserRepository, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """Given two loops, of which the first one to be looked at cannot be delivered."""
    fleet.run_all(item("A"), deliver={"command": ["true"]})
    fleet.create(coding_document(user.path, item("A"), name="later", deliver={"command": ["true"]}))
    fleet.run()
    first, second = [each.name for each in fleet.ledger.loops()]

    def deliver(config: LoopConfig, _commit: str) -> str:
        if config.name == first:
            raise error
        return ""

    sweep = RepositorySweep(replace(fleet.services.loops, run_delivery=deliver))
    for _ in range(3):
        sweep.deliver()
        fleet.clock.shift += 120
    found = {each.name: each for each in fleet.ledger.loops()}
    assert found[second].delivered
    assert not found[first].delivered
    assert "the logs of the control workers say more" in found[first].delivery_problem
    assert "/srv" not in found[first].delivery_problem
    notes = [each.note for each in read_log(fleet.services.loops, first, limit=20)]
    assert len([each for each in notes if each.startswith("not delivered")]) == 1
    assert len([each for each in caplog.messages if first in each]) == 1


def test_a_delivery_is_made_once_and_tried_again_after_a_while(
    fleet: CodingLoop, user: UserRepository
) -> None:
    fleet.run_all(item("A"), deliver={"command": ["true"]})
    problems, runs = ["no network", "no network", ""], list[str]()

    def deliver(_config: LoopConfig, commit: str) -> str:
        runs.append(commit)
        return problems[len(runs) - 1]

    sweep = RepositorySweep(replace(fleet.services.loops, run_delivery=deliver))
    counts = []
    for seconds in (0, 2, 2, 120, 2, 120, 2, 120):
        fleet.clock.shift += seconds
        sweep.deliver()
        counts.append(len(runs))
    assert counts == [1, 1, 1, 2, 2, 3, 3, 3]
    assert runs == [user.git("rev-parse", BRANCH)] * 3
    assert fleet.loop.delivered == runs[0]


def test_work_that_is_taken_back_before_its_merge_is_recorded_is_done_again(
    fleet: CodingLoop, user: UserRepository
) -> None:
    """Given a merge of an earlier run, which a run finds, when a rollback takes it back."""
    fleet.start(item("Z"), item("A", "Z", verifiers=[check("has('A.txt')")]))
    fleet.run(until=lambda: fleet.states(LOOP)["Z"] == "passed")
    before = user.git("rev-parse", BRANCH)
    push(user.path, "A.txt", f"A\n\nMulligan-Attempt: p00-old/1\nMulligan-Item: {LOOP}/A\n")
    fleet.run(until=lambda: [each.entry.index for each in fleet.waiting] == [2])
    fleet.roll_back(to=before)
    fleet.run()
    assert fleet.states(LOOP) == {"Z": "passed", "A": "passed"}
    check_merged(fleet, user.path)
    first, second = fleet.job("A").attempts
    assert first.verdict is not None
    assert first.verdict.failure is not None
    assert first.verdict.failure.label == "missing_context.rolled_back"
    assert "a rollback has taken it back" in (second.plan.prompt or "")


def test_a_loop_that_went_on_is_delivered_as_soon_as_it_is_done_again(
    fleet: CodingLoop, user: UserRepository
) -> None:
    """Given a loop that is behind its branch, when an item takes that over, then nothing waits."""
    user.git("branch", "release")
    fleet.run_all(item("A"), sync="release", deliver={"fast_forward": "release"})
    user.git("switch", "-q", "release")
    user.commit({"theirs.txt": "x\n"})
    user.git("switch", "-q", "main")
    fleet.sweep()
    assert fleet.loop.delivery_problem
    fleet.add(item("B"))
    fleet.run()
    assert (fleet.loop.state, fleet.loop.delivery_problem) == ("completed", "")
    for _ in range(5):  # what the merge touched is verified before the delivery
        fleet.sweep()
        fleet.run()
    assert fleet.loop.delivered == user.git("rev-parse", "release")


def test_a_delivery_that_takes_long_is_not_begun_twice(
    fleet: CodingLoop, user: UserRepository
) -> None:
    """Given two control workers: the second one looks while the first one delivers, and later."""
    fleet.run_all(item("A"), deliver={"command": ["true"]})
    runs = list[str]()

    def deliver(_config: LoopConfig, commit: str) -> str:
        runs.append(commit)
        fleet.clock.shift += 120
        second.deliver()
        return ""

    loops = replace(fleet.services.loops, run_delivery=deliver)
    first, second = RepositorySweep(loops), RepositorySweep(loops)
    first.deliver()
    second.deliver()
    assert runs == [user.git("rev-parse", BRANCH)] == [fleet.loop.delivered]


def test_a_delivery_whose_process_was_lost_is_made_after_its_time(fleet: CodingLoop) -> None:
    fleet.run_all(item("A"), deliver={"command": ["true"]})

    def lose(_config: LoopConfig, _commit: str) -> str:
        raise SystemExit

    with pytest.raises(SystemExit):
        RepositorySweep(replace(fleet.services.loops, run_delivery=lose)).deliver()
    fleet.sweep()
    assert not fleet.loop.delivered
    fleet.clock.shift += 700
    fleet.sweep()
    assert fleet.loop.delivered


# -- retention -------------------------------------------------------------------------------------


def test_old_work_and_its_transcripts_are_forgotten(
    fleet: CodingLoop, user: UserRepository
) -> None:
    """Given an item whose first attempt changed nothing, and so has only a transcript."""
    fleet.run_all(item("A"), code=f"print('hello')\nif again:\n    {GOOD}")

    def refs() -> list[str]:
        kinds = ("refs/mulligan/attempts", "refs/mulligan/transcripts")
        return user.git("for-each-ref", "--format=%(refname)", *kinds).splitlines()

    assert len(refs()) == 3
    fleet.clock.shift += fleet.settings.work_retention - 100
    fleet.sweep()
    assert len(refs()) == 3
    fleet.clock.shift += 700
    fleet.sweep()
    assert refs() == []
    assert names(user) == {"A.txt"}


def test_the_work_of_an_item_that_is_not_done_is_kept(
    fleet: CodingLoop, user: UserRepository
) -> None:
    fleet.run_all(item("A"), code="write('half.txt', 'half')", max_attempts=2)
    fleet.clock.shift += 2 * fleet.settings.work_retention
    fleet.sweep()
    assert user.git("for-each-ref", "refs/mulligan/attempts") != ""


# -- the user's repository -------------------------------------------------------------------------


def test_nothing_of_the_user_is_touched(
    fleet: CodingLoop, user: UserRepository, tmp_path: Path
) -> None:
    """Given staged, changed and new files, hooks and a configuration of the user."""
    marker = tmp_path / "ran"
    for name in HOOKS:
        add_hook(user.path / ".git", name, f"echo {name} >> {marker}")
    for key, value in {
        "core.fsmonitor": f"echo fsmonitor >> {marker}",
        "filter.mine.clean": f"echo clean >> {marker}; cat",
        "filter.mine.smudge": f"echo smudge >> {marker}; cat",
        "filter.mine.required": "true",
        "merge.mine.driver": f"echo merge >> {marker}; exit 1",
        "diff.mine.textconv": f"echo textconv >> {marker}; cat",
        "core.autocrlf": "true",
        "commit.gpgsign": "true",
        "gc.auto": "1",
    }.items():
        user.git("config", key, value)
    write(user.path / ".git" / "info", {"attributes": "* filter=mine merge=mine diff=mine\n"})
    write(user.path, {"a.txt": "staged\n"})
    user.git("-c", "core.fsmonitor=false", "add", "a.txt")
    write(user.path, {"a.txt": "changed\n", "new.txt": "new\n"})
    marker.unlink(missing_ok=True)
    before, attributes = files_and_git(user), (user.path / ".git/info/attributes").read_bytes()
    code = f"{GOOD}\nwrite('a.txt', f'{{item}}\\n' if again else 'no\\n')"
    items = [item(name, verifiers=[has_line("a.txt", name)]) for name in "AB"]
    fleet.run_all(*items, code=code, concurrency=2)
    fleet.roll_back(item=merges(user.path)[-1])
    fleet.sweep()
    assert files_and_git(user) == before
    assert (user.path / ".git/info/attributes").read_bytes() == attributes
    assert not marker.exists(), marker.read_text()


def files_and_git(user: UserRepository) -> dict[str, bytes]:
    """Return every file of a user except objects and the references of mulligan."""
    found = {}
    for path in sorted(user.path.rglob("*")):
        name = str(path.relative_to(user.path))
        ours = ("mulligan/" in name or ".git/objects/" in name) and ".git/" in name
        if path.is_file() and not ours:
            found[name] = path.read_bytes()
    return found


def test_a_branch_that_is_checked_out_meanwhile_is_waited_for(
    fleet: CodingLoop, user: UserRepository, tmp_path: Path
) -> None:
    fleet.start(item("A"))
    fleet.run(until=lambda: bool(fleet.outcomes))
    user.git("worktree", "add", "-q", str(tmp_path / "mine"), BRANCH)
    fleet.run()
    assert fleet.states(LOOP) == {"A": "running"}
    fleet.wait(60)
    assert fleet.states(LOOP) == {"A": "running"}
    assert not (tmp_path / "mine" / "A.txt").exists()
    user.git("worktree", "remove", str(tmp_path / "mine"))
    fleet.wait(60)
    assert fleet.states(LOOP) == {"A": "passed"}
    assert len(fleet.job("A").attempts) == 1
    check_merged(fleet, user.path)


def test_a_branch_that_is_checked_out_is_refused(fleet: CodingLoop, user: UserRepository) -> None:
    user.git("switch", "-q", "-c", BRANCH)
    (problem,) = repository_problems(
        fleet.services.loops, coding_document(user.path, item("A")).loop
    )
    assert problem.path == ("branch",)
    assert f"{BRANCH} is checked out in {user.path}" in problem.message


def test_what_an_agent_sets_up_for_git_runs_nothing(
    fleet: CodingLoop, user: UserRepository, tmp_path: Path
) -> None:
    """Given an agent that would have the worker's git run something outside of its confinement."""
    marker = tmp_path / "ran"
    code = f"""
{GOOD}
run = "#!/bin/sh\\nid >> {marker}\\nexec cat\\n"
for name in {HOOKS!r}:
    write(f".git/hooks/{{name}}", run)
    os.chmod(f".git/hooks/{{name}}", 0o755)
write("run.sh", run)
os.chmod("run.sh", 0o755)
here = os.getcwd()
for key in ("core.fsmonitor", "core.hooksPath", "filter.x.clean", "filter.x.smudge",
            "filter.x.process", "core.sshCommand", "core.pager", "diff.external", "merge.x.driver",
            "gpg.program", "core.editor", "core.alternateRefsCommand", "credential.helper"):
    value = here + ("/.git/hooks" if key == "core.hooksPath" else "/run.sh")
    subprocess.run(["git", "config", key, value], check=True)
subprocess.run(["git", "config", "commit.gpgsign", "true"])
write(".git/info/attributes", "* filter=x merge=x diff=x\\n")
write(".gitattributes", "* filter=x merge=x diff=x\\n")
write(".git/objects/info/alternates", "/etc\\n")
"""
    items = [item("A"), item("B")]
    assert fleet.run_all(*items, code=code, concurrency=2)["A"] == "passed"
    fleet.sweep()
    assert not marker.exists(), marker.read_text()
    assert user.git("config", "--list", "--local").count("x.") == 0


# -- other ways to use a repository ----------------------------------------------------------------


def test_a_plain_job_is_verified_in_a_commit(fleet: CodingLoop, user: UserRepository) -> None:
    """Its commit is that of its reference when it was submitted."""
    user.git("switch", "-q", "-c", "feature")
    commit = user.commit({"feature.txt": "yes\n"})
    user.git("switch", "-q", "main")
    checks = [
        has_line("a.txt", "new"),
        has_line("feature.txt", "yes"),
        check("not has('later.txt') and not has('.git')"),
    ]
    del checks[-1]["role"]  # only items have roles
    job = {
        "task_type": "plain",
        "prompt": "Write it.",
        "runner": {"kind": "scripted", "answers": ["new\n"]},
        "workspace": {"git": str(user.path), "ref": "feature", "output_file": "a.txt"},
        "verifiers": checks,
    }
    (accepted,) = submit_jobs(fleet.services.intake, [read_job(job)])
    user.git("switch", "-q", "feature")
    user.commit({"later.txt": "later\n"})
    fleet.run()
    view = fleet.ledger.job(accepted.id)
    assert view is not None
    assert (view.state, view.detail) == ("succeeded", None)
    assert view.job.workspace is not None
    assert view.job.workspace.commit == commit
    assert user.git("for-each-ref", "refs/mulligan") == ""


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"workspace": {"branch": "main"}}, "workspace.branch: only a loop with a repo has a"),
        ({"workspace": {"commit": "0" * 40}}, "workspace.commit: is found when the work is"),
        (
            {"workspace": {"ref": "refs/mulligan/fence/x"}},
            "workspace.ref: refs/mulligan/fence/x is",
        ),
        ({"verifiers": ["json.object", "git.diff"]}, "verifiers[1]: git.diff belongs to the items"),
    ],
)
def test_a_plain_job_has_nothing_of_a_loop(
    fleet: CodingLoop, user: UserRepository, fields: dict[str, Any], problem: str
) -> None:
    user.git("update-ref", "refs/mulligan/fence/x", "main")
    job = {
        "task_type": "plain",
        "prompt": "Write it.",
        "runner": {"kind": "scripted", "answers": ["{}"]},
        "verifiers": fields.get("verifiers", ["json.object"]),
        "workspace": {"git": str(user.path), **fields.get("workspace", {})},
    }
    with pytest.raises(BadInput) as refused:
        submit_jobs(fleet.services.intake, [read_job(job)])
    assert [str(each).startswith(problem) for each in refused.value.problems] == [True]


def test_a_path_that_another_host_may_not_have_is_refused(
    fleet: CodingLoop, user: UserRepository
) -> None:
    loops = replace(fleet.services.loops, host="here", worker_hosts=lambda: {"here", "there"})
    document = coding_document(user.path, item("A"))
    assert check_loop(loops, document) == []
    (problem,) = repository_problems(loops, document.loop)
    assert problem.path == ("repo",)
    assert problem.message == (
        f"{user.path} is a path of here, but workers run on there, too: use a URL that all of them"
        " reach, or a name of [repositories] in each mulligan.toml"
    )
    remote = coding_document(f"file://{user.path}", item("A"))
    assert repository_problems(loops, remote.loop) == []


@pytest.mark.parametrize("url", ["{}", "{}/.git", "file://{}", "file://{}/.git/"])
def test_the_branch_of_another_loop_is_refused(
    fleet: CodingLoop, user: UserRepository, url: str
) -> None:
    """However the repository is named: a rollback of one loop would undo work of the other."""
    fleet.start(item("A"))
    document = coding_document(url.format(user.path), item("A"))
    other = document.loop.model_copy(update={"name": "other", "branch": BRANCH})
    (problem,) = repository_problems(fleet.services.loops, other)
    assert problem.path == ("branch",)
    assert problem.message == f"{BRANCH} is the branch of another loop: name another branch"


@pytest.mark.parametrize(
    ("config", "path", "problem"),
    [
        ({"branch": "main/x"}, "branch", "git cannot have main/x beside the branch main: name"),
        ({"branch": "mulligan"}, "branch", f"git cannot have mulligan beside {BRANCH}, which is"),
        ({"branch": f"{BRANCH}/x"}, "branch", f"git cannot have {BRANCH}/x beside {BRANCH}, which"),
        ({"branch": "release"}, "branch", "release is the branch of another loop: name another"),
        (
            {"deliver": {"fast_forward": BRANCH}},
            "deliver.fast_forward",
            f"{BRANCH} is the branch of another loop: name another branch",
        ),
        (
            {"deliver": {"fast_forward": "mulligan/other"}},
            "deliver.fast_forward",
            "mulligan/other is the loop's own branch: name another one, or leave deliver out",
        ),
        ({"deliver": {"fast_forward": "nosuch"}}, "deliver.fast_forward", "has no branch 'nosuch'"),
        ({"deliver": {"fast_forward": "v1"}}, "deliver.fast_forward", "has no branch 'v1': make"),
        ({"deliver": {"fast_forward": "release"}}, "", ""),
        ({"base": "release", "sync": "release"}, "", ""),
    ],
)
def test_a_loop_writes_no_branch_that_cannot_be_its_own(
    fleet: CodingLoop, user: UserRepository, config: dict[str, Any], path: str, problem: str
) -> None:
    """Given another loop, which has not begun its branch, and is delivered to `release`."""
    user.git("branch", "release")
    user.git("tag", "v1")
    fleet.start(item("A"), deliver={"fast_forward": "release"})
    document = coding_document(f"file://{user.path}/.git", item("A"), name="other", **config)
    found = repository_problems(fleet.services.loops, document.loop)
    assert [".".join(map(str, each.path)) for each in found] == ([path] if path else [])
    assert all(problem in each.message for each in found), found


def test_a_branch_that_gets_in_the_way_later_is_waited_for(
    fleet: CodingLoop, user: UserRepository
) -> None:
    fleet.start(item("A"))
    user.git("branch", "mulligan")
    fleet.run()
    assert fleet.states(LOOP) == {"A": "running"}
    reason = why(fleet.services.loops, LOOP)
    assert reason.cause == "repository"
    assert "rename that one there (`git branch -m mulligan NAME`)" in reason.text
    user.git("branch", "-m", "mulligan", "mine")
    fleet.wait(60)
    assert fleet.states(LOOP) == {"A": "passed"}


def test_a_worker_without_the_path_of_a_repository_says_so(
    fleet: CodingLoop, user: UserRepository
) -> None:
    """Given a worker on another host that was started after the loop."""
    fleet.start(item("A"))
    fleet.run(until=lambda: fleet.states(LOOP) == {"A": "running"})
    user.path.rename(user.path.with_name("elsewhere"))
    for _ in range(6):
        fleet.wait(60)
    said = {each.reason for each in fleet.outcomes if isinstance(each, Requeued)}
    assert said == {
        f"{user.path} does not exist on this worker: name a path or URL that every worker can reach"
    }
    user.path.with_name("elsewhere").rename(user.path)
    fleet.wait(60)
    assert fleet.states(LOOP) == {"A": "passed"}
    assert len(fleet.job("A").attempts) == 1


def test_a_claim_of_an_item_twice_runs_it_once(fleet: CodingLoop, user: UserRepository) -> None:
    """A message may be delivered twice."""
    fleet.start(item("A"))
    fleet.run(until=lambda: bool(fleet.outcomes))
    run_attempt(fleet.services.context, Entry("attempt", fleet.job("A").id, 1))
    fleet.run()
    run_attempt(fleet.services.context, Entry("attempt", fleet.job("A").id, 1))
    fleet.run()
    assert merges(user.path) == ["A"]
    assert len(user.git("for-each-ref", "refs/mulligan/attempts").splitlines()) == 1


def test_a_rollback_keeps_what_was_merged_from_upstream(
    fleet: CodingLoop, user: UserRepository
) -> None:
    """Otherwise a delivery would take back what others have done meanwhile."""
    fleet.run_all(item("A"), sync="main", deliver={"fast_forward": "main"})
    user.commit({"upstream.txt": "new\n"})
    fleet.add(item("B"))
    fleet.run()
    assert names(user) == {"A.txt", "B.txt"}
    merged = {each.item: each for each in read_checkpoints(fleet.services.loops, fleet.snapshot)}
    fleet.roll_back(to=merged["A"].commit)
    fleet.run()
    assert names(user) == {"A.txt", "B.txt"}
    assert "upstream.txt" in files_of(user.path, BRANCH)
