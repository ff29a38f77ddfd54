"""The seam between a session and what measures it.

A tree's state is kept by its content. So either side of a comparison can be run once more at any
time, also when the tree is long edited, and the state after a kept edit is, without any copying of
numbers, the state before the next one.

For each edit: ``before = snapshot(root)``, apply, ``after = snapshot(root)``; then for repeat 0, 1…
``start`` and ``poll`` both states, join the scores, and ask ``policies.edits.gate.compare``. What
was measured before in the session is not measured again.
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
    """Runs a suite on states of a tree. Asking twice for the same does nothing twice."""

    def problems(self, suite: Suite, root: Path) -> list[Problem]:
        """Everything that keeps the suite from being run on this tree."""
        ...

    def forbidden(self, suite: Suite) -> list[Problem]:
        """What of it may not be run here, whatever the tree holds."""
        ...

    def snapshot(self, root: Path, changes: Sequence[FileChange] = ()) -> str:
        """Keep the tree as it is now, or as it would be with these changes; the name of that
        state. Nothing is written to the tree. BadInput if it is too large."""
        ...

    def start(self, suite: Suite, state: str, *, session: str, repeat: int) -> SuiteRuns:
        """Begin one repeat (0 is the first): submit its jobs. One that cannot be made from this
        state (its prompt's file is gone) scores 0. Commands are run by ``poll``."""
        ...

    def poll(self, suite: Suite, runs: SuiteRuns) -> SuiteScores | None:
        """The scores of that one repeat, or None: not all of it has ended.

        Never waits for a job. Runs the commands that are left, but begins none after its time
        slice: so one call takes a slice and the longest command's timeout at most.
        """
        ...
