"""A loop on a git repository: a user's code base, a scripted agent, and what must hold afterwards.

The agent is a few lines of Python that see the prompt, the name of the item and whether it is a
retry. Its checks are small programs, so that a whole attempt takes a fraction of a second.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

from mulligan.policies.loops.loop import LoopRecord, LoopSnapshot
from mulligan.policies.loops.spec import LoopDocument
from mulligan.tasks.loops.change import inject, reset
from mulligan.tasks.loops.context import LoopContext
from mulligan.tasks.loops.repository_sweep import unmerged_items
from mulligan.tasks.loops.rollback import finish_rollback, read_checkpoints, request_rollback
from mulligan.tasks.ports.ledger import JobView
from mulligan.workers.ledger.connection.calls import connect
from mulligan.workers.ledger.fake_redis import fake_client
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.settings.model import Settings
from support.doubles import MovableClock
from support.git_repositories import git
from support.inline_fleet import ADA, InlineFleet

LOOP = "demo"
BRANCH = f"mulligan/{LOOP}"
PYTHON = [sys.executable, "-I", "-S", "-c"]
#: What every agent has: its prompt, its item, and whether it is asked again.
PRELUDE = """
import os, pathlib, re, subprocess, sys, time
prompt = sys.stdin.read()
item = re.search(r"Item (\\w+)", prompt)[1]
again = "Do this now" in prompt
def has(name): return pathlib.Path(name).exists()
def read(name): return pathlib.Path(name).read_text()
def write(name, text):
    pathlib.Path(name).parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(name).write_text(text)
"""
#: An agent that does its item at once.
GOOD = "write(f'{item}.txt', 'done\\n')"


def agent(code: str, **options: Any) -> dict[str, Any]:
    """Return the runner of an agent that runs this code in its checkout."""
    return {"kind": "command", "argv": [*PYTHON, PRELUDE + code], **options}


def check(code: str, role: str = "acceptance", **options: Any) -> dict[str, Any]:
    """Return a verifier that passes if a condition in Python is true of the checkout."""
    program = (
        "import os, pathlib, sys\n"
        "def has(name): return pathlib.Path(name).exists()\n"
        "def read(name): return pathlib.Path(name).read_text() if has(name) else ''\n"
        f"sys.exit(not ({code}))"
    )
    return {"id": "command.subprocess", "argv": [*PYTHON, program], "role": role, **options}


def has_line(name: str, text: str) -> dict[str, Any]:
    """Return a verifier that passes if a file has a line."""
    return {"id": "command.subprocess", "argv": ["grep", "-qsx", text, name]}


def item(name: str, *depends_on: str, **fields: Any) -> dict[str, Any]:
    """Return an item whose file must exist."""
    return {
        "id": name,
        "prompt": f"Item {name}: make {name}.txt.",
        "depends_on": list(depends_on),
        "verifiers": [has_line(f"{name}.txt", "done")],
        **fields,
    }


def coding_document(
    repository: Path | str, *items: dict[str, Any], code: str = GOOD, **config: Any
) -> LoopDocument:
    """Return a loop of these items on a repository."""
    loop = {"name": LOOP, "repo": str(repository), "runner": agent(code), "base": "main", **config}
    return LoopDocument.model_validate({"loop": loop, "items": list(items)})


class CodingLoop(InlineFleet):
    """A loop on a repository in one process. Time passes when a test lets it.

    ``redis_url``: the ledger, which several processes share; by default one in memory.
    """

    def __init__(
        self,
        root: Path,
        repository: Path | str,
        *,
        clock: MovableClock | None = None,
        redis_url: str | None = None,
        **settings: Any,
    ) -> None:
        self.clock = clock or MovableClock()

        def open_ledger(chosen: Settings) -> RedisLedger:
            client = connect(redis_url) if redis_url else fake_client()
            return RedisLedger(client, chosen, patience=5.0, test_clock=self.clock)

        super().__init__(root / "home", open_ledger=open_ledger, **settings)
        self.repository = repository

    def start(self, *items: dict[str, Any], code: str = GOOD, **config: Any) -> None:
        """Create and start the loop."""
        self.create(coding_document(self.repository, *items, code=code, **config))

    def run_all(self, *items: dict[str, Any], code: str = GOOD, **config: Any) -> dict[str, str]:
        """Create the loop and run it until nothing is left to do; return its items' states."""
        self.start(*items, code=code, **config)
        self.run()
        return self.states(LOOP)

    def wait(self, seconds: float) -> None:
        """Let time pass and run what is due then."""
        self.clock.shift += seconds
        self.run()

    def finish(self) -> None:
        """Run until the loop is completed, however often something is due only later.

        After a pause of the sweep, holders get another lease, so it runs several times in one.
        """
        for _ in range(100):
            self.run()
            if self.loop.rollback:
                self.sweep()
            elif self.loop.state == "completed":
                return
            self.clock.shift += self.settings.lease / 3
        raise AssertionError(f"the loop does not end: {self.states(LOOP)}")

    # -- what became of it -------------------------------------------------------------------------

    @property
    def snapshot(self) -> LoopSnapshot:
        reading = self.ledger.read_loop(LOOP)
        assert reading is not None
        return reading.snapshot

    @property
    def loop(self) -> LoopRecord:
        return self.snapshot.loop

    def job(self, name: str) -> JobView:
        """Return the last run of an item."""
        view = self.ledger.job(self.snapshot.items[name].job_id)
        assert view is not None
        return view

    def prompt(self, name: str, attempt: int) -> str:
        """Return the corrected prompt of an attempt."""
        return self.job(name).attempts[attempt - 1].plan.prompt or ""

    def results(self, name: str, attempt: int = -1) -> dict[str, str]:
        """Return the summaries of an attempt's verifiers that do not pass, by their ids."""
        settled = self.job(name).attempts[attempt if attempt < 0 else attempt - 1]
        assert settled.verdict is not None
        found = settled.verdict.results
        return {each.verifier_id: each.summary for each in found if each.status.value != "pass"}

    def warnings(self, name: str) -> tuple[str, ...]:
        """Return the warnings of an item's merge."""
        verdict = self.job(name).attempts[-1].verdict
        assert verdict is not None
        return verdict.results[-1].warnings

    # -- people ------------------------------------------------------------------------------------

    def reset(self, name: str) -> None:
        reset(self.services.loops, LOOP, name, ADA)

    def add(self, *items: dict[str, Any]) -> None:
        inject(self.services.loops, LOOP, coding_document("/x", *items).items, ADA)

    def roll_back(self, *, to: str | None = None, item: str | None = None) -> None:
        request_rollback(self.services.loops, LOOP, ADA, to=to, item=item)
        assert finish_rollback(self.services.loops, LOOP)

    def sweep(self) -> int:
        sweep = self.services.repository_sweep
        return sweep.run() + sweep.deliver()


def merges(repository: Path, branch: str = BRANCH) -> list[str]:
    """Return the items that were merged into a branch, the first one first."""
    form = "--format=%(trailers:key=Mulligan-Item,valueonly,separator=%x2C)"
    found = git(repository, "log", "--first-parent", "--reverse", form, branch).splitlines()
    return [each.rpartition("/")[2] for each in found if each]


def push(repository: Path, name: str, message: str = "user fix") -> str:
    """Commit a new file to the branch, as somebody else does. Return the commit."""
    blob = git(repository, "hash-object", "-w", "--stdin", stdin=b"of a user\n")
    files = f"{git(repository, 'ls-tree', BRANCH)}\n100644 blob {blob}\t{name}\n"
    tree = git(repository, "mktree", stdin=files.encode())
    commit = git(repository, "commit-tree", tree, "-p", BRANCH, "-m", message)
    git(repository, "update-ref", f"refs/heads/{BRANCH}", commit)
    return commit


def check_passed_means_merged(loops: LoopContext, snapshot: LoopSnapshot) -> None:
    """Check that an item has passed exactly if it is merged, and that none is merged twice."""
    merged = Counter(
        each.item
        for each in read_checkpoints(loops, snapshot)
        if each.kind == "merge" and not each.undone
    )
    passed = {name for name, record in snapshot.items.items() if record.state == "passed"}
    assert merged == Counter(passed)
    assert unmerged_items(loops, snapshot) == []


def check_merged(fleet: CodingLoop, repository: Path) -> None:
    """Check that an item has passed exactly if it is merged, in a repository without damage."""
    check_passed_means_merged(fleet.services.loops, fleet.snapshot)
    git(repository, "fsck", "--strict")
