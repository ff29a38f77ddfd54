"""The port for measuring the edits of a session.

The state of a tree is stored by its content. So both sides of a comparison can be run again at any
time, even after further edits, and the state after a kept edit is the state before the next one.

For each edit: ``before = snapshot(root)``, apply, ``after = snapshot(root)``; then for repeat 0, 1…
``start`` and ``poll`` both states, join the scores, and call ``policies.edits.gate.compare``. What
the session has measured is not measured again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from mulligan.policies.edits.suite import Suite, SuiteRuns, SuiteScores
from mulligan.policies.problem import Problem
from mulligan.tasks.ports.appliers import FileChange

__all__ = ["Measurer", "Suite", "SuiteRuns", "SuiteScores"]


class Measurer(Protocol):
    """Runs a suite on states of a tree. A repeated request does nothing twice."""

    def problems(self, suite: Suite, root: Path) -> list[Problem]:
        """Return every reason why the suite cannot run on this tree."""
        ...

    def forbidden(self, suite: Suite) -> list[Problem]:
        """Return what may not run here, whatever the tree contains."""
        ...

    def snapshot(self, root: Path, changes: Sequence[FileChange] = ()) -> str:
        """Store the tree as it is now, or with these changes, and return the name of that state.
        Nothing is written to the tree. Raise BadInput if it is too large."""
        ...

    def start(self, suite: Suite, state: str, *, session: str, repeat: int) -> SuiteRuns:
        """Start one repeat (0 is the first): submit its jobs. A job that cannot be built from this
        state (its prompt's file is gone) scores 0. ``poll`` runs the commands."""
        ...

    def poll(self, suite: Suite, runs: SuiteRuns) -> SuiteScores | None:
        """Return the scores of one repeat, or None if some of it has not ended.

        Never wait for a job. Run the remaining commands, but start none after the time slice, so
        that one call takes at most a slice and the longest command's timeout.
        """
        ...
