"""``external.score``: the score comes with the attempt, from its author."""

from __future__ import annotations

from typing import ClassVar, NoReturn

from mulligan.policies.failures.failure import GIVEN_SCORE
from mulligan.policies.value import Value
from mulligan.tasks.ports.errors import VerifierError
from mulligan.tasks.ports.verifiers import Candidate


class ExternalScore:
    """A placeholder for a check that another system makes. It cannot be repeated here."""

    id: ClassVar[str] = GIVEN_SCORE
    slow: bool = False

    class Options(Value):
        """No options."""

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or self.Options()

    def verify(self, candidate: Candidate) -> NoReturn:
        raise VerifierError(f"the score of {candidate.job_id} comes with the attempt")
