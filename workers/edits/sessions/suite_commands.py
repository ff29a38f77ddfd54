"""The commands of a suite: each in a private copy of the tree, and the scores it prints."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mulligan.policies.edits.suite import WHOLE, SuiteTask, TaskScore
from mulligan.tasks.ports.errors import VerifierError
from mulligan.workers.sandbox.file_tree import Tree, write_tree
from mulligan.workers.sandbox.private import private_directory
from mulligan.workers.sandbox.subprocesses import Completed, Limits, clean_environment, run

#: One command prints no more scores than this.
_MOST_NAMES = 10_000
_LONGEST_NAME = 200
_SAID = 300


def run_command(
    task: SuiteTask,
    tree: Tree,
    *,
    seed: int,
    repeat: int,
    limits: Limits | None = None,
    root: Path | None = None,
) -> TaskScore:
    """Run a task's command in a copy of the tree that nobody else sees. Failing is a score of 0;
    being stopped or killed, or not having started, is no verdict.

    It finds ``MULLIGAN_SEED`` (the same before and after an edit) and ``MULLIGAN_REPEAT`` in its
    environment. What it writes is thrown away.
    """
    with private_directory(root) as work:
        write_tree(tree, work)
        extra = {
            "MULLIGAN_SEED": str(seed),
            "MULLIGAN_REPEAT": str(repeat),
            "PYTHONHASHSEED": str(seed),
            "PATH": search_path(),
        }
        try:
            completed = run(
                task.command or (),
                cwd=work,
                timeout=task.seconds,
                env=clean_environment(work.parent, extra),
                limits=limits or Limits(),
            )
        except VerifierError as error:
            return _nothing(task, str(error), verdict=False)
    return read_score(task, completed)


def search_path() -> str:
    """Where programs are looked for: as everywhere, and at last beside our own Python."""
    own = str(Path(sys.executable).parent)
    return os.pathsep.join([os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin"), own])


def program_problem(argv: Sequence[str], root: Path) -> str | None:
    """Why a command cannot be started in this tree."""
    program = argv[0]
    if "/" not in program:
        if shutil.which(program, path=search_path()) is None:
            return f"there is no program {program!r} on this host"
    elif not os.access(root / program, os.X_OK) or not (root / program).is_file():
        return f"{program} is not there, or may not be executed"
    return None


def read_score(task: SuiteTask, completed: Completed) -> TaskScore:
    """The score that a command printed last, whatever its exit code; else by its exit code."""
    if completed.timed_out:
        return _nothing(task, f"stopped after {task.seconds:g} s", verdict=False)
    if completed.signal is not None:
        note = f"ended by signal {completed.signal}{_said(completed)}"
        return _nothing(task, note, verdict=False)
    printed = _printed(completed.stdout)
    if printed is not None:
        return _from_json(task, printed)
    passed = completed.exit_code == 0
    note = "" if passed else f"exit code {completed.exit_code}{_said(completed)}"
    return _whole(task, 1.0 if passed else 0.0, note)


def _printed(stdout: str) -> Mapping[str, Any] | None:
    """The object with scores that is all of the output, or its last line."""
    lines = stdout.strip().splitlines()
    for text in (stdout, lines[-1] if lines else ""):
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict) and ("score" in found or "scores" in found):
            return found
    return None


def _from_json(task: SuiteTask, printed: Mapping[str, Any]) -> TaskScore:
    if "scores" not in printed:
        return _whole(task, printed["score"], "")
    named = printed["scores"]
    if not isinstance(named, dict) or not named:
        return _nothing(task, 'printed scores that are no mapping: {"scores": {"name": 0.5}}')
    if len(named) > _MOST_NAMES or any(not 0 < len(name) <= _LONGEST_NAME for name in named):
        return _nothing(task, f"printed more than {_MOST_NAMES} scores, or one without a fair name")
    return _checked(task, named, "")


def _whole(task: SuiteTask, value: Any, note: str) -> TaskScore:
    if task.cluster is None:
        hint = 'name a cluster in the suite, or print {"scores": {"cluster": 0.5}}'
        return _nothing(task, f"its score counts for no cluster: {hint}{note and f' ({note})'}")
    return _checked(task, {WHOLE: value}, note)


def _checked(task: SuiteTask, values: Mapping[str, Any], note: str) -> TaskScore:
    strange = [v for v in values.values() if isinstance(v, bool) or not isinstance(v, int | float)]
    try:
        if not strange:
            return TaskScore(task=task.id, cluster=task.cluster, values=dict(values), note=note)
    except ValidationError:
        strange = [v for v in values.values() if not 0 <= v <= 1]
    return _nothing(task, f"printed {strange[0]!r}, which is no number from 0 to 1")


def _nothing(task: SuiteTask, note: str, *, verdict: bool = True) -> TaskScore:
    """No score at all. A cluster that is known still gets its 0."""
    values = {} if task.cluster is None else {WHOLE: 0.0}
    return TaskScore(task=task.id, cluster=task.cluster, values=values, note=note, verdict=verdict)


def _said(completed: Completed) -> str:
    lines = (completed.stderr.strip() or completed.stdout.strip()).splitlines()[-3:]
    return ": " + " / ".join(lines)[-_SAID:] if lines else ""
