"""Keep tests from asking a model by accident: while a variable is set, most runners refuse.

The pytest plug-in sets it, and the workers that a test starts inherit it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from mulligan.policies.jobs.job import EXTERNAL, Output
from mulligan.tasks.ports.errors import RunnerError
from mulligan.tasks.ports.runners import Request

NO_MODELS = "MULLIGAN_NO_MODELS"
#: ``except:command,echo`` blocks every kind of runner except these two.
EXCEPT = "except:"
#: Kinds that ask no model.
_NEVER_BLOCKED = frozenset({"scripted", EXTERNAL})


def blocked(kind: str) -> bool:
    """Return whether runners of this kind must refuse; a command or plug-in may ask a model too."""
    value = os.environ.get(NO_MODELS, "")
    if not value or kind in _NEVER_BLOCKED:
        return False
    allowed = value.removeprefix(EXCEPT).split(",") if value.startswith(EXCEPT) else ()
    return kind not in allowed


def refusal(kind: str) -> RunnerError:
    """Return the error that ends a job whose runner is blocked."""
    return RunnerError(
        f"{NO_MODELS} is set, so runners of kind {kind} refuse: give the job scripted answers,"
        f' or mark the test with @pytest.mark.real_models or real_models("{kind}")'
    )


@dataclass(frozen=True)
class BlockedRunner:
    """A runner that refuses every request."""

    kind: str
    provider: str

    def answer(self, _request: Request) -> Output:
        raise refusal(self.kind)
