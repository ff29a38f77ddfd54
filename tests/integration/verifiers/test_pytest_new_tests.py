"""pytest.subprocess: an attempt in a repository may add tests, which are run apart.

They can fail the attempt. Whatever they do, the tests that were there before decide on their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

import pytest
from support.pytest_project import verify_attempt

from mulligan.policies.failures.failure import VerificationResult, VerificationStatus
from mulligan.tasks.ports.errors import VerifierError

PASS, FAIL = VerificationStatus.PASS, VerificationStatus.FAIL

BASE = {
    "shop.py": "def total(prices):\n    return 0\n",
    "tests/test_total.py": """
from shop import total
def test_none(): assert total([]) == 0
def test_some(): assert total([1, 2]) == 3
""",
}
RIGHT = {"shop.py": "def total(prices):\n    return sum(prices)\n"}
WRONG = {"shop.py": "def total(prices):\n    return 0 * len(prices)\n"}
NEW = "tests/test_new.py"
PASSES = {NEW: "from shop import total\ndef test_new(): assert total([5]) == 5\n"}
FAILS = {NEW: "from shop import total\ndef test_new(): assert total([5]) == 6\n"}


class Verify(Protocol):
    def __call__(
        self, attempt: Mapping[str, str | None], base: Mapping[str, str] = BASE, **options: Any
    ) -> VerificationResult: ...


@pytest.fixture
def verify(tmp_path: Path) -> Verify:
    def call(
        attempt: Mapping[str, str | None], base: Mapping[str, str] = BASE, **options: Any
    ) -> VerificationResult:
        return verify_attempt(tmp_path, base, attempt, **options)

    return call


def places(result: VerificationResult) -> list[str | None]:
    return [error.path for error in result.errors]


def test_new_tests_that_pass_are_run_and_do_not_count(verify: Verify) -> None:
    result = verify(RIGHT | PASSES)
    assert (result.status, result.score, result.errors) == (PASS, 100, ())
    assert result.summary == "2 of 2 tests passed; new tests: 1 of 1 tests passed"
    assert (result.evidence["passed"], result.evidence["collected"]) == (2, 2)
    assert result.evidence["new_tests"] == {"passed": 1, "collected": 1}


def test_a_new_test_that_fails_fails_the_attempt(verify: Verify) -> None:
    result = verify(RIGHT | FAILS)
    assert result.status is FAIL
    assert result.score == pytest.approx(100 * 2 / 3)
    assert places(result) == [f"{NEW}::test_new"]
    assert "assert 5 == 6" in result.summary
    assert [each["nodeid"] for each in result.evidence["failed"]] == [f"{NEW}::test_new"]
    assert ">   def test_new()" in result.evidence["report"]
    assert result.evidence["exit_code"] == 1


def test_new_tests_do_not_make_up_for_others(verify: Verify) -> None:
    many = {NEW: "".join(f"def test_{number}(): pass\n" for number in range(98))}
    result = verify(WRONG | many)
    assert (result.status, result.score) == (FAIL, 50)
    assert places(result) == ["tests/test_total.py::test_some"]
    assert result.evidence["collected"] == 2


def test_failures_of_old_and_new_tests_are_reported_together(verify: Verify) -> None:
    result = verify(WRONG | FAILS)
    assert result.status is FAIL
    assert result.score == pytest.approx(100 / 3)
    assert places(result) == ["tests/test_total.py::test_some", f"{NEW}::test_new"]


#: What a new test file does to its run.
ATTACKS = {
    "reports that always pass": """
from _pytest import reports
make = reports.TestReport.from_item_and_call.__func__
def passed(cls, item, call):
    report = make(cls, item, call)
    report.outcome, report.longrepr = "passed", None
    return report
reports.TestReport.from_item_and_call = classmethod(passed)
def test_new(): pass
""",
    "the tests of others": """
import sys
for name, module in list(sys.modules.items()):
    if name.endswith("test_total"):
        module.test_some = lambda: None
def test_new(): pass
""",
    "the code of others": """
import shop
shop.total = sum
def test_new():
    with open(shop.__file__, "w") as file:
        file.write("total = sum")
    with open("tests/test_total.py", "w") as file:
        file.write("def test_none(): pass\\ndef test_some(): pass\\n")
""",
    "an end without an error": "import os\nos._exit(0)\n",
    "an end in a test": "import os\ndef test_new(): os._exit(0)\n",
    "an internal error": """
import _pytest.runner
def test_new(): _pytest.runner.call_and_report = None
""",
    "no tests": "import pytest\npytest.skip('none', allow_module_level=True)\n",
    "a false run": """
import pytest
pytest.exit("done", returncode=0)
""",
}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_new_test_cannot_change_the_verdict_of_others(verify: Verify, name: str) -> None:
    alone = verify(WRONG)
    result = verify(WRONG | {NEW: ATTACKS[name]})
    assert (result.status, result.errors[0]) == (FAIL, alone.errors[0])
    assert result.evidence["failed"][0] == alone.evidence["failed"][0]
    assert result.evidence["exit_code"] == alone.evidence["exit_code"]
    assert (result.score or 0) <= (alone.score or 0)


def test_a_new_test_file_is_code_of_the_answer_for_the_other_tests(verify: Verify) -> None:
    """Given code that imports a new test file, which forges the run."""
    code = {"shop.py": "import tests.test_new\n" + WRONG["shop.py"]}
    result = verify(code | {NEW: ATTACKS["reports that always pass"]})
    assert (result.status, result.score, result.errors[0].code) == (FAIL, 0, "forged")


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("def test_new(: pass\n", "syntax_error", "SyntaxError"),
        ("import not_installed\n", "import_error", "not_installed"),
        ("from shop import missing\n", "import_error", "missing"),
        ("import os\ndef test_new(): os._exit(0)\n", "early_exit", "must not exit"),
    ],
)
def test_a_new_test_file_that_cannot_be_run_fails_the_attempt(
    verify: Verify, text: str, code: str, said: str
) -> None:
    result = verify(RIGHT | {NEW: text})
    assert (result.status, result.errors[0].code) == (FAIL, code)
    assert said in result.errors[0].message
    assert NEW in (result.errors[0].path or "")
    assert result.score == pytest.approx(100 * 2 / 3)


def test_a_new_test_that_does_not_end_is_stopped_in_time(verify: Verify) -> None:
    started = monotonic()
    result = verify(RIGHT | {NEW: "def test_new():\n    while True: pass\n"}, timeout=5)
    assert monotonic() - started < 25, "the listing, two runs, and slack"
    assert (result.status, result.evidence["timed_out"]) == (FAIL, True)
    assert (result.errors[0].code, result.errors[0].path) == ("timeout", f"{NEW}::test_new")


# -- which tests are new ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "args",
    [["tests/test_total.py"], ["-k", "none or some"], [f"--ignore={NEW}"], ["--deselect", NEW]],
)
def test_new_tests_that_are_not_selected_are_not_run(verify: Verify, args: list[str]) -> None:
    result = verify(RIGHT | FAILS, args=args)
    assert (result.status, result.summary) == (PASS, "2 of 2 tests passed")
    assert "new_tests" not in result.evidence


@pytest.mark.parametrize("args", [["-x", "-q"], ["tests"], ["-k", "some or new"], ["-v"]])
def test_new_tests_that_are_selected_are_run(verify: Verify, args: list[str]) -> None:
    assert places(verify(RIGHT | FAILS, args=args)) == [f"{NEW}::test_new"]
    assert verify(RIGHT | PASSES, args=args).status is PASS


def test_a_new_package_of_tests_has_helpers(verify: Verify) -> None:
    files = {
        "tests/deep/__init__.py": "",
        "tests/deep/helpers.py": """
import pytest
class Checks:
    def test_it(self): assert self.value == 1
def need(found):
    if not found: pytest.skip("lacking")
""",
        "tests/deep/test_new.py": """
from .helpers import Checks, need
class TestNew(Checks):
    value = 1
def test_skipped(): need(False)
""",
    }
    result = verify(RIGHT | files)
    assert result.status is PASS, result.summary
    assert result.evidence["new_tests"] == {"passed": 1, "collected": 1}


def test_a_new_test_file_must_not_take_the_name_of_another(verify: Verify) -> None:
    """As it would break the whole suite when it is merged."""
    result = verify(RIGHT | {"tests/deep/test_total.py": "def test_new(): pass\n"})
    assert result.status is FAIL
    assert "import file mismatch" in result.errors[0].message
    assert "tests/deep/test_total.py" in result.errors[0].message


def test_the_suite_s_own_patterns_decide(verify: Verify) -> None:
    base = {**BASE, "pytest.ini": "[pytest]\npython_files = test_total.py check_*.py\n"}
    fails = "def test_new(): assert False\n"
    result = verify(RIGHT | {"checks/check_new.py": fails, NEW: fails}, base)
    assert places(result) == ["checks/check_new.py::test_new"]


@pytest.mark.parametrize("patterns", ["test_*.py *_test.py", "*.py"])
def test_code_may_be_in_a_new_file_with_the_name_of_a_test_file(
    verify: Verify, patterns: str
) -> None:
    base = {**BASE, "pytest.ini": f"[pytest]\npython_files = {patterns}\n"}
    code = {
        "shop.py": "from pricing.ab_test import total\n",
        "pricing/__init__.py": "",
        "pricing/ab_test.py": RIGHT["shop.py"],
    }
    result = verify(code, base)
    assert (result.status, result.summary) == (PASS, "2 of 2 tests passed")


# -- what stays as it was --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", [None, "def test_none(): pass\n", "import pytest\npytestmark = pytest.mark.skip\n"]
)
def test_protected_tests_are_those_of_the_base(verify: Verify, text: str | None) -> None:
    result = verify(WRONG | PASSES | {"tests/test_total.py": text})
    assert (result.status, result.evidence["passed"]) == (FAIL, 1)
    assert result.errors[0].path == "tests/test_total.py::test_some"
    assert result.warnings == ("tests/test_total.py is protected and was restored",)


def test_a_new_conftest_is_removed(verify: Verify) -> None:
    planted = "def pytest_collection_modifyitems(items): items.clear()\n"
    result = verify(RIGHT | FAILS | {"conftest.py": planted, "tests/conftest.py": planted})
    assert places(result) == [f"{NEW}::test_new"]


def test_old_tests_that_are_all_skipped_give_no_score(verify: Verify) -> None:
    base = {"tests/test_old.py": "import pytest\n@pytest.mark.skip\ndef test(): pass\n"}
    passing = verify({NEW: "def test_new(): pass\n"}, base)
    assert (passing.status, passing.score) == (VerificationStatus.SKIPPED, None)
    failing = verify({NEW: "def test_new(): assert False\n"}, base)
    assert (failing.status, failing.score) == (FAIL, 0)


@pytest.mark.parametrize(
    ("args", "message"), [([], "no tests in the workspace"), ([NEW], "cannot list the tests")]
)
def test_new_tests_alone_prove_nothing(verify: Verify, args: list[str], message: str) -> None:
    with pytest.raises(VerifierError, match=message):
        verify(RIGHT | PASSES, {"shop.py": BASE["shop.py"]}, args=args)
