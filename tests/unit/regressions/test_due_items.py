"""Which changes concern an item, what one check covers, and what its results mean."""

from __future__ import annotations

import pytest

from mulligan.policies.failures.failure import VerificationResult, VerificationStatus
from mulligan.policies.jobs.job import VerifierSpec
from mulligan.policies.regressions.due import (
    FLAKE,
    MOST_ITEMS,
    MOST_VERIFIERS,
    argument_words,
    batch,
    judge_item,
    meets,
)

PASS, FAIL = VerificationStatus.PASS, VerificationStatus.FAIL
SKIPPED, WARN = VerificationStatus.SKIPPED, VerificationStatus.WARN


def verifier(number: int, *, required: bool = True) -> VerifierSpec:
    fields = {"id": "command.subprocess", "argv": ["test", str(number)], "required": required}
    return VerifierSpec.model_validate(fields)


def result(status: VerificationStatus, summary: str = "") -> VerificationResult:
    return VerificationResult(status=status, verifier_id="command.subprocess", summary=summary)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"src/a.py"}, True),  # its merge changed the file
        ({"docs/x/y.md"}, True),  # it declares the pattern
        ({"tests/test_a.py"}, True),  # a verifier names the file
        ({"checks/deep/b.sh"}, True),  # a verifier names the directory
        ({"src/b.py", "docs.md", "checks2/b.sh", "tests/test_ab.py"}, False),
        (set(), False),
    ],
)
def test_which_changes_concern_an_item(changed: set[str], expected: bool) -> None:
    words = ["tests/test_a.py::test_one", "./checks/", "-q"]
    assert meets(changed, {"src/a.py"}, ["docs/**"], words) is expected


def test_a_verifier_that_names_the_whole_tree_is_concerned_by_everything() -> None:
    assert meets({"src/deep/b.py"}, set(), [], ["."])
    assert meets({"b.py"}, set(), [], ["./"])


def test_arguments_of_verifiers_may_name_files() -> None:
    given = {"id": "pytest.subprocess", "args": ["-q", "tests/test_a.py", ""]}
    assert argument_words(VerifierSpec.model_validate(given)) == ["tests/test_a.py"]
    assert argument_words(VerifierSpec(id="json.object")) == []


def test_a_check_runs_each_verifier_once_and_has_a_limit() -> None:
    suite = verifier(0)
    items, verifiers = batch({"a": [suite], "b": [suite, verifier(1)], "c": [suite]})
    assert items == ["a", "b", "c"]
    assert verifiers == [suite, verifier(1)]
    items, verifiers = batch({str(n): [verifier(n)] for n in range(MOST_VERIFIERS + 5)})
    assert len(items) == len(verifiers) == MOST_VERIFIERS
    items, _ = batch({str(n): [suite] for n in range(MOST_ITEMS + 5)})
    assert len(items) == MOST_ITEMS
    items, _ = batch({"large": [verifier(n) for n in range(50)], "b": [suite]})
    assert items == ["large"]


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ([PASS, PASS], ("good", [])),
        ([PASS, FAIL], ("bad", [1])),
        ([FAIL, FAIL], ("bad", [0, 1])),
        ([SKIPPED, FAIL], ("bad", [1])),
        ([SKIPPED, PASS], ("unknown", [])),
        ([PASS, WARN], ("good", [])),
        ([PASS], ("unknown", [])),  # the check was lost
        ([], ("unknown", [])),
    ],
)
def test_what_the_results_of_a_check_say(
    results: list[VerificationStatus], expected: tuple[str, list[int]]
) -> None:
    specs = [verifier(0), verifier(1)]
    assert judge_item(specs, specs, [result(each) for each in results]) == expected


def test_a_verifier_that_is_not_required_breaks_nothing() -> None:
    specs = [verifier(0), verifier(1, required=False)]
    assert judge_item(specs, specs, [result(PASS), result(FAIL)]) == ("good", [])


def test_a_failure_that_did_not_repeat_is_flaky() -> None:
    specs = [verifier(0), verifier(1)]
    results = [result(PASS), result(PASS, f"{FLAKE}: it timed out")]
    assert judge_item(specs, specs, results) == ("flaky", [1])
