"""Verify merged work: the verifiers of all items of a batch on one tree, identical ones once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mulligan.policies.failures.failure import VerificationResult, VerificationStatus
from mulligan.policies.jobs.job import Job, VerifierSpec
from mulligan.policies.repair import score as scoring
from mulligan.tasks.jobs.merge import NOT_MERGED, attempt_name, merge_index
from mulligan.tasks.ports.ledger import Claim
from mulligan.tasks.ports.verifiers import Verifier

_NOT_COMPARED = {"weight", "required", "name"}


@dataclass(frozen=True, kw_only=True)
class _Check:
    """A verifier that one or more items of a batch have."""

    claim: Claim
    index: int
    verifier: Verifier


@dataclass(frozen=True, kw_only=True)
class VerifiedTree:
    """What the verifiers of a batch say about a tree."""

    #: What fails, by attempt.
    failures: Mapping[str, VerificationResult]
    #: The verifiers that failed and passed when they ran again.
    flaky: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class MergeVerification:
    """Runs the verifiers of merged work."""

    #: Builds the verifiers of a job, or raises BadInput.
    build: Callable[[Job], Sequence[Verifier]]
    #: Runs one of them on an attempt's answer, or raises VerifierError.
    check: Callable[[Claim, int, Verifier], VerificationResult]
    #: Returns the most seconds that one may take.
    seconds: Callable[[Job, Verifier], float]
    _built: dict[str, Sequence[Verifier]] = field(default_factory=dict)

    def longest(self, claims: Sequence[Claim]) -> float:
        """Return the most seconds that the verifiers of these attempts take together, once."""
        return self._seconds(self._checks(claims).values())

    def verify(
        self, claims: Sequence[Claim], *, commit: str, base: str, has_time: Callable[[float], bool]
    ) -> VerifiedTree:
        """Verify a merge of these attempts into ``base``. What fails runs again, if time allows.

        Raises VerifierError if one of the verifiers reaches no verdict.
        """
        # Each has the answer of its own attempt, with the merge in place of its work.
        merged = {
            attempt_name(each): _with_commit(each, commit=commit, base=base) for each in claims
        }
        checks = self._checks(list(merged.values()))
        results = {key: self._run(each) for key, each in checks.items()}
        failures = self._failures(merged, results)
        failed = {
            key: each
            for key, each in checks.items()
            if results[key].status is VerificationStatus.FAIL
        }
        if not failures or not failed or not has_time(self._seconds(failed.values())):
            return VerifiedTree(failures=failures)
        results |= {key: self._run(each) for key, each in failed.items()}
        flaky = tuple(
            each.claim.job.verifiers[each.index].label
            for key, each in failed.items()
            if results[key].status is not VerificationStatus.FAIL
        )
        return VerifiedTree(failures=self._failures(merged, results), flaky=flaky)

    def _run(self, check: _Check) -> VerificationResult:
        return self.check(check.claim, check.index, check.verifier)

    def _seconds(self, checks: Iterable[_Check]) -> float:
        return sum(self.seconds(each.claim.job, each.verifier) for each in checks)

    def _checks(self, claims: Sequence[Claim]) -> dict[str, _Check]:
        """Return the different verifiers of attempts, by what they do."""
        found: dict[str, _Check] = {}
        for claim in claims:
            for index, verifier in enumerate(self._verifiers(claim)):
                if index != merge_index(claim.job):
                    check = _Check(claim=claim, index=index, verifier=verifier)
                    found.setdefault(_key(claim.job, index), check)
        return found

    def _verifiers(self, claim: Claim) -> Sequence[Verifier]:
        name = attempt_name(claim)
        if name not in self._built:
            self._built[name] = self.build(claim.job)
        return self._built[name]

    @staticmethod
    def _failures(
        claims: Mapping[str, Claim], results: Mapping[str, VerificationResult]
    ) -> dict[str, VerificationResult]:
        found = {}
        for name, claim in claims.items():
            merge = merge_index(claim.job)
            own = {
                index: results[_key(claim.job, index)]
                for index in range(len(claim.job.verifiers))
                if index != merge
            }
            if failed := first_failure(claim.job.verifiers, own):
                found[name] = failed
        return found


def _with_commit(claim: Claim, *, commit: str, base: str) -> Claim:
    if claim.output is None:
        raise ValueError(f"{claim.lease.entry} has nothing to merge")
    return Claim(
        lease=claim.lease,
        job=claim.job,
        plan=claim.plan,
        output=claim.output.model_copy(update={"commit": commit, "base": base}),
    )


def _key(job: Job, index: int) -> str:
    """Return what a verifier does, and where: the same for verifiers that differ in name only."""
    spec = job.verifiers[index].model_dump_json(exclude=_NOT_COMPARED)
    return f"{spec} {job.workspace.model_dump_json() if job.workspace else ''}"


def is_good(specs: Sequence[VerifierSpec], results: Mapping[int, VerificationResult]) -> bool:
    """Whether results satisfy the verifiers, whatever the merge will say."""
    found = [results.get(i, NOT_MERGED) for i in range(len(specs))]
    return scoring.succeeded(specs, found, scoring.score(specs, found))


def first_failure(
    specs: Sequence[VerifierSpec], results: Mapping[int, VerificationResult]
) -> VerificationResult | None:
    """Return what fails of the results of all verifiers but the merge; None if nothing does."""
    if is_good(specs, results):
        return None
    failed = [i for i, result in results.items() if result.status is VerificationStatus.FAIL]
    skipped = [i for i, result in results.items() if result.status is VerificationStatus.SKIPPED]
    # Without any failure, a check was skipped, or the score alone is too low.
    first = min(failed or skipped or results, key=lambda i: (not specs[i].required, i))
    return results[first].model_copy(update={"status": VerificationStatus.FAIL})
