"""Scores: 0 to 100, weighted over the verifiers that ran.

A score is exact, because the threshold compares it: only displays round, and always down.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from mulligan.policies.failures.failure import VerificationResult, VerificationStatus
from mulligan.policies.jobs.job import GIT_MERGE, VerifierSpec
from mulligan.policies.repair.retry import PASSING_SCORE, passes

#: Points that each kind of free repair (a fence, prose, repaired JSON) costs, once.
COERCION_PENALTY = 5
#: The largest denominator of a share, such as tests passed out of tests collected.
_LARGEST_DENOMINATOR = 100_000
_SKIPPED = VerificationStatus.SKIPPED


def points(result: VerificationResult) -> float:
    """Return a verifier's score, or else 0 or 100. Not for a skipped verifier, which has none."""
    if result.score is not None:
        return result.score
    return 0.0 if result.status is VerificationStatus.FAIL else 100.0


def coercions(results: Sequence[VerificationResult]) -> tuple[str, ...]:
    """Return the distinct free repairs that the verifiers made, sorted."""
    return tuple(sorted({c for result in results for c in result.evidence.get("coercions", ())}))


def score(specs: Sequence[VerifierSpec], results: Sequence[VerificationResult]) -> float | None:
    """Return the weighted score of an attempt; None if it was not verified, never a success."""
    ran = [
        (_exact(spec.weight), _exact(points(result)))
        for spec, result in zip(specs, results, strict=True)
        if result.status is not _SKIPPED
    ]
    if not ran or _misses_acceptance(specs, results):
        return None
    mean = sum(weight * value for weight, value in ran) / sum(weight for weight, _ in ran)
    total = max(Fraction(0), mean - COERCION_PENALTY * len(coercions(results)))
    nearest = float(total)
    # The nearest float of a score just below the threshold may be the threshold itself.
    lifted = passes(nearest) and total < PASSING_SCORE
    return math.nextafter(PASSING_SCORE, 0) if lifted else nearest


def _misses_acceptance(
    specs: Sequence[VerifierSpec], results: Sequence[VerificationResult]
) -> bool:
    """Whether nothing forbids to merge the work of an item, but a check of the work was skipped.

    That something changed, and that guards pass, does not say that the work is done.
    """
    roles = specs[-1].options if specs[-1].id == GIT_MERGE else {}
    skipped = [i for i in roles.get("acceptance", ()) if results[i].status is _SKIPPED]
    return bool(skipped) and not any(specs[i].required for i in failed(results))


def _exact(value: float) -> Fraction:
    """Return the number that was meant: 2/3 for 0.6666666666666666, 7/10 for 0.7."""
    share = Fraction(value).limit_denominator(_LARGEST_DENOMINATOR)
    return share if float(share) == value else Fraction(repr(value))


def failed(results: Sequence[VerificationResult]) -> list[int]:
    return [i for i, result in enumerate(results) if result.status is VerificationStatus.FAIL]


def succeeded(
    specs: Sequence[VerifierSpec],
    results: Sequence[VerificationResult],
    total: float | None,
) -> bool:
    """Whether no required verifier failed and the score is high enough."""
    return passes(total) and not any(specs[i].required for i in failed(results))
