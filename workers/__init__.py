"""The composition root and everything that touches the world.

What the handbook and plug-ins name is exported here and imported at first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mulligan.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from mulligan.tasks.ports.appliers import ApplyContext, EditApplier, Validation
    from mulligan.workers.edits.applier_registry import EditApplierRegistry
    from mulligan.workers.edits.execute_edits import EditContext, execute_edits
    from mulligan.workers.runners.runner_registry import RunnerRegistry
    from mulligan.workers.user_tasks.repairing_task import RepairingTask, install
    from mulligan.workers.verifiers.verifier_registry import VerifierRegistry
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "mulligan.tasks.ports.appliers": "ApplyContext EditApplier Validation",
            "mulligan.workers.edits.applier_registry": "EditApplierRegistry",
            "mulligan.workers.edits.execute_edits": "EditContext execute_edits",
            "mulligan.workers.runners.runner_registry": "RunnerRegistry",
            "mulligan.workers.user_tasks.repairing_task": "RepairingTask install",
            "mulligan.workers.verifiers.verifier_registry": "VerifierRegistry",
        },
    )

__all__ = [
    "ApplyContext",
    "EditApplier",
    "EditApplierRegistry",
    "EditContext",
    "RepairingTask",
    "RunnerRegistry",
    "Validation",
    "VerifierRegistry",
    "execute_edits",
    "install",
]
