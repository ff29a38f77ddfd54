"""The errors of mulligan, below one base class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from mulligan.policies.jobs.job import Output
from mulligan.policies.problem import FieldPath, Problem, ProblemCode


class MulliganError(Exception):
    """The base of every error of mulligan.

    MulliganError
    ├── BadInput          the input cannot be accepted; its problems name field and fix
    ├── TransportFault    the provider could not be reached or asked to wait: same attempt, again
    │   └── OutOfCredits    it refuses all calls until somebody pays or the quota is renewed
    ├── RunnerError       the runner cannot answer this request
    ├── VerifierError     a verifier reached no verdict; this is not the answer's failure
    │   ├── SetupFailed     a command that prepares a checkout fails
    │   │   └── SetupBroken   it fails only with the answer, and this is the answer's failure
    │   ├── TooCostly       it takes more time or memory than allowed, or ends its process
    │   └── ProcessesBusy   no process is free for what may be too costly
    ├── MissingBlob       a stored snapshot or diff is gone
    ├── DamagedRecord     a stored record cannot be read
    ├── CallCancelled     nobody wants the runner's answer any more
    └── StoreUnavailable  a store is away; no attempt failed, and nothing was judged
        ├── WorkspaceUnavailable   what an attempt works on is away
        │   ├── BlobsUnavailable       the blob store could not be reached
        │   └── RepositoryUnavailable  a git repository could not be reached, or not be written now
        └── LedgerUnavailable    the ledger could not be reached, or is starting or busy
            └── LedgerRefused    it answers and refuses: no memory, no disk, read-only
    """


class BadInput(MulliganError):
    """The input cannot be accepted. ``problems`` has every problem that was found."""

    def __init__(self, *problems: Problem | str) -> None:
        """Take problems; a string is a problem of the whole input."""
        self.problems: tuple[Problem, ...] = tuple(
            Problem(each) if isinstance(each, str) else each for each in problems
        )
        super().__init__("\n".join(map(str, self.problems)))

    @classmethod
    def at(cls, path: str | FieldPath, message: str, code: ProblemCode = "invalid") -> Self:
        """Return the error for one field. A string is a dotted path: ``"workspace.path"``."""
        return cls(Problem.at(path, message, code))

    def has(self, code: ProblemCode) -> bool:
        """Whether one of the problems has this code."""
        return any(problem.code == code for problem in self.problems)


def refuse(problems: Iterable[Problem]) -> None:
    """Raise BadInput with these problems, if there are any."""
    found = tuple(problems)
    if found:
        raise BadInput(*found)


@dataclass
class TransportFault(MulliganError):
    """The provider could not be reached or asked to wait."""

    message: str
    provider: str
    status: int | None = None
    #: Seconds that the provider asked to wait.
    retry_after: float | None = None
    #: Whether it may have begun to answer, which costs something: a timeout, a lost connection.
    maybe_served: bool = False

    def __post_init__(self) -> None:
        super().__init__(self.message)

    def __str__(self) -> str:
        return self.message


class OutOfCredits(TransportFault):
    """The credits or the quota of the provider's account are used up.

    Raise it for a status, a structured code or an exit code, never for a phrase in a text: the
    whole fleet stops calling the provider, except for one call now and then.
    """


@dataclass
class RunnerError(MulliganError):
    """The runner cannot answer this request, or its program failed."""

    message: str
    #: For classify_failure: ``{"kind": …}``, ``{"exit_code": …}`` and so on.
    evidence: dict[str, Any] = field(default_factory=dict)
    #: Whether asking again cannot help: a refused key, an unknown model, a missing program.
    final: bool = True
    #: What the runner said and used until then, if it says so.
    output: Output | None = None

    def __post_init__(self) -> None:
        super().__init__(self.message)

    def __str__(self) -> str:
        return self.message


class VerifierError(MulliganError):
    """A verifier reached no verdict: a missing program, an internal error of pytest."""


class SetupFailed(VerifierError):
    """A command that prepares a checkout fails. ``evidence`` is for classify_failure."""

    def __init__(self, message: str, evidence: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.evidence = dict(evidence or {})


class SetupBroken(SetupFailed):
    """It fails with the answer and not without it: this is the answer's failure."""


class TooCostly(VerifierError):
    """The work takes longer or needs more memory than allowed, or ends the process that does it."""


class ProcessesBusy(VerifierError):
    """All processes for work that may be too costly are busy. Try again later."""


class MissingBlob(MulliganError):
    """A stored snapshot or diff is gone."""


class DamagedRecord(MulliganError):
    """A stored record cannot be read."""


class CallCancelled(MulliganError):
    """The lease of the attempt is lost: its answer would be refused."""


class StoreUnavailable(MulliganError):
    """A store is away. Try again later: nothing is known about the attempt."""


class WorkspaceUnavailable(StoreUnavailable):
    """What an attempt works on is away."""


class BlobsUnavailable(WorkspaceUnavailable):
    """The blob store could not be reached."""


class RepositoryUnavailable(WorkspaceUnavailable):
    """A git repository could not be reached, or its branch may not be written now."""


class LedgerUnavailable(StoreUnavailable):
    """The ledger could not be reached, or does not work yet."""

    def __init__(self, message: str, *, reason: str = "away") -> None:
        super().__init__(message)
        #: One word: away, loading, busy, read_only, full, disk, no_replicas or refused.
        self.reason = reason


class LedgerRefused(LedgerUnavailable):
    """The ledger was reached and refused."""

    def __init__(self, message: str, *, reason: str = "refused") -> None:
        super().__init__(message, reason=reason)
