"""Loops on repositories with real workers: ten attempts at once, hosts without a shared disk."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.coding_loop import BRANCH, GOOD, LOOP, coding_document, item, merges
from support.fleet import running_fleet
from support.git_repositories import UserRepository, files_of, git
from support.inline_fleet import ADA
from support.loop_hosts import (
    CONTROL,
    can_make_namespaces,
    directories,
    git_server,
    host,
    namespaces,
    redis_at,
    work_pool,
)
from support.waiting import wait_for

from mulligan.tasks.loops.change import create_loop, move
from mulligan.tasks.ports.ledger import JobView, LoopReading
from mulligan.workers.ledger.connection.calls import connect
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.settings.model import Settings

pytestmark = pytest.mark.real_models("command")

NAMES = [f"I{number}" for number in range(10)]
SLOW = f"time.sleep(1)\n{GOOD}"
#: An agent that is not done at once: its retry must find what it left.
IN_TWO_STEPS = """
time.sleep(0.5)
write(f"{item}.txt", "done\\n" if again and has(f"{item}.half") else "no\\n")
write(f"{item}.half", "half\\n")
"""


def read(ledger: RedisLedger, name: str = LOOP) -> LoopReading:
    reading = ledger.read_loop(name)
    assert reading is not None
    return reading


def jobs(ledger: RedisLedger, name: str = LOOP) -> list[JobView]:
    """Return the last run of each item."""
    found = [ledger.job(each.job_id) for each in read(ledger, name).snapshot.items.values()]
    return [each for each in found if each is not None]


def test_ten_attempts_at_once_are_all_merged_once(tmp_path: Path) -> None:
    """Given two loops of ten items each: on a repository of this host, and on one behind a URL."""
    users = {name: UserRepository.make(tmp_path / name) for name in ("local", "remote")}
    before = {name: user.state() for name, user in users.items()}
    (tmp_path / "tmp").mkdir()
    with running_fleet(
        tmp_path / "fleet",
        pools=[CONTROL, work_pool(20)],
        environment={"TMPDIR": str(tmp_path / "tmp")},
        lease=30.0,
        loop_slots=20,
        repository_cache=tmp_path / "cache",
    ) as fleet:
        loops = fleet.services.loops
        for name, user in users.items():
            address = user.path if name == "local" else f"file://{user.path}"
            document = coding_document(
                address, *map(item, NAMES), code=SLOW, name=name, concurrency=len(NAMES)
            )
            create_loop(loops, document, by="ada")
            move(loops, name, "start", ADA)
        for name, user in users.items():

            def completed(name: str = name) -> bool:
                fleet.stack.watch()
                return read(fleet.ledger, name).snapshot.loop.state == "completed"

            wait_for(completed, f"the loop {name}", seconds=180)
            branch = f"mulligan/{name}"
            assert sorted(merges(user.path, branch)) == NAMES
            found = files_of(user.path, branch)
            assert [each for each in NAMES if found[f"{each}.txt"][1] != b"done\n"] == []
            kept = user.git("for-each-ref", f"refs/mulligan/attempts/{name}").splitlines()
            assert len(kept) == len(NAMES)
            user.git("fsck", "--strict")
            attempts = [each.attempts[0] for each in jobs(fleet.ledger, name)]
            assert max(each.started_at or 0 for each in attempts) < min(
                each.settled_at or 0 for each in attempts
            )
    assert {name: user.state() for name, user in users.items()} == before
    assert list((tmp_path / "tmp").glob("mulligan-*")) == []


def test_two_hosts_without_a_shared_disk_do_one_loop(tmp_path: Path) -> None:
    """Given two hosts that share a Redis and a git server: work travels between them by git.

    They are network namespaces, each without the files of the other; or, where only directories of
    their own are possible, at least these.
    """
    apart = can_make_namespaces()
    user = UserRepository.make(tmp_path / "user")
    served, roots = tmp_path / "served", [tmp_path / "one", tmp_path / "two"]
    origin = user.bare(served / "origin.git")
    names = NAMES[:3]
    with ExitStack() as stack:
        enter = stack.enter_context
        one, two = enter(namespaces() if apart else directories())
        address = enter(git_server(one, served))
        server, redis_url = enter(redis_at(one, tmp_path / "redis"))
        first = enter(host(one, roots[0], redis_url, hidden=roots[1:]))
        second = enter(host(two, roots[1], redis_url, hidden=[roots[0], served, user.path]))
        first.start(CONTROL, work_pool(1))
        second.start(work_pool(1, "work-too"))
        ledger = RedisLedger(connect(server.ledger_url), Settings(), patience=5)
        wait_for(lambda: len(ledger.beats.live(now=ledger.now())) == 3, "the workers")
        for name, repository in (("path", user.path), (LOOP, f"{address}/origin.git")):
            document = coding_document(
                repository, *map(item, names), code=IN_TWO_STEPS, name=name, concurrency=2
            )
            made = document.model_dump(mode="json", exclude_defaults=True)
            (roots[0] / "work" / f"{name}.json").write_text(json.dumps(made))
        if apart:
            refused = first.run("loops", "create", "path.json")
            assert refused.returncode != 0
            said = " ".join((refused.stdout + refused.stderr).split())
            assert f"{user.path} is a path of {one.name}, but workers run on {two.name}" in said
        created = first.run("loops", "create", f"{LOOP}.json", "--start")
        assert created.returncode == 0, created.stdout + created.stderr

        def completed() -> bool:
            first.stack.watch()
            second.stack.watch()
            return read(ledger).snapshot.loop.state == "completed"

        wait_for(completed, "the loop", seconds=120)
        views = jobs(ledger)
    assert sorted(merges(origin)) == names
    assert files_of(origin, BRANCH).keys() >= {f"{each}.half" for each in names}
    git(origin, "fsck", "--strict")
    assert [len(each.attempts) for each in views] == [2] * len(names)
    assert len({attempt.worker for each in views for attempt in each.attempts}) == 2
    for root in roots:
        assert len(list((root / "cache" / "mirrors").glob("origin-*"))) > 0
        assert list((root / "tmp").glob("mulligan-*")) == []
