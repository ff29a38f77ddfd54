"""The seams between the verbs and the world."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from mulligan.policies.failures.failure import VerificationResult
from mulligan.policies.jobs.job import Decoding, Message, Output, Workspace
from mulligan.policies.value import Json


@dataclass(frozen=True, kw_only=True)
class Request:
    """One call to a runner."""

    messages: tuple[Message, ...]
    decoding: Decoding = field(default_factory=Decoding)
    #: The job's contract, for runners that can constrain their output to it.
    json_schema: Mapping[str, Json] | None = None
    attempt: int = 1
    #: Seconds until the whole call is abandoned.
    timeout: float = 120.0
    #: The most tokens the answer may cost, from what is left of the budget.
    token_allowance: int | None = None
    workspace: Workspace | None = None
    job_id: str = ""


class Runner(Protocol):
    """Who answers a prompt."""

    @property
    def provider(self) -> str:
        """What a circuit breaker is kept for: a host, a program, or the kind."""

    def answer(self, request: Request) -> Output:
        """Answer, or raise TransportFault (ask again later) or RunnerError (final)."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """An output as verifiers see it."""

    output: Output
    #: What the runner answered, or what is left of it after a caller's own repairs.
    text: str
    workspace: Workspace | None = None
    job_id: str = ""
    attempt: int = 1


class Verifier(Protocol):
    """A check of an output."""

    #: Slow verifiers run as Celery tasks of their own on the verify queue. A slow one may have
    #: an attribute ``longest``: the seconds after which its process is taken to be stuck.
    slow: bool

    def verify(self, candidate: Candidate) -> VerificationResult:
        """Judge the candidate; raise VerifierError if no verdict could be reached."""


class BlobStore(Protocol):
    """Content-addressed bytes that every worker can read."""

    def put(self, data: bytes) -> str:
        """Store and return ``sha256:<hex>``."""

    def get(self, address: str) -> bytes:
        """The bytes, or MissingBlob."""


class MulliganError(Exception):
    """The base of every error of ours.

    MulliganError
    ├── BadInput          what was given cannot be accepted; the message names field and fix
    ├── TransportFault    the provider could not be reached or said "later": same attempt, again
    ├── RunnerError       the runner cannot answer this, however often it is asked
    ├── VerifierError     a verifier could not reach a verdict; never blames the answer
    ├── MissingBlob       a stored snapshot or diff is gone
    └── LedgerUnavailable the ledger could not be reached
        └── LedgerRefused it was reached and said no: no memory, no disk, no permission
    """


class BadInput(MulliganError):
    """What was given cannot be accepted. ``problems`` has one line per error."""

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


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
