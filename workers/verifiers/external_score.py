"""``external.score``: the score comes with the attempt, from whoever made it."""

from __future__ import annotations

from typing import ClassVar, NoReturn

from mulligan.policies.failures.failure import GIVEN_SCORE
from mulligan.policies.value import Value
from mulligan.tasks.ports.errors import VerifierError
from mulligan.tasks.ports.verifiers import Candidate


class ExternalScore:
    """Stands for a check that is made elsewhere. There is nothing here to ask again."""

    id: ClassVar[str] = GIVEN_SCORE
    slow: bool = False

    class Options(Value):
        """None."""

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or self.Options()

    def verify(self, candidate: Candidate) -> NoReturn:
        raise VerifierError(f"the score of {candidate.job_id} is given elsewhere, with the attempt")
