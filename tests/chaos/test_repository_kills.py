"""A worker is killed or frozen at every step of the work in a repository.

Nothing is lost and nothing is done twice: an item has passed exactly if it is merged, once. Each
worker is a real process, with a real repository and confined agents. What another worker finds
afterwards depends on the ledger and on the repository only.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
import redis
from support.coding_loop import (
    BRANCH,
    GOOD,
    LOOP,
    CodingLoop,
    check_merged,
    check_passed_means_merged,
    coding_document,
    item,
    merges,
)
from support.doubles import MovableClock
from support.file_trees import die, in_child
from support.fleet import running_fleet
from support.git_repositories import UserRepository, files_of, git
from support.inline_fleet import ADA
from support.loop_hosts import CONTROL, work_pool
from support.waiting import wait_for

from mulligan.policies.failures.failure import VerificationResult, VerificationStatus
from mulligan.tasks.jobs import verify_merge
from mulligan.tasks.jobs.settle import Settled
from mulligan.tasks.loops.change import create_loop, move
from mulligan.tasks.loops.rollback import request_rollback
from mulligan.workers import crash_points
from mulligan.workers.crash_points import REPOSITORY_STEPS, ROLLBACK_STEPS, STEPS
from mulligan.workers.ledger import loop_steps
from mulligan.workers.repositories.git_command import Git
from mulligan.workers.sandbox.private import remove_abandoned

pytestmark = [pytest.mark.chaos, pytest.mark.real_models("command")]

KILLED = -9
#: Without the broker, which other tests have.
ATTEMPT_STEPS = [each for each in (*STEPS, *REPOSITORY_STEPS) if each != "published"]
#: Steps at which the first item is on the branch.
LANDED = ("merge_landed", "settle", "settled")
#: Those at which the workers of a whole fleet are killed. Each start of a worker takes seconds, so
#: these are few, unless all are asked for.
FLEET_STEPS: Sequence[str] = ("published", "saved", "merge_verified", "merge_landed")
FLEET_ROLLBACK_STEPS: Sequence[str] = ("rollback_landed",)
if os.environ.get("CHAOS_STEPS") == "all":
    FLEET_STEPS, FLEET_ROLLBACK_STEPS = (*STEPS, *REPOSITORY_STEPS), ROLLBACK_STEPS
#: An agent that works until another one goes on with its work.
SLOW = f"""
if has("half.txt"):
    {GOOD}
else:
    write("half.txt", "half\\n")
    time.sleep(60)
"""
Action = Callable[[CodingLoop], object]
_Found = TypeVar("_Found")


class Hosts:
    """Workers of one loop, each a process of its own, and the repository that they share."""

    def __init__(self, root: Path, redis_url: str, kind: str = "local") -> None:
        self.lease = 30.0
        self.user = UserRepository.make(root / "user")
        self.origin = self.user.path if kind == "local" else self.user.bare(root / "origin.git")
        self.repository = str(self.origin) if kind == "local" else f"file://{self.origin}"
        #: Part of the command line of each agent.
        self.mark = secrets.token_hex(8)
        self.temporary = root / "tmp"
        self.temporary.mkdir()
        self._root, self._redis_url = root, redis_url
        self._clock, self._workers = MovableClock(), 0

    def worker(self) -> CodingLoop:
        """Return a worker in this process, with a cache of its own."""
        self._workers += 1
        return CodingLoop(
            self._root / f"host{self._workers}",
            self.repository,
            clock=self._clock,
            redis_url=self._redis_url,
            lease=self.lease,
            max_claims=100,
            save_interval=1,
        )

    def _acting(self, action: Action, at: str, number: str) -> Callable[[], None]:
        worker = self.worker()

        def act() -> None:
            tempfile.tempdir = str(self.temporary)
            if at:
                crashes = Path(tempfile.mkdtemp())
                (crashes / at).write_text(number)
                crash_points._CRASH_DIR = str(crashes)
            action(worker)

        return act

    def in_worker(self, action: Action, *, dies_at: str = "") -> int:
        """Do something in a worker of its own, and return how that ended."""
        return in_child(self._acting(action, dies_at, "SIGKILL"))

    def start_worker(self, action: Action, *, stops_at: str = "") -> int:
        """Let a worker of its own begin something, and return its process."""
        child = os.fork()
        if not child:
            os._exit(in_child(self._acting(action, stops_at, "SIGSTOP")) and 1)
        return child

    def let_time_pass(self, seconds: float = 60.0) -> None:
        self._clock.shift += seconds

    def start(self, *names: str, code: str = GOOD) -> None:
        """Create the loop, and let its hints be lost."""
        items = [item(name) for name in names]
        self.worker().start(*items, code=f"# {self.mark}\n{code}", concurrency=len(items))
        self.let_time_pass()

    def finish(self) -> None:
        """Let another worker finish the loop, and check that nothing was lost or doubled."""
        self.let_time_pass()
        assert self.in_worker(CodingLoop.finish) == 0
        self.check()

    def check(self) -> None:
        worker = self.worker()
        assert set(worker.states(LOOP).values()) == {"passed"}
        assert worker.loop.state == "completed"
        check_merged(worker, self.origin)
        found = files_of(self.origin, BRANCH)
        assert all(found[f"{name}.txt"][1] == b"done\n" for name in worker.states(LOOP))
        assert self.agents() == []

    def refs(self, kind: str) -> list[str]:
        return git(self.origin, "for-each-ref", f"refs/mulligan/{kind}").splitlines()

    def tips(self) -> str:
        return git(self.origin, "for-each-ref", "refs/heads", "refs/mulligan/fence")

    def agents(self) -> list[int]:
        """Return the processes of agents."""
        return [each for each in _processes() if self.mark in _command_line(each)]

    def check_tidy(self) -> None:
        """Check that a worker has removed the directories of those that were killed."""
        assert list(self.temporary.glob("mulligan-*")) == []


def _processes() -> list[int]:
    return [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()]


def _command_line(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text()
    except OSError:
        return ""


@pytest.fixture
def make_hosts(
    tmp_path: Path, redis_socket: Path, redis_client: redis.Redis
) -> Callable[..., Hosts]:
    """Return a function that makes new ones, with an empty ledger."""

    def make(kind: str = "local") -> Hosts:
        redis_client.flushall()
        root = tmp_path / secrets.token_hex(4)
        return Hosts(root, f"unix://{redis_socket}", kind)

    return make


@pytest.fixture
def hosts(make_hosts: Callable[..., Hosts]) -> Hosts:
    return make_hosts()


# -- killed ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ATTEMPT_STEPS)
def test_a_worker_is_killed_at_a_step_of_an_attempt(hosts: Hosts, name: str) -> None:
    # Only two attempts together are something that was not verified before: they are a batch.
    names = ["A", "B"] if name == "merge_verified" else ["A"]
    hosts.start(*names)
    assert hosts.in_worker(CodingLoop.run, dies_at=name) == KILLED
    has_branch = git(hosts.origin, "branch", "--list", BRANCH) != ""
    assert (merges(hosts.origin) if has_branch else []) == (["A"] if name in LANDED else [])
    hosts.finish()
    hosts.check_tidy()
    assert sorted(merges(hosts.origin)) == names
    # An answer that is stored is not asked for again.
    asked_again = name in ("saved", "answered")
    assert len(hosts.refs("attempts")) == len(names) + asked_again


@pytest.mark.parametrize("name", ["saved", "merge_landed"])
def test_a_worker_of_a_remote_repository_is_killed(
    make_hosts: Callable[..., Hosts], name: str
) -> None:
    hosts = make_hosts("remote")
    hosts.start("A")
    assert hosts.in_worker(CodingLoop.run, dies_at=name) == KILLED
    hosts.finish()
    assert merges(hosts.origin) == ["A"]


@pytest.mark.parametrize("name", ROLLBACK_STEPS)
def test_a_worker_is_killed_at_a_step_of_a_rollback(
    make_hosts: Callable[..., Hosts], name: str
) -> None:
    hosts = make_hosts("remote")
    hosts.start("A")
    assert hosts.in_worker(CodingLoop.finish) == 0
    assert hosts.in_worker(lambda worker: worker.roll_back(item="A"), dies_at=name) == KILLED
    hosts.finish()
    assert merges(hosts.origin) == ["A", "A"]
    subjects = git(hosts.origin, "log", "--format=%s", BRANCH).splitlines()
    assert subjects.count("Undo A") == 1


@pytest.mark.parametrize(
    ("kind", "moment"), [("local", "before"), ("local", "during"), ("remote", "during")]
)
def test_workers_are_killed_at_each_command_of_a_merge(
    make_hosts: Callable[..., Hosts], kind: str, moment: str
) -> None:
    """Also between any two named steps. Each worker goes on with what the one before has left.

    A command of git that runs when its worker is killed goes on, while others take over.
    """
    hosts = make_hosts(kind)
    hosts.start("A")

    def all_but_the_merge(worker: CodingLoop) -> None:
        worker.run(until=lambda: bool(worker.waiting) and worker.waiting[0].entry.index == 2)

    assert hosts.in_worker(all_but_the_merge) == 0
    landed = _kill_at_each_command(
        hosts, CodingLoop.finish, lambda: merges(hosts.origin), moment=moment
    )
    hosts.check()
    assert merges(hosts.origin) == ["A"]
    assert len(landed) > 10
    assert landed[0] == []


def test_workers_are_killed_at_each_command_of_a_rollback(hosts: Hosts) -> None:
    hosts.start("A")
    assert hosts.in_worker(CodingLoop.finish) == 0
    begin = hosts.worker()
    request_rollback(begin.services.loops, LOOP, ADA, item="A")

    def sweep(worker: CodingLoop) -> None:
        worker.sweep()

    trees = _kill_at_each_command(
        hosts, sweep, lambda: sorted(files_of(hosts.origin, BRANCH)), moment="before"
    )
    assert len(trees) > 10
    assert ("A.txt" in trees[0], "A.txt" in trees[-1]) == (True, False)
    assert hosts.worker().states(LOOP) == {"A": "pending"}
    hosts.finish()
    assert merges(hosts.origin) == ["A", "A"]


def _kill_at_each_command(
    hosts: Hosts, action: Action, look: Callable[[], _Found], *, moment: str
) -> list[_Found]:
    """Kill the first worker at its first command of git, the second at its second…

    Return what each of them has left behind.
    """
    found: list[_Found] = []
    while True:
        command = len(found) + 1

        def act(worker: CodingLoop, command: int = command) -> None:
            _die_at(command, moment)
            action(worker)

        hosts.let_time_pass()
        ended = hosts.in_worker(act)
        found.append(look())
        if ended == 0:
            return found
        assert ended == KILLED


def _die_at(number: int, moment: str) -> None:
    """Have this process killed right before or during its n-th command of git from now on."""
    real, begun = Git._start, 0

    def start(self: Git, *arguments: Any, **options: Any) -> Any:
        nonlocal begun
        begun += 1
        if begun == number and moment == "before":
            die()
        started = real(self, *arguments, **options)
        if begun == number:
            die()
        return started

    Git._start = start  # type: ignore[method-assign]


def test_the_work_of_an_agent_that_was_killed_with_its_worker_is_continued(hosts: Hosts) -> None:
    hosts.start("A", code=SLOW)
    child = hosts.start_worker(CodingLoop.run)
    wait_for(lambda: hosts.refs("attempts"), "the work to be saved")
    (worker,) = [each for each in _processes() if _parent(each) == child]
    os.kill(worker, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] != 0
    wait_for(lambda: not hosts.agents(), "the agent to end", seconds=10)
    hosts.finish()
    hosts.check_tidy()
    assert len(hosts.refs("attempts")) == 2
    assert files_of(hosts.origin, BRANCH)["half.txt"][1] == b"half\n"


def _parent(process: int) -> int:
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


# -- frozen ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["base_checked", "saved", "merge_begun", "merge_fenced", "merge_landed", "settle"]
)
def test_a_worker_is_frozen_until_another_has_done_its_work(hosts: Hosts, name: str) -> None:
    hosts.start("A")
    child = hosts.start_worker(CodingLoop.run, stops_at=name)
    (worker,) = wait_for(lambda: _stopped(child), "the worker to freeze")
    hosts.finish()
    before = hosts.tips()
    os.kill(worker, signal.SIGCONT)
    os.waitpid(child, 0)
    hosts.check()
    assert hosts.tips().splitlines()[:-1] == before.splitlines()[:-1]
    assert merges(hosts.origin) == ["A"]


def _stopped(child: int) -> list[int]:
    """Return the frozen children of a process."""
    found = []
    for each in _processes():
        if _parent(each) == child:
            state = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()[0]
            found += [each] if state == "T" else []
    return found


@pytest.mark.parametrize(("kind", "command"), [("local", "update-ref"), ("remote", "push")])
def test_a_frozen_merge_cannot_land_after_another_worker_has_judged_it(
    make_hosts: Callable[..., Hosts], kind: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a worker that is frozen when it has only the branch to move.

    The other one finds that the work fails, and does not move the branch: only the fence has moved.
    """
    monkeypatch.setattr(loop_steps, "MOST_WINDOW", 0)  # one merge at a time
    hosts = make_hosts(kind)
    hosts.lease = 2.0
    hosts.start("A", "B")

    def merge_one(worker: CodingLoop) -> None:
        worker.run(until=lambda: "passed" in worker.states(LOOP).values())

    def begin_to_land(worker: CodingLoop) -> None:
        _stop_before(command, 2)
        worker.finish()

    def judge(worker: CodingLoop) -> None:
        failure = VerificationResult(
            status=VerificationStatus.FAIL, verifier_id="command.subprocess", summary="it fails now"
        )
        verify_merge.first_failure = lambda *_: failure
        while not any(isinstance(each, Settled) for each in worker.outcomes):
            worker.clock.shift += hosts.lease / 3
            worker.run(until=lambda: any(isinstance(each, Settled) for each in worker.outcomes))

    assert hosts.in_worker(merge_one) == 0
    hosts.let_time_pass()
    child = hosts.start_worker(begin_to_land)
    (worker,) = wait_for(lambda: _stopped(child), "the worker to freeze")
    hosts.let_time_pass()
    assert hosts.in_worker(judge) == 0
    time.sleep(hosts.lease)  # by the clock of the frozen worker, too
    os.kill(worker, signal.SIGCONT)
    os.waitpid(child, 0)
    assert len(merges(hosts.origin)) == 1
    hosts.finish()
    assert sorted(merges(hosts.origin)) == ["A", "B"]
    attempts = [len(hosts.worker().job(name).attempts) for name in "AB"]
    assert sorted(attempts) == [1, 2]


def _stop_before(command: str, number: int) -> None:
    """Freeze this process right before its n-th command of this kind from now on."""
    real, begun = Git._start, 0

    def start(self: Git, arguments: Sequence[str], **options: Any) -> Any:
        nonlocal begun
        begun += arguments[0] == command
        if arguments[0] == command and begun == number:
            os.kill(os.getpid(), signal.SIGSTOP)
        return real(self, arguments, **options)

    Git._start = start  # type: ignore[method-assign]


@pytest.mark.parametrize("name", ["rollback_fenced", "rollback_landed"])
def test_a_rollback_is_frozen_until_another_worker_has_made_it(hosts: Hosts, name: str) -> None:
    hosts.start("A")
    assert hosts.in_worker(CodingLoop.finish) == 0
    child = hosts.start_worker(lambda worker: worker.roll_back(item="A"), stops_at=name)
    (worker,) = wait_for(lambda: _stopped(child), "the worker to freeze")
    hosts.finish()
    os.kill(worker, signal.SIGCONT)
    os.waitpid(child, 0)
    hosts.check()
    assert merges(hosts.origin) == ["A", "A"]


def test_the_agent_of_a_frozen_worker_is_ended(hosts: Hosts) -> None:
    """Given a worker that is frozen for longer than its lease while its agent works."""
    hosts.lease = 2.0
    hosts.start("A", code=SLOW)
    child = hosts.start_worker(CodingLoop.run)
    wait_for(lambda: hosts.refs("attempts"), "the work to be saved")
    (worker,) = [each for each in _processes() if _parent(each) == child]
    os.kill(worker, signal.SIGSTOP)
    wait_for(lambda: not hosts.agents(), "the agent to end", seconds=20)
    hosts.finish()
    before = hosts.tips()
    os.kill(worker, signal.SIGCONT)
    os.waitpid(child, 0)
    hosts.check()
    assert hosts.tips() == before
    assert merges(hosts.origin) == ["A"]


# -- a whole fleet ---------------------------------------------------------------------------------


def test_a_fleet_whose_workers_are_killed_does_its_loop(tmp_path: Path) -> None:
    """Given two workers and a loop with dependencies, retries and conflicts; then a rollback."""
    user = UserRepository.make(tmp_path / "user")
    before = user.state()
    crashes, temporary = tmp_path / "crashes", tmp_path / "tmp"
    for folder in (crashes, temporary):
        folder.mkdir()
    for name in FLEET_STEPS:
        (crashes / name).touch()
    names = [f"I{number}" for number in range(8)]
    needs = {"I3": ["I0"], "I4": ["I1", "I2"], "I6": ["I3"], "I7": ["I4", "I5"]}
    code = """
lines = [each for each in read("a.txt").splitlines() if each[:1] not in "<=>"]
if item in ("I1", "I2", "I3"):
    write("a.txt", "\\n".join([*lines, *([] if item in lines else [item])]) + "\\n")
write(f"{item}.txt", "done\\n" if again or item in ("I0", "I5") else "no\\n")
"""
    with running_fleet(
        tmp_path / "fleet",
        pools=[CONTROL, work_pool(2, "one"), work_pool(2, "two")],
        environment={"MULLIGAN_CRASH_DIR": str(crashes), "TMPDIR": str(temporary)},
        lease=2.0,
        max_claims=50,
        repository_cache=tmp_path / "cache",
    ) as fleet:
        loops = fleet.services.loops
        document = coding_document(
            user.path,
            *(item(name, *needs.get(name, ())) for name in names),
            code=code,
            concurrency=4,
            max_attempts=5,
        )
        create_loop(loops, document, by="ada")
        move(loops, LOOP, "start", ADA)

        def completed() -> bool:
            fleet.stack.watch()
            reading = fleet.ledger.read_loop(LOOP)
            assert reading is not None
            found, items = reading.snapshot.loop, reading.snapshot.items.values()
            assert found.state in ("running", "completed"), found.reason
            return not found.rollback and all(each.state == "passed" for each in items)

        wait_for(completed, "the loop", seconds=240)
        assert sorted(merges(user.path)) == names
        assert [each.name for each in crashes.iterdir()] == []
        for name in FLEET_ROLLBACK_STEPS:
            (crashes / name).touch()
        request_rollback(loops, LOOP, ADA, item="I5")
        wait_for(completed, "the loop after its rollback", seconds=120)
        assert sorted(merges(user.path)) == sorted([*names, "I5", "I7"])
        assert [each.name for each in crashes.iterdir()] == []
        reading = fleet.ledger.read_loop(LOOP)
        assert reading is not None
        check_passed_means_merged(loops, reading.snapshot)
    user.git("fsck", "--strict")
    lines = files_of(user.path, BRANCH)["a.txt"][1].decode().split()
    assert sorted(lines[3:]) == ["I1", "I2", "I3"]
    assert user.state() == before
    remove_abandoned(temporary)
    assert list(temporary.glob("mulligan-*")) == []


#: Runs the example with more variables in the environment of `mulligan up`, and of nothing else.
EXAMPLE = """
import json, sys
sys.path.insert(0, sys.argv[1])
import demo, fleet
real, extra = fleet.Fleet.__init__, json.loads(sys.argv[2])
def start(self, folder):
    plain = fleet.environment
    fleet.environment = lambda folder: {**plain(folder), **extra}
    real(self, folder)
    fleet.environment = plain
fleet.Fleet.__init__ = start
sys.argv[1:] = ["--timeout", "500"]
sys.exit(demo.main())
"""


@pytest.mark.skipif(os.environ.get("CHAOS_STEPS") != "all", reason="takes five minutes")
def test_the_example_ends_well_although_its_workers_are_killed_at_every_step(
    tmp_path: Path,
) -> None:
    for name in (*STEPS, *REPOSITORY_STEPS):
        (tmp_path / name).touch()
    environment = {
        "MULLIGAN_CRASH_DIR": str(tmp_path),
        "MULLIGAN_LEASE": "4",
        "MULLIGAN_REPUBLISH_AFTER": "4",
        "MULLIGAN_MAX_CLAIMS": "50",
    }
    example = Path(__file__).parents[2] / "examples" / "coding_loop"
    argv = [sys.executable, "-c", EXAMPLE, str(example), json.dumps(environment)]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    assert [each.name for each in tmp_path.iterdir()] == []
