"""Simulated jobs, providers and verifiers: an answer is the score that it will get."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mulligan.policies.failures.failure import Finding, VerificationResult, VerificationStatus
from mulligan.policies.jobs.job import Job, Output, RunnerSpec, Usage, VerifierSpec
from mulligan.tasks.ports.cancellation import current
from mulligan.tasks.ports.errors import (
    OutOfCredits,
    RunnerError,
    TransportFault,
    VerifierError,
)
from mulligan.tasks.ports.runners import Request
from mulligan.tasks.ports.verifiers import Candidate
from simulation.scheduler import Process

if TYPE_CHECKING:
    from simulation.world import World

TOKENS = 10


def make_job(scores: list[float], **fields: Any) -> Job:
    """Return a job whose attempts get these scores; the last one repeats."""
    fields = dict(fields)
    provider = fields.pop("provider", "alpha")
    slow = fields.pop("slow", 0)
    seconds = fields.pop("seconds", 1.0)
    same = fields.pop("same_failure", False)
    checks: list[dict[str, Any]] = [
        {"id": "simulated.check", "name": f"check{i}", "slow": i < slow, "same": same}
        for i in range(max(1, slow))
    ]
    if fields.get("subject"):
        fields["runner"] = {"kind": "external", "scores": scores}
        fields["verifiers"] = ["external.score"]
        delayed = {"mode": "reformulate", **fields.get("delayed_verification", {"after": 30})}
        fields["delayed_verification"] = {**delayed, "prompt": "In other words."}
    defaults: dict[str, Any] = {
        "task_type": "work",
        "prompt": "Do it.",
        "runner": {"kind": "simulated", "provider": provider, "scores": scores, "takes": seconds},
        "verifiers": checks,
        "delayed_verification": {"after": 30},
    }
    return Job.model_validate({**defaults, **fields})


@dataclass
class Purchase:
    """One answer that a provider gave, and what became of it."""

    #: The entry that its process handled: an attempt or a delayed verification.
    entry: str
    process: Process
    freezes: int
    #: Of its claim.
    token: str
    claimed_at: float
    #: Whether Redis took the answer.
    stored: bool = False


@dataclass
class Provider:
    """A provider that may be away or allow only some calls at once."""

    name: str
    away: bool = False
    #: Whether its credits are used up.
    unpaid: bool = False
    #: How many calls it takes at once; above, it answers 429.
    limit: int | None = None
    retry_after: float | None = None
    running: int = 0


@dataclass
class Providers:
    world: World
    by_name: dict[str, Provider] = field(default_factory=dict)
    purchases: list[Purchase] = field(default_factory=list)
    #: Calls by job and attempt, answered or not.
    calls: Counter[tuple[str, int]] = field(default_factory=Counter)

    def provider(self, name: str) -> Provider:
        return self.by_name.setdefault(name, Provider(name))


@dataclass
class SimulatedRunner:
    """Answers with the score of the attempt, after some simulated seconds."""

    world: World
    process: Process
    spec: RunnerSpec
    #: How often its process had frozen when the lease was sure; None: that is now.
    freezes: int | None = None

    @property
    def provider(self) -> str:
        return str(self.spec.options["provider"])

    def answer(self, request: Request) -> Output:
        world, job_id, n = self.world, request.job_id, request.attempt
        freezes = self.process.freezes if self.freezes is None else self.freezes
        provider = world.providers.provider(self.provider)
        entry = world.handled()
        claim = world.checker.claims[self.process, entry]  # another slot may claim it again
        found = world.before(self.process, "answer", f"{job_id}/{n} from {self.provider}")
        world.providers.calls[job_id, n] += 1
        if provider.away:
            raise TransportFault("simulated: away", provider=provider.name, status=503)
        if provider.unpaid:
            raise OutOfCredits("simulated: no credits", provider=provider.name, status=402)
        if provider.limit is not None and provider.running >= provider.limit:
            raise TransportFault(
                "simulated: too many requests",
                provider=provider.name,
                status=429,
                retry_after=provider.retry_after,
            )
        if self.process.freezes == freezes:  # one that froze on the way could not know
            world.checker.buying(self.process, entry)
        provider.running += 1
        try:
            seconds = float(str(self.spec.options["takes"]))
            tokens = self._tokens(request)
            if self.spec.options.get("meters"):
                world.scheduler.sleep(self.process, seconds / 2)
                request.meter({"tokens": tokens // 2})
                world.scheduler.sleep(self.process, seconds / 2)
            else:
                world.scheduler.sleep(self.process, seconds)
        finally:
            provider.running -= 1
        scores: Any = self.spec.options.get("scores", [90])
        score = scores[min(n, len(scores)) - 1]
        raises: Any = self.spec.options.get("raises", ())
        if n in raises:
            usage = Usage(total_tokens=tokens)
            said = Output(text=f"{score:g}", usage=usage, elapsed_seconds=seconds)
            raise RunnerError("simulated: exited with code 1", final=False, output=said)
        world.providers.purchases.append(Purchase(entry, self.process, freezes, *claim))
        world.after(self.process, found)
        current().check()
        usage = Usage(total_tokens=tokens)
        return Output(text=self._text(n, score), usage=usage, elapsed_seconds=seconds)

    def _text(self, n: int, score: float) -> str:
        answers: Any = self.spec.options.get("answers")
        return answers[min(n, len(answers)) - 1] if answers else f"{score:g}"

    def _tokens(self, request: Request) -> int:
        """Return what the answer takes. Runners of items respect the cap that they are given."""
        tokens = int(str(self.spec.options.get("uses", TOKENS)))
        if "uses" in self.spec.options and request.token_allowance is not None:
            tokens = min(tokens, request.token_allowance)
        return tokens


@dataclass
class SimulatedVerifier:
    """Scores an answer by what it says."""

    world: World
    process: Process
    spec: VerifierSpec
    longest = 60.0

    def __post_init__(self) -> None:
        self.slow = bool(self.spec.options.get("slow"))

    def verify(self, candidate: Candidate) -> VerificationResult:
        what = f"{candidate.job_id}/{candidate.attempt} {self.spec.label}"
        found = self.world.before(self.process, "verify", what)
        if any(fault.kind == "verifier_broken" for fault in found):
            raise VerifierError("simulated: the verifier is broken")
        if self.slow:
            self.world.scheduler.sleep(self.process, 2.0)
        score = float(candidate.text)
        self.world.after(self.process, found)
        if score >= 70:
            return VerificationResult(
                status=VerificationStatus.PASS, verifier_id=self.spec.id, score=score
            )
        code = "same" if self.spec.options["same"] else f"at{candidate.attempt}"
        return VerificationResult(
            status=VerificationStatus.FAIL,
            verifier_id=self.spec.id,
            score=score,
            summary=f"only {score:g}",
            evidence={"kind": "reasoning_error"},
            errors=(Finding(message=f"wrong {code}", code=code, path=f"$.{code}"),),
        )
