"""Scores: weights, partial credit, penalties and success."""

from __future__ import annotations

import pytest

from mulligan.policies.failures.failure import VerificationResult, VerificationStatus
from mulligan.policies.jobs.job import GIT_DIFF, GIT_MERGE, VerifierSpec
from mulligan.policies.repair.retry import score_in_full
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
        ([check("pass"), check("fail", weight=2)], 100 / 3, False),  # (100 + 2*0) / 3
        ([check("fail", points=66.67)], 66.67, False),  # 2 of 3 tests
        ([check("pass", points=69.99)], 69.99, False),  # passed, but below 70
        ([check("pass", points=69.999)], 69.999, False),  # only displays round
        ([check("pass", points=69.9999999)], 69.9999999, False),
        ([check("pass", points=69.99999999999999)], 69.99999999999999, False),
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


@pytest.mark.parametrize(
    ("checks", "total"),
    [
        ([check("pass"), check("pass")], 100),
        ([check("skipped"), check("pass")], None),  # nothing shows that the work is done
        ([check("skipped"), check("skipped")], None),
        ([check("pass"), check("skipped")], 100),  # a guard may be skipped
        ([check("skipped"), check("fail")], 0),  # a failure is known, and corrected
        ([check("skipped"), check("fail", required=False)], None),
    ],
)
def test_work_in_a_repository_has_no_score_without_its_acceptance(
    checks: Checks, total: float | None
) -> None:
    """What a loop adds passes: something changed. The first check is acceptance, then a guard."""
    diff = VerifierSpec(id=GIT_DIFF, weight=0.001)
    merge = VerifierSpec(id=GIT_MERGE, weight=0.001, acceptance=[1], guard=[2])
    specs = [diff, *(spec for spec, _ in checks), merge]
    results = [check("pass")[1], *(result for _, result in checks), check("skipped")[1]]
    found = score(specs, results)
    assert found == (total if total is None else pytest.approx(total, abs=0.2))
    assert succeeded(specs, results, found) is (total == 100)


def weighing(passed: tuple[float, ...], failed: tuple[float, ...]) -> Checks:
    """Return checks with these weights, of which the failed ones are not required."""
    lost = [check("fail", weight=weight, required=False) for weight in failed]
    return [*(check("pass", weight=weight) for weight in passed), *lost]


@pytest.mark.parametrize(
    "checks",
    [
        # summed up as floats, these give 69.99999999999999
        weighing((0.1, 1.3), (0.4, 0.2)),
        weighing((0.2, 1.9), (0.8, 0.1)),
        weighing((0.7,), (0.1, 0.2)),
        # 2 of 3 tests and 11 of 15
        [check("pass", points=200 / 3), check("pass", points=1100 / 15)],
        [check("pass", weight=1 / 3, points=100 * n / 30) for n in (19, 21, 23)],
    ],
)
def test_a_score_of_exactly_70_is_70(checks: Checks) -> None:
    specs, results = [spec for spec, _ in checks], [result for _, result in checks]
    assert score(specs, results) == 70
    assert succeeded(specs, results, score(specs, results))


def test_a_score_that_is_nearly_70_is_not_lifted_to_it() -> None:
    checks = [check("pass", points=70, weight=1000), check("pass", points=69.99999999999999)]
    specs, results = [spec for spec, _ in checks], [result for _, result in checks]
    total = score(specs, results)
    assert total is not None
    assert 69.9 < total < 70
    assert not succeeded(specs, results, total)


@pytest.mark.parametrize("points", [-0.01, 100.01])
def test_a_score_out_of_range_is_refused(points: float) -> None:
    with pytest.raises(ValueError, match="score"):
        check("pass", points=points)


def test_a_score_in_a_sentence_is_rounded_down() -> None:
    shown = [score_in_full(value) for value in (69.99999999999999, 70.0, 0, 66.5, 100, None)]
    assert shown == ["69.99", "70", "0", "66.5", "100", "–"]
