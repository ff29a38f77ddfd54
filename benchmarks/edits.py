"""Applying 1,000 edits: our operations and writer against plain ``git apply``.

    python -m benchmarks.edits [--edits 1000]

Every side changes one line in each of 1,000 files of 200 lines. ``git apply`` is run once for each
diff in the tree itself, as a script would, and syncs nothing. Ours computes the change on a private
copy, checks what it was computed from, syncs the file and its folder, and can be undone.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from mulligan.policies.edit import Edit
from mulligan.tasks.edit_ports import ApplyContext, EditApplier
from mulligan.workers.edits.code_ops import PatchFile, SearchReplace
from mulligan.workers.edits.writing import perform

#: Edits a round: the sides alternate, so that a busy machine is busy for all of them.
ROUND = 50
PLAIN = "git apply"
LINES = [f"line {number}\n" for number in range(200)]
_ENV = {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}

Apply = Callable[[Path, str], None]


def main() -> None:
    """Print a table of both sides."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--edits", type=int, default=1000)
    edits = parser.parse_args().edits
    sides: dict[str, Apply] = {
        PLAIN: git_apply,
        "patch_file (git accepts it)": lambda root, name: ours(root, PatchFile(), name, diff(name)),
        "patch_file (ladder)": lambda root, name: ours(root, PatchFile(), name, sloppy(name)),
        "search_replace": replace,
    }
    rounds = max(1, edits // ROUND)
    spent: dict[str, list[float]] = {label: [] for label in sides}
    for _ in range(rounds):
        for label, apply in sides.items():
            spent[label].append(measured(apply, min(edits, ROUND)))
    print(f"{edits:,} edits of one line, one file each, in {rounds} alternating rounds\n")
    print("| side | seconds | ms an edit (median round) | against git apply |\n|---|---|---|---|")
    for label, times in spent.items():
        middle = 1000 * median(times) / min(edits, ROUND)
        ratios = [ours / plain for ours, plain in zip(times, spent[PLAIN], strict=True)]
        print(f"| {label} | {sum(times):.2f} | {middle:.2f} | {median(ratios):.2f} |")


def measured(apply: Apply, edits: int) -> float:
    """Seconds that one side takes for all edits; every file is checked afterwards."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name).resolve()
        names = [f"d{number % 20}/f{number}.txt" for number in range(edits)]
        for file in names:
            (root / file).parent.mkdir(exist_ok=True)
            (root / file).write_text("".join(LINES))
        started = time.perf_counter()
        for file in names:
            apply(root, file)
        spent = time.perf_counter() - started
        wanted = "".join(LINES).replace("line 100\n", "changed\n")
        assert all((root / file).read_text() == wanted for file in names)
    return spent


def diff(name: str) -> str:
    before, after = (
        "".join(f" {line}" for line in LINES[97:100]),
        "".join(f" {line}" for line in LINES[101:104]),
    )
    return f"--- a/{name}\n+++ b/{name}\n@@ -98,7 +98,7 @@\n{before}-line 100\n+changed\n{after}"


def sloppy(name: str) -> str:
    """The same with wrong counts, as models write them."""
    return diff(name).replace("-98,7 +98,7", "-1,3 +1,4")


def git_apply(root: Path, name: str) -> None:
    env = _ENV | {"GIT_CEILING_DIRECTORIES": str(root.parent)}
    argv = ["git", "apply", "-"]
    subprocess.run(argv, cwd=root, env=env, input=diff(name).encode(), check=True)


def ours(root: Path, applier: EditApplier, name: str, text: str) -> None:
    edit = Edit(id="e", op=applier.op, target=name, payload={"diff": text})
    perform(root, applier.changes(edit, ApplyContext(root=root)))


def replace(root: Path, name: str) -> None:
    payload = {"search": "line 100\n", "replace": "changed\n"}
    edit = Edit(id="e", op="search_replace", target=name, payload=payload)
    perform(root, SearchReplace().changes(edit, ApplyContext(root=root)))


if __name__ == "__main__":
    main()
