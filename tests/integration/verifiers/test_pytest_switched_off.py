"""pytest.subprocess: a test that ran before the work must run with it, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.pytest_project import Project, verify_attempt

from mulligan.policies.failures.failure import VerificationStatus
from mulligan.tasks.ports.errors import VerifierError
from mulligan.workers.verifiers.pytest import pytest_subprocess
from mulligan.workers.verifiers.pytest.run import run_pytest

PASS, FAIL, SKIPPED = VerificationStatus.PASS, VerificationStatus.FAIL, VerificationStatus.SKIPPED

ON = "ON, OFF, MODE, CASES = True, False, 'full', [1, 2]\ndef f(x=0): return 1\n"
WRONG_AND_OFF = "ON, OFF, MODE, CASES = False, True, 'lite', []\ndef f(x=0): return 7\n"
RIGHT = ON.replace("return 1", "return 2")
HEAD = "import sys, unittest\nimport pytest\nimport app\nfrom app import CASES, MODE, OFF, ON, f\n"
TEST = "tests/test_app.py"
SKIPIF = "@pytest.mark.skipif(not ON, reason='off')\ndef test_f(): assert f() == 2\n"
IS_SKIPPED, IS_GONE = "is skipped now", "does not exist now"
IS_EXPECTED = "is expected to fail now"
#: Tests that fail on the base and that a module of the answer can switch off; what is said then.
SWITCHES = {
    "skipif not": (SKIPIF, IS_SKIPPED),
    "skipif": ("@pytest.mark.skipif(OFF, reason='off')\ndef test_f(): assert f() == 2", IS_SKIPPED),
    "skipif in words": (
        "@pytest.mark.skipif('app.MODE != \"full\"', reason='off')\ndef test_f(): assert f() == 2",
        IS_SKIPPED,
    ),
    "skipIf": (
        "class TestF(unittest.TestCase):\n"
        "    @unittest.skipIf(OFF, 'off')\n"
        "    def test_f(self): assert f() == 2",
        IS_SKIPPED,
    ),
    "skip in the test": (
        "def test_f():\n    if OFF: pytest.skip('off')\n    assert f() == 2",
        IS_SKIPPED,
    ),
    "skip in a fixture": (
        "@pytest.fixture\ndef on():\n    if OFF: pytest.skip('off')\n"
        "def test_f(on): assert f() == 2",
        IS_SKIPPED,
    ),
    "xfail": (
        "@pytest.mark.xfail(OFF, reason='off')\ndef test_f(): assert f() == 2",
        IS_EXPECTED,
    ),
    "no parameters": (
        "@pytest.mark.parametrize('case', CASES)\ndef test_f(case): assert f(case) == 2",
        IS_GONE,
    ),
    "fewer parameters": (
        "@pytest.mark.parametrize('case', [*CASES, 3])\n"
        "def test_f(case): assert case == 3 or f(case) == 2",
        IS_GONE,
    ),
    "skip of the file": (
        "if not ON: pytest.skip('off', allow_module_level=True)\ndef test_f(): assert f() == 2",
        IS_GONE,
    ),
    "if": ("if ON:\n    def test_f(): assert f() == 2", IS_GONE),
    "if not": ("if not OFF:\n    def test_f(): assert f() == 2", IS_GONE),
}


def verify(root: Path, app: str, tests: str, *, base: str = ON, **options: Any) -> Any:
    """Verify an attempt that writes app.py, by these tests and one more in another file."""
    other = "def test_other(): assert True\n"
    files = {"app.py": base, TEST: HEAD + tests, "tests/test_other.py": other}
    return verify_attempt(root, files, {"app.py": app}, **options)


@pytest.mark.parametrize("name", SWITCHES)
def test_a_test_that_is_switched_off_fails(tmp_path: Path, name: str) -> None:
    tests, said = SWITCHES[name]
    result = verify(tmp_path, WRONG_AND_OFF, tests)
    assert result.status is FAIL
    assert result.errors[0].message == f"it ran before the work, and {said}"
    assert result.errors[0].code == "switched_off"
    assert "test_f" in (result.errors[0].path or "")
    passed, collected = result.evidence["passed"], result.evidence["collected"]
    # One other test passes, and one parameter that is not the answer's.
    assert (passed, collected - passed) == {
        "fewer parameters": (2, 2), "no parameters": (1, 2)
    }.get(name, (1, 1))  # fmt: skip
    assert result.score == pytest.approx(100 * passed / collected)
    assert f"{passed} of {collected} tests passed; " in result.summary


@pytest.mark.parametrize("name", SWITCHES)
def test_the_same_tests_accept_work_that_leaves_them_on(tmp_path: Path, name: str) -> None:
    result = verify(tmp_path, RIGHT, SWITCHES[name][0])
    assert (result.status, result.score, result.errors) == (PASS, 100, ())


@pytest.mark.parametrize("name", SWITCHES)
def test_what_is_off_before_the_work_stays_off(tmp_path: Path, name: str) -> None:
    changed = WRONG_AND_OFF.replace("return 7", "return 8")
    result = verify(tmp_path, changed, SWITCHES[name][0], base=WRONG_AND_OFF)
    assert (result.status, result.score, result.errors) == (PASS, 100, ())


def test_a_suite_whose_tests_are_all_switched_off_has_no_points(tmp_path: Path) -> None:
    result = verify(tmp_path, WRONG_AND_OFF, SKIPIF, args=[TEST])
    assert (result.status, result.score) == (FAIL, 0)
    assert result.summary == (
        f"0 of 1 tests passed; {TEST}::test_f: it ran before the work, and is skipped now"
    )


def test_a_test_of_a_snapshot_that_is_switched_off_fails(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    project.write("app.py", ON)
    project.write("test_app.py", HEAD + SKIPIF + "def test_other(): pass\n")
    result = project.verify(WRONG_AND_OFF, output_file="app.py")
    assert (result.status, result.score) == (FAIL, 50)
    assert project.verify(RIGHT, output_file="app.py").status is PASS


def test_a_test_that_needs_the_answer_can_be_switched_off_by_what_was_there(
    tmp_path: Path,
) -> None:
    """The file cannot be imported before the work. It is run with stubs for what it lacks."""
    tests = f"from app import g\n{SKIPIF}def test_g(): assert g() == 3\n"
    new = "\ndef g(): return 3\n"
    result = verify(tmp_path, WRONG_AND_OFF + new, tests)
    assert (result.status, result.errors[0].path) == (FAIL, f"{TEST}::test_f")
    assert verify(tmp_path, RIGHT + new, tests).status is PASS


HONEST = {
    "another platform": "@pytest.mark.skipif(sys.platform != 'plan9', reason='x')\n"
    "def test_x(): assert False",
    "a missing tool": "def test_x():\n    pytest.importorskip('not_there')",
    "an expected failure": "@pytest.mark.xfail\ndef test_x(): assert False",
}


@pytest.mark.parametrize("name", HONEST)
def test_other_skips_blame_no_answer(tmp_path: Path, name: str) -> None:
    """Neither where the file could be imported before the work, nor where it could not."""
    right = RIGHT + "def g(): return 3\n"
    for head in ("", "from app import g\n"):
        tests = f"{head}{HONEST[name]}\ndef test_f(): assert f() == 2\n"
        result = verify(tmp_path, right, tests)
        assert (result.status, result.score, result.errors) == (PASS, 100, ()), result


def test_parameters_of_the_answer_may_change_their_names(tmp_path: Path) -> None:
    tests = SWITCHES["no parameters"][0]
    result = verify(tmp_path, RIGHT.replace("[1, 2]", "[2, 3, 4]"), tests)
    assert (result.status, result.score) == (PASS, 100)


def test_tests_run_without_the_answer_only_if_one_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[tuple[str, ...]] = []

    def counted(work: Path, args: Any, **options: Any) -> Any:
        runs.append(tuple(options.get("only") or ()))
        return run_pytest(work, args, **options)

    monkeypatch.setattr(pytest_subprocess, "run_pytest", counted)
    plain = "def test_f(): assert f() == 2\ndef test_g(): pass\n"
    assert verify(tmp_path, RIGHT, plain).status is PASS
    assert runs == [()]
    skipping = f"{plain}@pytest.mark.skip\ndef test_h(): pass\n"
    assert verify(tmp_path, RIGHT, skipping).status is PASS
    assert runs[1:] == [(), (f"{TEST}::test_h",)]
    assert verify(tmp_path, RIGHT, skipping).status is PASS
    assert runs[3:] == [()], "what is known about the base is not found out again"


def test_without_time_to_compare_there_is_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer that takes long cannot keep its tests from being run without it."""
    slow = "import time\ntime.sleep(0 if ON else 60)\n" + SKIPIF.replace("not ON", "ON")
    clock = iter([0.0, *[179.9] * 9])
    monkeypatch.setattr(pytest_subprocess, "monotonic", lambda: next(clock))
    base = ON.replace("True", "False", 1)
    with pytest.raises(VerifierError, match="no time is left"):
        verify(tmp_path, RIGHT, slow, base=base)


def test_before_the_work_skipped_tests_stay_skipped(tmp_path: Path) -> None:
    result = verify(tmp_path, WRONG_AND_OFF, SKIPIF, base=WRONG_AND_OFF, args=[TEST])
    assert (result.status, result.score) == (SKIPPED, None)


@pytest.mark.parametrize(
    ("switch", "value", "status"), [("not NEW", False, FAIL), ("NEW", True, PASS)]
)
def test_a_value_that_is_new_may_not_switch_a_test_off(
    tmp_path: Path, switch: str, value: bool, status: VerificationStatus
) -> None:
    """It is known only of a test that runs if the value is true."""
    tests = f"""
from app import NEW
@pytest.mark.skipif({switch}, reason="x")
def test_x(): assert False
def test_f(): assert f() == 2
"""
    result = verify(tmp_path, RIGHT + f"NEW = {value}\n", tests)
    assert result.status is status
    if status is FAIL:
        assert result.errors[0].message == "it is skipped by a value that is new"
