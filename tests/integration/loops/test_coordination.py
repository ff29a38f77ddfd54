"""Three loops that share files of one repository, on two slots, with a deadlock among them.

Everything is real: the Redis, the worker processes, the repository, the agents and the receiver of
alerts. One run is made, in which a worker is killed; each test looks at another side of it.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from support.coding_loop import (
    check_passed_means_merged,
    coding_document,
    has_line,
    item,
)
from support.fleet import Fleet, running_fleet
from support.git_repositories import UserRepository, files_of
from support.inline_fleet import ADA
from support.loop_hosts import CONTROL, work_pool
from support.waiting import wait_for
from support.webhook_receiver import Receiver, running_receiver

from mulligan.policies.coordination.decision import Decision, DecisionKind
from mulligan.policies.coordination.locks import FileLock
from mulligan.policies.loops.loop import LoopSnapshot
from mulligan.tasks.coordination.view import view_coordination
from mulligan.tasks.loops.change import create_loop, inject, move
from mulligan.tasks.ports.ledger import JobView

pytestmark = pytest.mark.real_models("command")

#: Loops, the most urgent first, with the loop for whose last item the last one of each waits.
LOOPS = {"alpha": (1, "beta"), "beta": (5, "gamma"), "gamma": (9, "alpha")}
#: An agent that sets its line of the shared file. B3 changes a file that it does not declare, and
#: G3 works until another worker goes on with its work.
CODE = """
if item == "G3" and not has("half.txt"):
    write("half.txt", "half\\n")
    time.sleep(60)
if item == "B3":
    write("notes.txt", "of B3\\n")
write("shared.txt", read("shared.txt").replace(f"{item}: todo", f"{item}: done"))
write(f"{item}.txt", "done\\n")
"""


def _items(loop: str, waits_for: str) -> list[dict[str, Any]]:
    """Two items that change the shared file, one that does not, and one of the deadlock."""
    letter = loop[0].upper()
    lines = [
        item(
            f"{letter}{n}",
            touches=["shared.txt", f"{letter}{n}.txt"],
            verifiers=[has_line("shared.txt", f"{letter}{n}: done")],
        )
        for n in (1, 2)
    ]
    other = f"{waits_for}/{waits_for[0].upper()}9"
    apart = item(f"{letter}3", touches=[f"{letter}3.txt", "half.txt"])
    return [*lines, apart, item(f"{letter}9", other, touches=[f"{letter}9.txt"])]


@dataclass
class Coordinated:
    """What became of the run."""

    fleet: Fleet
    receiver: Receiver
    user: UserRepository
    #: The files of G3 before its worker was killed, and while the next one worked on it.
    locks: list[FileLock] = field(default_factory=list)
    killed: str = ""

    def wait_until(self, condition: Callable[[], Any], what: str) -> Any:
        def holds() -> Any:
            self.fleet.stack.watch()
            time.sleep(0.05)
            return condition()

        return wait_for(holds, what, seconds=120)

    def snapshot(self, name: str) -> LoopSnapshot:
        reading = self.fleet.ledger.read_loop(name)
        assert reading is not None
        return reading.snapshot

    def job(self, name: str) -> JobView:
        loop, _, item = name.partition("/")
        view = self.fleet.ledger.job(self.snapshot(loop).items[item].job_id)
        assert view is not None
        return view

    def lock(self, name: str) -> FileLock | None:
        locks = self.fleet.ledger.coordination().locks
        return next((each for each in locks if each.name == name), None)

    def decisions(self, *kinds: DecisionKind) -> list[Decision]:
        """Return the decisions of these kinds, the oldest first."""
        found = view_coordination(self.fleet.services.loops, limit=1000).decisions
        return [each for each in reversed(found) if each.kind in kinds]

    # -- the run ----------------------------------------------------------------------------------

    def start(self) -> None:
        for name, (priority, waits_for) in LOOPS.items():
            made = coding_document(
                self.user.path, *_items(name, waits_for), code=CODE, name=name, priority=priority,
                base="release", sync="release", deliver={"fast_forward": "release"},
            )  # fmt: skip
            create_loop(self.fleet.services.loops, made, by="ada")
        for name in LOOPS:
            move(self.fleet.services.loops, name, "start", ADA)

    def kill_worker(self) -> None:
        """Kill the worker of G3 when some of its work was saved."""
        kept = "refs/mulligan/attempts/gamma/G3"
        self.wait_until(lambda: self.user.git("for-each-ref", kept), "the work to be saved")
        (live,) = (each for each in self.fleet.ledger.live_items() if each.item == "G3")
        self._note_lock()
        self.killed = live.worker
        os.kill(int(live.worker.rpartition(":")[2]), signal.SIGKILL)

        def is_taken_over() -> bool:
            if (lock := self.lock("gamma/G3")) is not None and lock not in self.locks:
                self.locks.append(lock)
            return self.snapshot("gamma").record("G3").state == "passed"

        self.wait_until(is_taken_over, "G3 to pass")

    def _note_lock(self) -> None:
        lock = self.lock("gamma/G3")
        assert lock is not None
        self.locks.append(lock)

    def deliver(self) -> None:
        """Deliver all loops. Those whose branch lacks what was delivered get one item more."""
        for name in LOOPS:
            self.wait_until(partial(self._is_completed, name), f"{name} to be completed")
        for name in LOOPS:
            self.wait_until(partial(self._is_delivered, name), f"{name} to be delivered")

    def _is_completed(self, name: str) -> bool:
        return self.snapshot(name).loop.state == "completed"

    def _is_delivered(self, name: str) -> bool:
        snapshot = self.snapshot(name)
        is_over = snapshot.count("passed") == len(snapshot.specs)
        if is_over and snapshot.loop.delivery_problem:
            made = coding_document("/x", item(f"{name}{len(snapshot.specs)}"), name=name)
            inject(self.fleet.services.loops, name, made.items, ADA)
        return bool(snapshot.loop.delivered) and not snapshot.loop.delivery_problem


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinated]:
    folder = tmp_path_factory.mktemp("coordination")
    config = folder / "mulligan.toml"
    user = UserRepository.make(folder / "user")
    lines = [f"{name[0].upper()}{n}: todo\n\n\n\n" for name in LOOPS for n in (1, 2)]
    user.commit({"shared.txt": "".join(lines)})
    user.git("branch", "release")
    with running_receiver() as receiver:
        events = json.dumps(["loop_escalated"])
        config.write_text(f"[[webhooks]]\nurl = {json.dumps(receiver.url)}\nevents = {events}\n")
        with running_fleet(
            folder / "fleet",
            pools=[CONTROL, work_pool(2, "one"), work_pool(2, "two")],
            environment={
                "MULLIGAN_CONFIG": str(config), "MULLIGAN_NO_MODELS": "except:command"
            },
            lease=3.0,
            max_claims=50,
            save_interval=1,
            loop_slots=2,
            repository_cache=folder / "cache",
        ) as fleet:  # fmt: skip
            made = Coordinated(fleet, receiver, user)
            made.start()
            made.kill_worker()
            made.deliver()
            yield made


def test_no_update_of_a_shared_file_is_lost(run: Coordinated) -> None:
    files = files_of(run.user.path, "release")
    shared = files["shared.txt"][1].decode().split()
    assert shared.count("done") == 2 * len(LOOPS)
    assert "todo" not in shared
    assert {f"{loop[0].upper()}9.txt" for loop in LOOPS} <= files.keys()
    for loop in LOOPS:
        check_passed_means_merged(run.fleet.services.loops, run.snapshot(loop))


def test_the_decisions_explain_who_ran_when(run: Coordinated) -> None:
    slots = {each.name: each.at for each in run.decisions("slot")}
    ends = {name: run.job(name).finished_at or 0.0 for name in slots}
    assert slots.keys() == {
        f"{loop}/{spec.id}" for loop in LOOPS for spec in run.snapshot(loop).specs
    }
    shared = sorted((n for n in slots if n[-1] in "12" and n[-2].isupper()), key=lambda n: slots[n])
    assert len(shared) == 2 * len(LOOPS)
    for first, second in pairwise(shared):
        assert ends[first] <= slots[second], f"{second} began before {first} had ended"
    denials = run.decisions("denied")
    assert denials
    for each in denials:
        assert "waits for shared.txt" in each.text
        assert slots[each.other] <= each.at
        assert ends[each.other] <= slots[each.name]


def test_a_deadlock_of_three_loops_is_broken_at_the_youngest_and_escalated(
    run: Coordinated,
) -> None:
    (found,) = run.decisions("deadlock")
    assert found.name == "gamma/G9"
    assert "alpha/A9 → beta/B9 → gamma/G9 → alpha/A9" in found.text
    slots = {each.name: each.at for each in run.decisions("slot")}
    assert found.at <= slots["gamma/G9"] < slots["beta/B9"] < slots["alpha/A9"]
    told = run.wait_until(lambda: run.receiver.bodies, "the alert")[0]
    assert (told["loop"], told["item"], told["action"]) == ("gamma", "G9", "escalate")
    (heal,) = run.snapshot("gamma").heals
    assert (heal.item, heal.pattern, heal.action) == ("G9", "deadlock", "escalate")


def test_a_file_that_was_not_declared_is_from_then_on(run: Coordinated) -> None:
    (found,) = run.decisions("undeclared")
    assert (found.name, found.files) == ("beta/B3", ("/notes.txt",))
    assert run.snapshot("beta").seen_files == {"B3": ("/notes.txt",)}
    assert files_of(run.user.path, "release")["notes.txt"][1] == b"of B3\n"


def test_the_files_of_an_item_survive_its_worker(run: Coordinated) -> None:
    (attempt,) = run.job("gamma/G3").attempts
    assert run.killed
    assert attempt.worker != run.killed
    assert files_of(run.user.path, "release")["half.txt"][1] == b"half\n"  # what was saved
    (lock,) = run.locks  # one grant, with one token, from the first worker to the last
    assert lock.files == ("G3.txt", "half.txt")
    assert run.fleet.ledger.coordination().locks == []
