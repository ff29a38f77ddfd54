"""A loop on a repository that moves to another installation, and goes on there as it would have."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.coding_loop import (
    BRANCH,
    LOOP,
    CodingLoop,
    agent,
    check_merged,
    coding_document,
    has_line,
    item,
    merges,
)
from support.git_repositories import UserRepository, git
from support.inline_fleet import InlineFleet
from support.loops import document
from support.moved_loops import EVE, exported, imported, whole_state

from mulligan.tasks.loops import change
from mulligan.tasks.loops.change import LoopConflict
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.repositories import moved_work

pytestmark = pytest.mark.real_models("command")

#: B is right at the second attempt, C never. The agents say what they do, which transcripts keep.
CODE = """
print("working on", item, flush=True)
if item == "C" or (item == "B" and not again): write(f"{item}.txt", "no\\n")
else: write(f"{item}.txt", "done\\n")
"""
ITEMS = (
    item("A", touches=["A.txt"]),
    item("C", "A", priority=1, touches=["C.txt"]),
    item("B", "A", priority=2, touches=["B.txt"]),
    item("D", "B", touches=["D.txt"]),
)
STATES = {"A": "passed", "B": "passed", "C": "failed", "D": "passed"}


@pytest.fixture
def user(tmp_path: Path) -> UserRepository:
    return UserRepository.make(tmp_path / "here" / "user")


def half_done(root: Path, repository: Path | str) -> CodingLoop:
    """A loop of which A has passed and C failed; B failed once, and waits for its retry."""
    fleet = CodingLoop(root, repository, key_prefix="here")
    fleet.start(
        *ITEMS,
        code=CODE,
        concurrency=1,
        budget={"attempt": {"seconds": 60}, "loop": {"seconds": 900}},
    )

    def waits_for_its_retry() -> bool:
        record = fleet.snapshot.record("B")
        return record.state == "running" and len(fleet.job("B").attempts) == 2

    fleet.run(until=waits_for_its_retry)
    change.move(fleet.services.loops, LOOP, "pause", EVE)
    fleet.run()
    assert fleet.states(LOOP) == {"A": "passed", "B": "running", "C": "failed", "D": "pending"}
    return fleet


def elsewhere(root: Path, repository: Path | str, here: CodingLoop) -> CodingLoop:
    return CodingLoop(root / "there", repository, key_prefix="there", clock=here.clock)


def clone(user: UserRepository, path: Path) -> Path:
    """Make a clone as a person does: it has the branches of people, but nothing of mulligan."""
    git(user.path, "clone", "-q", "--no-hardlinks", "--single-branch", str(user.path), str(path))
    return path


def finish(fleet: CodingLoop) -> None:
    """Let a loop go on to its end. A hint may be due only later."""
    change.move(fleet.services.loops, LOOP, "resume", EVE)
    for _ in range(30):
        fleet.run()
        if fleet.states(LOOP) == STATES:
            return
        fleet.clock.shift += fleet.settings.lease / 3
    raise AssertionError(f"the loop does not end: {fleet.states(LOOP)}")


def work(repository: Path) -> dict[str, str]:
    """Return what is kept of the attempts in a repository."""
    form = "--format=%(refname) %(objectname)"
    places = ("refs/mulligan/attempts", "refs/mulligan/transcripts")
    return dict(
        line.split(" ") for line in git(repository, "for-each-ref", form, *places).splitlines()
    )


def test_a_loop_goes_on_elsewhere_as_it_would_have(tmp_path: Path, user: UserRepository) -> None:
    """Given a loop at half-time, when it moves to a clone, then both end in the same way."""
    here = half_done(tmp_path / "here", user.path)
    path = clone(user, tmp_path / "there" / "user")
    there = elsewhere(tmp_path, path, here)
    assert (
        imported(there.services.loops, exported(here.services.loops, LOOP), repo=str(path))
        == "written"
    )
    assert work(path) == work(user.path) != {}
    assert merges(path) == merges(user.path) == ["A"]
    spent = there.snapshot.used
    assert spent == here.snapshot.used
    for fleet in (here, there):
        finish(fleet)
    assert there.prompt("B", 2) == here.prompt("B", 2)
    assert "grep" in there.prompt("B", 2), "the retry is told of the failure before the move"
    for name in STATES:
        assert [each.state for each in there.job(name).attempts] == [
            each.state for each in here.job(name).attempts
        ]
        assert there.results(name) == here.results(name)
    assert merges(path) == merges(user.path) == ["A", "B", "D"]
    assert git(path, "rev-parse", f"{BRANCH}^{{tree}}") == git(
        user.path, "rev-parse", f"{BRANCH}^{{tree}}"
    )
    assert all(there.snapshot.used[key] >= spent[key] for key in spent)
    check_merged(there, path)
    check_merged(here, user.path)


def test_checkpoints_and_transcripts_are_there(tmp_path: Path, user: UserRepository) -> None:
    here = half_done(tmp_path / "here", user.path)
    path = clone(user, tmp_path / "there" / "user")
    there = elsewhere(tmp_path, path, here)
    imported(there.services.loops, exported(here.services.loops, LOOP), repo=str(path))
    repository = there.services.loops.repository(str(path))
    name = f"{there.job('C').id}/1"
    assert repository.transcript(LOOP, "C", name)
    finish(there)
    there.roll_back(item="A")
    assert merges(path)[0] == "A"
    assert not (set(git(path, "ls-tree", "--name-only", BRANCH).split()) & {"A.txt", "B.txt"})


class Killed(Exception):
    """A process that is killed here."""


def test_an_import_that_is_killed_while_its_work_comes_can_be_made_again(
    tmp_path: Path, user: UserRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = CodingLoop(tmp_path / "here", user.path, key_prefix="here")
    here.run_all(item("A"))
    path = clone(user, tmp_path / "there" / "user")
    there = elsewhere(tmp_path, path, here)
    archive = exported(here.services.loops, LOOP)

    def kill(at: str, name: str, *_: Any) -> None:
        if name == at:
            raise Killed

    for step in ("objects", "work_imported", "blobs_imported"):
        with monkeypatch.context() as patched:
            if step == "objects":
                patched.setattr(moved_work, "check_complete", lambda *_: kill("", ""))
            context = replace(there.services.loops, step=partial(kill, step))
            with pytest.raises(Killed):
                imported(context, archive, repo=str(path))
        assert there.ledger.loops() == []
        assert git(path, "rev-parse", "main") == user.git("rev-parse", "main")
    assert imported(there.services.loops, archive, repo=str(path)) == "written"
    assert work(path) == work(user.path) != {}
    check_merged(there, path)


def test_a_loop_moves_between_remote_repositories(tmp_path: Path, user: UserRepository) -> None:
    first, second = user.bare(tmp_path / "one.git"), user.bare(tmp_path / "two.git")
    here = half_done(tmp_path / "here", f"file://{first}")
    there = elsewhere(tmp_path, f"file://{second}", here)
    archive = exported(here.services.loops, LOOP)
    assert imported(there.services.loops, archive, repo=f"file://{second}") == "written"
    assert work(second) == work(first) != {}
    finish(there)
    assert merges(second) == ["A", "B", "D"]
    assert merges(first) == ["A"]


def test_a_loop_moves_with_its_repository_shared(tmp_path: Path, user: UserRepository) -> None:
    """Given one remote repository for both, then its work stays when the old loop is deleted."""
    shared = user.bare(tmp_path / "shared.git")
    here = half_done(tmp_path / "here", f"file://{shared}")
    there = elsewhere(tmp_path, f"file://{shared}", here)
    kept, before = work(shared), whole_state(here.ledger, "here")
    imported(there.services.loops, exported(here.services.loops, LOOP, keep=False))
    after = whole_state(there.ledger, "there")
    for name in before.keys() | after.keys():
        assert after.get(name) == before.get(name), name
    change.delete(here.services.loops, LOOP, EVE)
    assert work(shared) == kept != {}
    finish(there)
    check_merged(there, shared)


def test_commits_that_the_other_repository_lacks_are_named(
    tmp_path: Path, user: UserRepository
) -> None:
    path = clone(user, tmp_path / "there" / "user")
    user.commit({"new.txt": "not pushed\n"})
    here = half_done(tmp_path / "here", user.path)
    there = elsewhere(tmp_path, path, here)
    with pytest.raises(BadInput, match="bring main of the other repository here first"):
        imported(there.services.loops, exported(here.services.loops, LOOP), repo=str(path))
    assert there.ledger.loops() == []
    assert work(path) == {}
    git(path, "pull", "-q")
    assert (
        imported(there.services.loops, exported(here.services.loops, LOOP), repo=str(path))
        == "written"
    )


def test_a_branch_loses_no_commit(tmp_path: Path, user: UserRepository) -> None:
    """Given a branch of that name with another commit, then it stays, and nothing is imported."""
    here = half_done(tmp_path / "here", user.path)
    path = clone(user, tmp_path / "there" / "user")
    tip = git(path, "commit-tree", "-m", "other", "-p", "HEAD", "HEAD^{tree}")
    git(path, "update-ref", f"refs/heads/{BRANCH}", tip)
    there = elsewhere(tmp_path, path, here)
    with pytest.raises(BadInput, match="has commits that the archive has not"):
        imported(there.services.loops, exported(here.services.loops, LOOP), repo=str(path))
    assert git(path, "rev-parse", BRANCH) == tip
    assert there.ledger.loops() == []
    assert work(path) == {}


def test_another_repository_of_a_loop_that_is_here_is_refused(
    tmp_path: Path, user: UserRepository
) -> None:
    here = CodingLoop(tmp_path / "here", user.path, key_prefix="here")
    here.start(item("A"))
    change.move(here.services.loops, LOOP, "stop", EVE)
    archive = exported(here.services.loops, LOOP)
    path = clone(user, tmp_path / "there" / "user")
    there = elsewhere(tmp_path, path, here).services.loops
    assert imported(there, archive, repo=str(path)) == "written"
    with pytest.raises(LoopConflict, match=f"is here already, and works in {path}: leave it out"):
        imported(there, archive, repo=str(user.path))
    for same in (str(path), None):
        assert imported(there, archive, repo=same) == "seen"


def test_a_delivered_loop_moves(tmp_path: Path, user: UserRepository) -> None:
    """Given a branch that the base has, so that there are no objects of it to bring."""
    here = CodingLoop(tmp_path / "here", user.path, key_prefix="here")
    assert here.run_all(item("A")) == {"A": "passed"}
    user.git("merge", "-q", BRANCH)
    path = clone(user, tmp_path / "there" / "user")
    there = elsewhere(tmp_path, path, here)
    imported(there.services.loops, exported(here.services.loops, LOOP), repo=str(path))
    assert there.loop.state == "completed"
    check_merged(there, path)


def test_every_problem_of_the_new_place_is_named_before_anything_is_written(
    tmp_path: Path, user: UserRepository
) -> None:
    """Given two runners that only the old place has."""
    profiles = {"coder": agent(CODE), "strong": agent(CODE)}
    here = CodingLoop(tmp_path / "here", user.path, key_prefix="here", runners=profiles)
    here.create(coding_document(user.path, item("A"), item("B", runner="strong"), runner="coder"))
    change.move(here.services.loops, LOOP, "stop", EVE)
    archive = exported(here.services.loops, LOOP)
    path = clone(user, tmp_path / "there" / "user")
    there = elsewhere(tmp_path, path, here)
    with pytest.raises(BadInput) as refused:
        imported(there.services.loops, archive, repo=str(path))
    said = str(refused.value)
    assert "coder" in said
    assert "strong" in said
    with pytest.raises(BadInput, match="does not exist"):
        imported(
            there.services.loops,
            exported(half_done(tmp_path / "other", user.path).services.loops, LOOP),
            repo="/nowhere/at/all",
        )
    assert there.ledger.loops() == []
    assert work(path) == {}


def test_a_loop_without_a_repository_moves_with_its_files(tmp_path: Path) -> None:
    """Given items that work in a stored directory, which the other place never had."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "given.txt").write_text("given\n")
    answers = {"kind": "scripted", "answers": ["no", "done"]}
    one = {
        "id": "one",
        "prompt": "Do it.",
        "verifiers": [has_line("given.txt", "given"), has_line("out.txt", "done")],
        "workspace": {"path": str(folder), "output_file": "out.txt"},
    }
    here = InlineFleet(tmp_path / "a" / "home", key_prefix="here")
    there = InlineFleet(tmp_path / "b" / "home", key_prefix="there")
    here.create(document(one, {**one, "id": "two", "depends_on": ["one"]}, runner=answers))
    here.run(until=lambda: here.states("alpha")["one"] == "passed")
    change.move(here.services.loops, "alpha", "pause", EVE)
    here.run()
    archive = exported(here.services.loops, "alpha")
    (folder / "given.txt").unlink()
    imported(there.services.loops, archive)
    change.move(there.services.loops, "alpha", "resume", EVE)
    there.run()
    assert there.states("alpha") == {"one": "passed", "two": "passed"}
