"""The commands of a suite: each runs in a private copy of the tree and prints its scores."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mulligan.policies.edits.suite import WHOLE, SuiteTask, TaskScore
from mulligan.tasks.ports.errors import VerifierError
from mulligan.workers.sandbox.file_tree import Tree, write_tree
from mulligan.workers.sandbox.limits import Limits
from mulligan.workers.sandbox.private import private_directory
from mulligan.workers.sandbox.subprocesses import Completed, clean_environment, run

#: Limits of what one command prints: scores, and characters of a score's name.
_MAX_SCORES = 10_000
_MAX_NAME = 200
#: Characters of a failed command's output to quote.
_QUOTED = 300


def run_command(
    task: SuiteTask,
    tree: Tree,
    *,
    seed: int,
    repeat: int,
    limits: Limits | None = None,
    root: Path | None = None,
) -> TaskScore:
    """Run a task's command in a private copy of the tree and return its score. A failure scores 0;
    a command that times out, is killed or does not start gives no verdict.

    Its environment has ``MULLIGAN_SEED`` (the same before and after an edit) and
    ``MULLIGAN_REPEAT``. What it writes is deleted.
    """
    with private_directory(root) as work:
        write_tree(tree, work)
        extra = {
            "MULLIGAN_SEED": str(seed),
            "MULLIGAN_REPEAT": str(repeat),
            "PYTHONHASHSEED": str(seed),
        }
        try:
            completed = run(
                task.command or (),
                cwd=work,
                timeout=task.seconds,
                env=clean_environment(work.parent, extra) | {"PATH": search_path()},
                limits=limits or Limits(),
            )
        except VerifierError as error:
            return _zero(task, str(error), verdict=False)
    return read_score(task, completed)


def search_path() -> str:
    """Return the PATH of commands: the process' own, then the folder of this Python."""
    python_folder = str(Path(sys.executable).parent)
    return os.pathsep.join([os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin"), python_folder])


def program_problem(argv: Sequence[str], root: Path) -> str | None:
    """Return why a command cannot be started in this tree, or None."""
    program = argv[0]
    if "/" not in program:
        if shutil.which(program, path=search_path()) is None:
            return f"there is no program {program!r} on this host"
    elif not os.access(root / program, os.X_OK) or not (root / program).is_file():
        return f"{program} does not exist or is not executable"
    return None


def read_score(task: SuiteTask, completed: Completed) -> TaskScore:
    """Return the score that a command printed, or else the one of its exit code."""
    if completed.timed_out:
        return _zero(task, f"stopped after {task.seconds:g} s", verdict=False)
    if completed.signal is not None:
        note = f"ended by signal {completed.signal}{_quote(completed)}"
        return _zero(task, note, verdict=False)
    printed = _find_scores(completed.stdout)
    if printed is not None:
        return _read_scores(task, printed)
    passed = completed.exit_code == 0
    note = "" if passed else f"exit code {completed.exit_code}{_quote(completed)}"
    return _one_score(task, 1.0 if passed else 0.0, note)


def _find_scores(stdout: str) -> Mapping[str, Any] | None:
    """Return the JSON object with scores that is the whole output or its last line."""
    lines = stdout.strip().splitlines()
    for text in (stdout, lines[-1] if lines else ""):
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict) and ("score" in found or "scores" in found):
            return found
    return None


def _read_scores(task: SuiteTask, printed: Mapping[str, Any]) -> TaskScore:
    if "scores" not in printed:
        return _one_score(task, printed["score"], "")
    named = printed["scores"]
    if not isinstance(named, dict) or not named:
        return _zero(task, 'printed scores that are not a mapping: {"scores": {"name": 0.5}}')
    if len(named) > _MAX_SCORES:
        return _zero(task, f"printed more than {_MAX_SCORES} scores")
    if any(not 0 < len(name) <= _MAX_NAME for name in named):
        return _zero(task, f"printed a score whose name is empty or longer than {_MAX_NAME}")
    return _check(task, named, "")


def _one_score(task: SuiteTask, value: Any, note: str) -> TaskScore:
    if task.cluster is None:
        hint = 'name a cluster in the suite, or print {"scores": {"cluster": 0.5}}'
        return _zero(task, f"its score counts for no cluster: {hint}{note and f' ({note})'}")
    return _check(task, {WHOLE: value}, note)


def _check(task: SuiteTask, values: Mapping[str, Any], note: str) -> TaskScore:
    for value in values.values():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 <= value <= 1:
            return _zero(task, f"printed {value!r}, which is not a number from 0 to 1")
    return TaskScore(task=task.id, cluster=task.cluster, values=dict(values), note=note)


def _zero(task: SuiteTask, note: str, *, verdict: bool = True) -> TaskScore:
    """Return no score or, if the task's cluster is known, 0."""
    values = {} if task.cluster is None else {WHOLE: 0.0}
    return TaskScore(task=task.id, cluster=task.cluster, values=values, note=note, verdict=verdict)


def _quote(completed: Completed) -> str:
    lines = (completed.stderr.strip() or completed.stdout.strip()).splitlines()[-3:]
    return ": " + " / ".join(lines)[-_QUOTED:] if lines else ""
