"""Scores: weights, partial credit, penalties and success."""

from __future__ import annotations

import pytest

from mulligan.policies.failures.failure import VerificationResult, VerificationStatus
from mulligan.policies.jobs.job import VerifierSpec
from mulligan.policies.repair.score import score, succeeded


def check(
    status: str,
    *,
    weight: float = 1,
    points: float | None = None,
    required: bool = True,
    coercions: tuple[str, ...] = (),
) -> tuple[VerifierSpec, VerificationResult]:
    spec = VerifierSpec(id="x", weight=weight, required=required)
    result = VerificationResult(
        status=VerificationStatus(status),
        verifier_id="x",
        score=points,
        evidence={"coercions": list(coercions)} if coercions else {},
    )
    return spec, result


Checks = list[tuple[VerifierSpec, VerificationResult]]


@pytest.mark.parametrize(
    ("checks", "total", "success"),
    [
        ([check("pass")], 100, True),
        ([check("fail")], 0, False),
        ([check("pass"), check("fail", weight=2)], 33.33, False),  # (100 + 2*0) / 3
        ([check("fail", points=66.67)], 66.67, False),  # 2 of 3 tests
        ([check("pass", points=69.99)], 69.99, False),  # passed, but below 70
        ([check("pass", points=70)], 70, True),
        ([check("skipped")], None, False),  # nothing verified is never a success
        ([check("pass"), check("skipped", weight=9)], 100, True),  # skipped is not counted
        ([check("warn")], 100, True),
        ([check("pass", coercions=("fence",))], 95, True),  # each kind of free repair costs 5
        ([check("pass", coercions=("fence", "prose"))], 90, True),
        ([check("pass", coercions=("fence",)), check("pass", coercions=("fence",))], 95, True),
        ([check("pass", weight=9), check("fail")], 90, False),  # a required one failed
        ([check("pass", weight=9), check("fail", required=False)], 90, True),
        ([check("fail", points=3, coercions=("fence",))], 0, False),  # never below 0
    ],
)
def test_the_score_and_the_success_of_an_attempt(
    checks: Checks, total: float | None, success: bool
) -> None:
    specs = [spec for spec, _ in checks]
    results = [result for _, result in checks]
    assert score(specs, results) == total
    assert succeeded(specs, results, total) is success


@pytest.mark.parametrize("points", [-0.01, 100.01])
def test_a_score_out_of_range_is_refused(points: float) -> None:
    with pytest.raises(ValueError, match="score"):
        check("pass", points=points)
