"""How long a loop needs to recover, with the shipped settings: `python -m benchmarks.recovery`.

A control worker and two other workers run a loop of one item on a git repository. Then the worker
or the agent of the item is stopped or killed, or the agent starts as many processes as it can.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.rig import rig
from mulligan.policies.loops.loop import ItemRecord
from mulligan.policies.loops.spec import LoopDocument
from mulligan.tasks.loops import change
from mulligan.tasks.loops.view import why
from mulligan.tasks.ports.ledger import LiveItem, Requester
from mulligan.workers.celery.broker.queues import JOB_QUEUES, Pool
from mulligan.workers.celery.factory import create_app
from mulligan.workers.local.supervisor import Stack, child_environment
from mulligan.workers.services import app_services
from mulligan.workers.settings.model import Settings

console = Console(width=110)
_CALLER = Requester(by="benchmark")
_POOLS = (
    Pool(name="control", queues=("control", "loop", "mulligan.submit"), kind="solo"),
    Pool(name="one", queues=JOB_QUEUES, slots=4),
    Pool(name="two", queues=JOB_QUEUES, slots=4),
)
#: Until the fault, the agent works and misbehaves; afterwards it does its item at once.
_AGENT = """# {mark}
import os, pathlib, time
def misbehave():
{misbehaviour}
if not pathlib.Path({flag!r}).exists():
    misbehave()
pathlib.Path("done.txt").write_text("done\\n")
"""
_WAITS = "    time.sleep(3600)"
_FORKS = """    while True:
        try:
            os.fork()
        except OSError:
            time.sleep(0.1)"""
_BURNS = """    end = time.monotonic() + {seconds}
    for _ in range({processes}):
        if not os.fork():
            while time.monotonic() < end:
                pass
            os._exit(0)
    for _ in range({processes}):
        os.wait()"""


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """What followed a fault. Seconds are counted from it."""

    fault: str
    #: Until a worker ran the item again; None if that was not necessary.
    again: float | None
    passed: float
    #: The longest time without a renewal of the lease, among all that was seen.
    gap: float


class Loops:
    """Workers with the shipped settings, and loops of one item."""

    def __init__(self, settings: Settings, stack: Stack, folder: Path) -> None:
        services = app_services(settings, create_app(settings), local_paths=True)
        self.context, self.ledger = services.loops, services.ledger
        self.stack, self.folder = stack, folder
        self.repository = folder / "repository"
        _make_repository(self.repository)
        self._made = 0

    def create(self, misbehaviour: str, **limits: int) -> Run:
        """Start a loop, and return it when its agent runs."""
        self._made += 1
        name, mark = f"loop-{self._made}", secrets.token_hex(8)
        flag = self.folder / "flags" / name
        flag.parent.mkdir(exist_ok=True)
        code = _AGENT.format(mark=mark, misbehaviour=misbehaviour, flag=str(flag))
        runner = {
            "kind": "command",
            "argv": [sys.executable, "-I", "-S", "-c", code],
            "read": [str(flag.parent)],  # programs see no directory with the socket of the ledger
            **({"limits": limits} if limits else {}),
        }
        check = {"id": "command.subprocess", "argv": ["grep", "-qsx", "done", "done.txt"]}
        item = {"id": "A", "prompt": "Make done.txt.", "verifiers": [check]}
        loop = {"name": name, "repo": str(self.repository), "base": "main", "runner": runner}
        change.create_loop(
            self.context, LoopDocument.model_validate({"loop": loop, "items": [item]}), by="bench"
        )
        change.move(self.context, name, "start", _CALLER)
        return Run(self, name, mark, flag)


class Run:
    """A loop whose item runs, and what is seen of it."""

    def __init__(self, loops: Loops, name: str, mark: str, flag: Path) -> None:
        self._loops, self._name, self._mark, self._flag = loops, name, mark, flag
        self._renewals: list[float] = []

    def agents(self) -> list[psutil.Process]:
        """Return the processes of the agent and its launcher, in the order of their start."""
        return [p for p in psutil.process_iter() if self._mark in " ".join(_command_line(p))]

    def live(self) -> LiveItem | None:
        found = [each for each in self._loops.ledger.live_items() if each.loop == self._name]
        live = found[0] if found and found[0].held else None
        if live is not None and live.renewed_at is not None:
            self._renewals.append(live.renewed_at)
        return live

    def worker(self) -> int:
        """Return the process of the worker that runs the item."""
        live = self.live()
        assert live is not None
        return int(live.worker.rpartition(":")[2])

    def wait(self, condition: Callable[[], object], *, seconds: float = 900.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                held = why(self._loops.context, self._name, "A").text
                raise SystemExit(f"{self._name} does not go on: {held}")
            self._loops.stack.watch()
            time.sleep(0.1)

    def wait_for_agents(self, number: int = 1) -> None:
        self.wait(lambda: self.live() is not None and len(self.agents()) >= number, seconds=120)

    def end_of(self, fault: str) -> Recovery:
        """Let the next agent do its item, and measure from now on."""
        began = self._loops.ledger.now()
        self._flag.touch()
        claims: list[float] = []

        def passed() -> bool:
            live = self.live()
            if live is not None and live.claimed_at is not None and live.claimed_at > began:
                claims.append(live.claimed_at)
            return self._item().state == "passed"

        self.wait(passed)
        gaps = [b - a for a, b in zip(self._renewals, self._renewals[1:], strict=False)]
        return Recovery(
            fault=fault,
            again=min(claims) - began if claims else None,
            passed=self._item().since - began,
            gap=max(gaps, default=0.0),
        )

    def _item(self) -> ItemRecord:
        reading = self._loops.ledger.read_loop(self._name)
        assert reading is not None
        return reading.snapshot.items["A"]


# -- faults ----------------------------------------------------------------------------------------


def stop_worker(loops: Loops) -> Recovery:
    """Stop the worker of an item."""
    run = loops.create(_WAITS)
    run.wait_for_agents()
    worker = run.worker()
    os.kill(worker, signal.SIGSTOP)
    try:
        return run.end_of("worker stopped (SIGSTOP)")
    finally:
        os.kill(worker, signal.SIGCONT)


def kill_worker(loops: Loops) -> Recovery:
    """Kill the worker of an item; its supervisor starts another one."""
    run = loops.create(_WAITS)
    run.wait_for_agents()
    os.kill(run.worker(), signal.SIGKILL)
    return run.end_of("worker killed (kill -9)")


def stop_agent(loops: Loops) -> Recovery:
    """Stop an agent with its launcher and its children."""
    run = loops.create(_WAITS)
    run.wait_for_agents()
    for process in run.agents():
        with suppress(psutil.NoSuchProcess):
            process.suspend()
    return run.end_of("agent and all its processes stopped (SIGSTOP)")


def fork_bomb(loops: Loops, *, processes: int) -> Recovery:
    """Let an agent start processes until its limit, and go on trying."""
    run = loops.create(_FORKS, processes=processes)
    run.wait_for_agents(processes // 2)
    return run.end_of("agent forks without end")


def starve(loops: Loops, *, seconds: float) -> Recovery:
    """Let an agent compute with eight processes for each processor."""
    burners = 8 * (os.cpu_count() or 1)
    run = loops.create(_BURNS.format(seconds=seconds, processes=burners))
    run.wait_for_agents(burners)
    return run.end_of("agent burns all processors")


# -- workers and a repository ----------------------------------------------------------------------


@contextmanager
def running_loops(folder: Path) -> Iterator[Loops]:
    home = folder / "home"
    with rig(home) as made:
        settings = Settings(broker_url=made.broker, allow_inline=True, home=home)
        environment = child_environment(
            settings, broker_url=made.broker, MULLIGAN_ALLOW_INLINE="true"
        )
        stack = Stack(home, environment)
        try:
            for pool in _POOLS:
                stack.add(pool.name, pool.argv())
            yield Loops(settings, stack, folder)
        finally:
            stack.stop()


def _make_repository(folder: Path) -> None:
    folder.mkdir()
    me = ("-c", "user.name=bench", "-c", "user.email=bench@example.org")
    for argv in (
        ("init", "--quiet", "--initial-branch", "main"),
        (*me, "commit", "--quiet", "--allow-empty", "--message", "Begin"),
    ):
        subprocess.run(["git", *argv], cwd=folder, check=True)


def _command_line(process: psutil.Process) -> Sequence[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return ()


# -- the report ------------------------------------------------------------------------------------


def _print(found: Sequence[Recovery]) -> None:
    table = Table(title="seconds after the fault: min / median / max")
    for column in ("fault", "runs again", "passed", "lease not renewed for"):
        table.add_column(column, justify="left" if column == "fault" else "right", no_wrap=True)
    for fault in dict.fromkeys(each.fault for each in found):
        rows = [each for each in found if each.fault == fault]
        again = [each.again for each in rows if each.again is not None]
        cells = [_spread(again) if again else "not necessary", _spread([r.passed for r in rows])]
        table.add_row(fault, *cells, f"{max(each.gap for each in rows):.0f}")
    console.print(table)


def _spread(values: Sequence[float]) -> str:
    return " / ".join(f"{v:.0f}" for v in (min(values), statistics.median(values), max(values)))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recovery", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=200, help="limit of the fork bomb")
    parser.add_argument("--seconds", type=float, default=60.0, help="of burning all processors")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="mb-"))
    root.chmod(0o755)  # agents run as another user if this one is root
    load = f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start"
    found: list[Recovery] = []
    try:
        with running_loops(root) as loops:
            for _ in range(options.rounds):
                found += [stop_worker(loops), kill_worker(loops), stop_agent(loops)]
                found.append(fork_bomb(loops, processes=options.processes))
                found.append(starve(loops, seconds=options.seconds))
    finally:
        shutil.rmtree(root, ignore_errors=True)
    if options.json:
        print(json.dumps({"computer": load, "rounds": [asdict(each) for each in found]}, indent=2))
    else:
        console.print(load)
        _print(found)


if __name__ == "__main__":
    main()
