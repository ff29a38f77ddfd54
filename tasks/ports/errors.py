"""The errors of mulligan, below one base class."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Self

from mulligan.policies.problem import FieldPath, Problem, ProblemCode


class MulliganError(Exception):
    """The base of every error of ours.

    MulliganError
    ├── BadInput          what was given cannot be accepted; its problems name field and fix
    ├── TransportFault    the provider could not be reached or said "later": same attempt, again
    ├── RunnerError       the runner cannot answer this, however often it is asked
    ├── VerifierError     a verifier could not reach a verdict; never blames the answer
    ├── MissingBlob       a stored snapshot or diff is gone
    └── LedgerUnavailable the ledger could not be reached
        └── LedgerRefused it was reached and said no: no memory, no disk, no permission
    """


class BadInput(MulliganError):
    """What was given cannot be accepted. ``problems`` has every one that was found."""

    def __init__(self, *problems: Problem | str) -> None:
        """A text is a problem of the whole: one sentence."""
        self.problems: tuple[Problem, ...] = tuple(
            Problem(each) if isinstance(each, str) else each for each in problems
        )
        super().__init__("\n".join(map(str, self.problems)))

    @classmethod
    def at(cls, path: str | FieldPath, message: str, code: ProblemCode = "invalid") -> Self:
        """One problem of one field. A text is a path of names: ``"workspace.path"``."""
        return cls(Problem.at(path, message, code))

    def has(self, code: ProblemCode) -> bool:
        """Whether one of the problems is of this kind."""
        return any(problem.code == code for problem in self.problems)


def refuse(problems: Iterable[Problem]) -> None:
    """BadInput with all of these, if there are any."""
    found = tuple(problems)
    if found:
        raise BadInput(*found)


@dataclass
class TransportFault(MulliganError):
    """The provider could not be reached or said "later"."""

    message: str
    provider: str
    status: int | None = None
    #: Seconds the provider asked us to wait.
    retry_after: float | None = None

    def __post_init__(self) -> None:
        super().__init__(self.message)

    def __str__(self) -> str:
        return self.message


@dataclass
class RunnerError(MulliganError):
    """The runner cannot answer this, however often it is asked, or failed as a program does."""

    message: str
    #: What classify_failure reads: ``{"kind": …}``, ``{"exit_code": …}`` and the like.
    evidence: dict[str, Any] = field(default_factory=dict)
    #: Whether asking again is pointless: a refused key, an unknown model, a missing program.
    final: bool = True

    def __post_init__(self) -> None:
        super().__init__(self.message)

    def __str__(self) -> str:
        return self.message


class VerifierError(MulliganError):
    """A verifier could not reach a verdict: a missing program, an internal error of pytest."""


class MissingBlob(MulliganError):
    """A stored snapshot or diff is gone."""


class LedgerUnavailable(MulliganError):
    """The ledger could not be reached."""


class LedgerRefused(LedgerUnavailable):
    """The ledger was reached and said no: waiting for it alone mends nothing."""
