"""Applying 1,000 edits: plain ``git apply`` against our operations, without and with their history.

    python -m benchmarks.edits [--edits 1000]

Every side changes one line in each of 1,000 files of 200 lines.

- ``git apply`` is run once for each diff in the tree itself, as a script would. It syncs nothing,
  and nothing can be undone. "and commit" makes a commit of each, which can be reverted.
- "files only": ours computes the change on a private copy, checks what it was computed from, and
  syncs the file and its folder. Nothing can be undone.
- "in this process": without the child process in which an operation that parses text runs.
- "with history": the same as a session does it, under the tree's lock, with the contents and the
  journal synced and a checkpoint for each edit. It can be undone, even after a crash. The session
  grows to all edits; its commits are made at the end of each round. "one by one" takes the lock and
  makes the commit for each edit, as a queue with many sessions would.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from statistics import median

from mulligan.policies.edits.edit import Edit
from mulligan.tasks.ports.appliers import ApplyContext, EditApplier, FileChange
from mulligan.workers.edits.operations.file_operations import PatchFile, SearchReplace
from mulligan.workers.edits.operations.killable_applier import KillableApplier
from mulligan.workers.edits.tree.edited_tree import EditedTree
from mulligan.workers.edits.tree.write_changes import perform

#: Edits per round. The sides alternate, so that a busy machine slows all of them.
ROUND = 50
PLAIN = "git apply"
LINES = [f"line {number}\n" for number in range(200)]
_ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    **{f"GIT_{who}_NAME": "bench" for who in ("AUTHOR", "COMMITTER")},
    **{f"GIT_{who}_EMAIL": "bench@localhost" for who in ("AUTHOR", "COMMITTER")},
}

#: Applies the edit of one file.
Apply = Callable[[str], object]
#: Computes the changes of a file's edit.
Compute = Callable[[Path, str], Sequence[FileChange]]
#: Opens a side on a root; its work at the beginning and the end of a round counts, too.
Side = Callable[[Path], AbstractContextManager[Apply]]


def main() -> None:
    """Print a table of all sides."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--edits", type=int, default=1000)
    edits = parser.parse_args().edits
    rounds = max(1, edits // ROUND)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        spent = measured(Path(folder).resolve(), sides(), rounds)
    print(f"{rounds * ROUND:,} edits of one line, one file each, in {rounds} alternating rounds;")
    print(f"{os.cpu_count()} cores, load {load:.1f} at the start\n")
    print("| side | seconds | ms per edit (median round) | ratio to git apply |\n|---|---|---|---|")
    for label, times in spent.items():
        middle = 1000 * median(times) / ROUND
        ratios = [ours / plain for ours, plain in zip(times, spent[PLAIN], strict=True)]
        print(f"| {label} | {sum(times):.2f} | {middle:.2f} | {median(ratios):.2f} |")


def sides() -> dict[str, Side]:
    patch = partial(compute_changes, PatchFile(), lambda name: {"diff": diff(name)})
    tolerant = partial(compute_changes, PatchFile(), lambda name: {"diff": inexact_diff(name)})
    replaced = {"search": "line 100\n", "replace": "changed\n"}
    here = partial(compute_changes, SearchReplace(), lambda _: replaced)
    search = partial(compute_changes, KillableApplier(SearchReplace()), lambda _: replaced)
    return {
        PLAIN: lambda root: nullcontext(partial(git_apply, root)),
        "git apply and commit": lambda root: nullcontext(partial(git_commit, root)),
        "patch_file, files only": partial(files_only, patch),
        "patch_file, with history": partial(with_history, patch),
        "patch_file, with history, one by one": partial(one_by_one, patch),
        "patch_file (tolerant), files only": partial(files_only, tolerant),
        "patch_file (tolerant), with history": partial(with_history, tolerant),
        "search_replace in this process, files only": partial(files_only, here),
        "search_replace, files only": partial(files_only, search),
        "search_replace, with history": partial(with_history, search),
    }


def measured(folder: Path, every: dict[str, Side], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each side for each round. Check every file afterwards."""
    spent: dict[str, list[float]] = {label: [] for label in every}
    for number in range(rounds):
        for place, (label, side) in enumerate(every.items()):
            root = folder / str(place) / "root"
            names = write_round(root, number)
            started = time.perf_counter()
            with side(root) as apply:
                for name in names:
                    apply(name)
            spent[label].append(time.perf_counter() - started)
            if any((root / name).read_text() != changed(name) for name in names):
                raise SystemExit(f"{label}: a file is not as it should be")
    return spent


def write_round(root: Path, number: int) -> list[str]:
    """Write the files of a round into a tree that is also a repository."""
    if not root.exists():
        root.mkdir(parents=True)
        git(root, "init", "-q")
    names = [f"d{n % 20}/f{n}.txt" for n in range(number * ROUND, (number + 1) * ROUND)]
    for name in names:
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text(name))
    git(root, "add", "-A")
    git(root, "commit", "-qm", "round")
    return names


def text(name: str) -> str:
    """Return a file's content. All differ, so that the history has to store each of them."""
    return "".join([f"{name}\n", *LINES[1:]])


def changed(name: str) -> str:
    return text(name).replace("line 100\n", "changed\n")


def diff(name: str) -> str:
    before, after = (
        "".join(f" {line}" for line in LINES[97:100]),
        "".join(f" {line}" for line in LINES[101:104]),
    )
    return f"--- a/{name}\n+++ b/{name}\n@@ -98,7 +98,7 @@\n{before}-line 100\n+changed\n{after}"


def inexact_diff(name: str) -> str:
    """Return the same diff with wrong counts, as models write them."""
    return diff(name).replace("-98,7 +98,7", "-1,3 +1,4")


def git(root: Path, *arguments: str, stdin: str = "") -> None:
    subprocess.run(
        ["git", *arguments], cwd=root, env=_ENVIRONMENT, input=stdin.encode(), check=True
    )


def git_apply(root: Path, name: str) -> None:
    git(root, "apply", "-", stdin=diff(name))


def git_commit(root: Path, name: str) -> None:
    git(root, "apply", "--index", "-", stdin=diff(name))
    git(root, "commit", "-qm", name)


def compute_changes(
    applier: EditApplier, payload: Callable[[str], dict[str, str]], root: Path, name: str
) -> Sequence[FileChange]:
    edit = Edit(id="e", op=applier.op, target=name, payload={**payload(name)})
    return applier.changes(edit, ApplyContext(root=root))


def files_only(compute: Compute, root: Path) -> AbstractContextManager[Apply]:
    return nullcontext(lambda name: perform(root, compute(root, name)))


@contextmanager
def with_history(compute: Compute, root: Path) -> Iterator[Apply]:
    tree = tree_of(root)
    with tree.held("bench"):
        yield lambda name: tree.apply(Path(name).stem, "bench", "auto", compute(root, name))


@contextmanager
def one_by_one(compute: Compute, root: Path) -> Iterator[Apply]:
    tree = tree_of(root)
    yield lambda name: tree.apply(Path(name).stem, "bench", "auto", compute(root, name))


def tree_of(root: Path) -> EditedTree:
    return EditedTree(root, root.parent / "home")


if __name__ == "__main__":
    main()
