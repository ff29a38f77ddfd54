"""A loop of 14 items on a small code base, with an agent that fails in every usual way.

`make demo-loop` runs it. Everything happens in a temporary directory: a repository of `project/`,
`mulligan up` with its own Redis, and the loop. It needs no model, no key and no network.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import repository
from agent import MISHAPS
from fleet import Fleet, FleetError, running_fleet
from progress import Item, Progress, heal_words
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

HERE = Path(__file__).resolve().parent
#: The loop's own files. The repository is made from `project`.
FILES = ("loop.yaml", "mulligan.toml", "agent.py", "specs", "solutions", "accounts")
#: The account of the profile `trial` has a quota again so many seconds after the start of the loop.
#: A provider that is out of credits is tried again after 60 s.
QUOTA_SECONDS = 40.0
#: What goes wrong at the first try without a mistake of the agent.
CIRCUMSTANCES = {
    "SHOP-001": "Edit the same lines as SHOP-002 at the same time.",
    "SHOP-002": "Edit the same lines as SHOP-001 at the same time.",
    "SHOP-004": "Be out of credits.",
}
#: They edit the same lines at once, and do not say so.
SAME_LINES = ("SHOP-001", "SHOP-002")
#: The second one waits for a file that both declare.
FILES_WAITED_FOR = ("SHOP-006", "SHOP-007")
_TICK = 0.6
_ENDED = ("completed", "blocked", "stopped", "paused")


@contextmanager
def working_directory(*, keep: bool) -> Iterator[Path]:
    """Make a directory that everyone may read: agents run as another user if this one is root."""
    folder = Path(tempfile.mkdtemp(prefix="mulligan-shop-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        if keep:
            Console().print(f"kept: {folder}", style="dim")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def prepare(folder: Path) -> None:
    """Write the loop's files and make the repository beside them."""
    for name in FILES:
        source = HERE / name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, folder / name)
    repository.make_repository(folder / "project")


def follow(progress: Progress, console: Console, *, timeout: float) -> None:
    """Show the loop until it ends. Without a terminal, only its events are printed."""
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while progress.elapsed < timeout:
            for event in progress.look():
                if not console.is_terminal:
                    console.print(event.line(), soft_wrap=True)
            if console.is_terminal:
                live.update(progress.render(), refresh=True)
            if progress.status in _ENDED:
                return
            time.sleep(_TICK)


def survived(item: Item) -> str:
    """Say what became of an item's first try, from what the loop has recorded."""
    if item.state != "passed":
        return f"{item.state}: {item.failures[-1]}" if item.failures else item.state
    if item.files_held_by:
        said = f"waited for the files of {item.files_held_by}"
        said = f"{said}; {item.failures[0]}" if item.failures else said
    elif item.heals:
        done = " → ".join(heal_words(each) for each in item.heals)
        said = f"{item.heals[0]['reason'].rstrip('.')} → {done} → {item.heals[-1]['outcome']}"
    elif item.waited_for:
        said = "waited until the provider answered again"
    elif hung := [each for each in item.ended if "stopped by a signal" in each]:
        said = f"{hung[0]}, ran again"
    elif item.failures:
        said = item.failures[0]
    elif item.ended:
        said = f"its session broke off ({item.ended[0]}); its work was verified all the same"
    else:
        said = "verified and merged as it was"
    tries = len(item.attempts)
    return said if tries < 2 else f"{said} → passed at attempt {tries}"


def summary(progress: Progress) -> Table:
    """Return what went wrong, and what followed."""
    mishaps = {item: (mishap.__doc__ or "").strip() for item, mishap in MISHAPS.items()}
    first_tries = CIRCUMSTANCES | mishaps
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("item", "the first try", "what followed"):
        table.add_column(column, no_wrap=column == "item")
    for item in progress.items.values():
        if first_try := first_tries.get(item.id):
            table.add_row(item.id, first_try, survived(item))
    return table


def check(console: Console, passed: bool, text: str) -> bool:
    mark = Text("✓ " if passed else "✗ ", "green" if passed else "red")
    console.print(mark + Text(text), soft_wrap=True)
    return passed


def report(
    console: Console, folder: Path, progress: Progress, before: repository.UserState
) -> bool:
    """Print what came of the loop, and return whether all of it is as it should be."""
    project = folder / "project"
    if not check(console, repository.has_branch(project), f"the branch {repository.BRANCH}"):
        return False
    console.print(summary(progress))
    console.print()
    console.print(f"git log --oneline --first-parent {repository.BRANCH}", style="bold")
    for line in repository.history(project):
        console.print(f"  {line}", soft_wrap=True)
    console.print()
    items = progress.items
    total = len(items)
    complete = progress.passed == total and progress.status == "completed"
    green, said = repository.run_all_tests(project, folder / "final")
    conflicted = [each for each in SAME_LINES if any("conflict" in f for f in items[each].failures)]
    names = ", ".join(conflicted) or "none"
    first, second = FILES_WAITED_FOR
    waited = items[second].files_held_by.endswith(f"/{first}")
    untouched = repository.UserState.of(project) == before
    done = f"{progress.passed} of {total} items passed, in {progress.count_attempts()} attempts"
    return all(
        [
            check(console, complete, f"{done} and {progress.took:.0f} s"),
            check(console, len(conflicted) == 1, f"one conflict: {names}"),
            check(console, waited, f"{second} waited for the files of {first}"),
            check(console, green, f"the whole suite on the branch: {said}"),
            check(console, not repository.has_gitlink(project), "the branch has all of its files"),
            check(console, untouched, "the user's branch, index and files are as they were"),
        ]
    )


def run(console: Console, folder: Path, *, timeout: float) -> bool:
    prepare(folder)
    before = repository.UserState.of(folder / "project")
    console.print("starting Redis, workers and the console …", style="dim")
    with running_fleet(folder) as fleet:
        console.print(f"the page: {fleet.url}/loops", style="dim", soft_wrap=True)
        progress = run_loop(console, fleet, timeout=timeout)
        if progress.status != "completed":
            console.print(f"the loop is {progress.status}: {progress.why}", style="red")
        return report(console, folder, progress, before)


def run_loop(console: Console, fleet: Fleet, *, timeout: float) -> Progress:
    renewed_at = f"{time.time() + QUOTA_SECONDS:.0f}\n"
    (fleet.folder / "accounts" / "trial").write_text(renewed_at, "utf-8")
    fleet.run("loops", "create", ".", "--start")
    progress = Progress(fleet)
    follow(progress, console, timeout=timeout)
    return progress


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--keep", action="store_true", help="keep the temporary directory")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for the loop")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    console = Console(highlight=False)
    try:
        with working_directory(keep=options.keep) as folder:
            return 0 if run(console, folder, timeout=options.timeout) else 1
    except FleetError as error:
        console.print(str(error), style="red", markup=False, soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        console.print("stopped", style="dim")
        return 130


if __name__ == "__main__":
    sys.exit(main())
