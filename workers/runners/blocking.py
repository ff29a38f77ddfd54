"""No model by accident: while a variable is set, jobs get their answers from scripts alone.

Set by the pytest plug-in for tests, and inherited by the workers that a test starts.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from mulligan.policies.jobs.job import EXTERNAL, Output
from mulligan.tasks.ports.errors import RunnerError
from mulligan.tasks.ports.runners import Request

NO_MODELS = "MULLIGAN_NO_MODELS"
#: ``except:command,echo`` blocks all kinds of runners but these.
EXCEPT = "except:"
#: They ask nobody.
_HARMLESS = frozenset({"scripted", EXTERNAL})


def blocked(kind: str) -> bool:
    """Whether a runner of this kind may not be asked now. Any kind may stand for a model: a
    command-line agent, a plug-in."""
    value = os.environ.get(NO_MODELS, "")
    if not value or kind in _HARMLESS:
        return False
    allowed = value.removeprefix(EXCEPT).split(",") if value.startswith(EXCEPT) else ()
    return kind not in allowed


def refusal(kind: str) -> RunnerError:
    """What ends a job whose runner is of a kind that is blocked."""
    return RunnerError(
        f"{NO_MODELS} is set, so no runner of kind {kind} is asked: give the job scripted answers,"
        f' or mark the test with @pytest.mark.real_models or real_models("{kind}")'
    )


@dataclass(frozen=True)
class BlockedRunner:
    """In the place of one that may not be asked."""

    kind: str
    provider: str

    def answer(self, _request: Request) -> Output:
        raise refusal(self.kind)
