"""pytest.subprocess: tests score honest answers, and dishonest ones are detected."""

from __future__ import annotations

import venv
from pathlib import Path
from typing import Any

import pytest
from support.pytest_project import TESTS, Project

from mulligan.policies.failures.failure import VerificationResult, VerificationStatus
from mulligan.policies.jobs.job import Output, VerifierSpec
from mulligan.policies.repair import score as scoring
from mulligan.tasks.ports.errors import BadInput, VerifierError
from mulligan.tasks.ports.verifiers import Candidate
from mulligan.workers.sandbox.limits import Limits
from mulligan.workers.sandbox.visible_files import system_files
from mulligan.workers.verifiers.pytest.pytest_subprocess import PytestSubprocess

PASS, FAIL = VerificationStatus.PASS, VerificationStatus.FAIL

RIGHT = "def bitcount(n):\n    return bin(n).count('1')\n"
WRONG = "def bitcount(n):\n    return 7\n"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = Project(tmp_path / "project")
    project.write("test_bitcount.py", TESTS)
    return project


def codes(result: VerificationResult) -> list[str | None]:
    return [error.code for error in result.errors]


# -- honest answers --------------------------------------------------------------------------------


def test_a_right_answer_passes(project: Project) -> None:
    result = project.verify(RIGHT)
    assert result.status is PASS
    assert result.score == 100
    assert result.errors == ()
    isolation = result.evidence["isolation"]
    assert result.evidence == {
        "exit_code": 0,
        "timed_out": False,
        "passed": 4,
        "collected": 4,
        "failed": [],
        "isolation": isolation,
    }
    assert {"seccomp", "no_new_privs", "rlimits"} <= set(isolation)


@pytest.mark.parametrize(
    ("answer", "coercions", "total"),
    [
        (f"```python\n{RIGHT}```", ["fence"], 95),
        (f"Sure!\n```python\n{RIGHT}```\nBye", ["fence", "prose"], 90),
    ],
)
def test_a_right_answer_in_a_fence_passes_and_is_penalised(
    project: Project, answer: str, coercions: list[str], total: float
) -> None:
    result = project.verify(answer)
    assert (result.status, result.score) == (PASS, 100)
    assert result.evidence["coercions"] == coercions
    assert result.warnings == tuple(f"coerced: {coercion}" for coercion in coercions)
    specs = [VerifierSpec(id="pytest.subprocess")]
    assert scoring.score(specs, [result]) == total
    assert scoring.succeeded(specs, [result], total)


def test_a_partly_right_answer_gets_partial_credit(project: Project) -> None:
    result = project.verify("def bitcount(n):\n    return min(n, 2)\n", args=["test_bitcount.py"])
    assert result.status is FAIL
    assert result.score == 75
    assert result.evidence["exit_code"] == 1
    assert result.evidence["failed"] == [
        {
            "nodeid": "test_bitcount.py::test_more[255-8]",
            "exception": "AssertionError",
            "frame": "test_bitcount.py:test_more",
            "assertion": "assert 2 == 8",
        }
    ]
    [error] = result.errors
    assert (error.code, error.path) == ("assertion", "test_bitcount.py::test_more[255-8]")
    assert "where 2 = bitcount(255)" in error.message


@pytest.mark.parametrize(
    ("answer", "code", "exception", "frame"),
    [
        ("def bitcount(n) return 1", "syntax_error", "SyntaxError", "bitcount.py:<module>"),
        ("import not_installed", "import_error", "ModuleNotFoundError", "bitcount.py:<module>"),
        ("x = 1", "import_error", "ImportError", "test_bitcount.py:<module>"),
        ("x = undefined", "collection_error", "NameError", "bitcount.py:<module>"),
    ],
)
def test_an_answer_that_cannot_be_imported_fails(
    project: Project, answer: str, code: str, exception: str, frame: str
) -> None:
    result = project.verify(answer)
    assert result.status is FAIL
    assert result.score == 0
    assert result.evidence["exit_code"] == 2
    assert result.evidence["collected"] == 4
    assert codes(result) == [code]
    [failed] = result.evidence["failed"]
    assert (failed["exception"], failed["frame"]) == (exception, frame)
    assert "mulligan-" not in result.model_dump_json(), "no private path is shown"


def test_an_exception_is_reported_with_its_frame(project: Project) -> None:
    result = project.verify("def bitcount(n):\n    raise ValueError(f'bad {n}')\n")
    assert codes(result) == ["exception"] * 4
    first = result.evidence["failed"][0]
    assert (first["exception"], first["frame"]) == ("ValueError", "bitcount.py:bitcount")
    assert first["assertion"] == "ValueError: bad 0"


def test_a_message_that_is_not_valid_text_can_be_stored(project: Project) -> None:
    result = project.verify("def bitcount(n):\n    raise ValueError(chr(0xd800) + chr(0))\n")
    assert codes(result) == ["exception"] * 4


def test_a_helper_of_the_tests_may_skip(project: Project) -> None:
    project.write(
        "helper.py", "import pytest\ndef need(x):\n    if not x: pytest.skip('lacking')\n"
    )
    project.write("test_helped.py", "import helper\ndef test_helped(): helper.need(False)\n")
    result = project.verify(RIGHT)
    assert (result.status, result.score, result.evidence["collected"]) == (PASS, 100, 4)


def test_a_hanging_answer_is_stopped_and_keeps_what_passed(project: Project) -> None:
    answer = """
    def bitcount(n):
        while n == 3:
            pass
        return n
    """
    result = project.verify(answer, timeout=5)
    assert result.status is FAIL
    assert result.evidence["timed_out"] is True
    assert codes(result) == ["timeout"]
    assert result.score == 50


def test_processor_time_and_memory_are_limited(project: Project) -> None:
    spinning = "def bitcount(n):\n    while True: pass\n"
    result = project.verify(spinning, limits=Limits(cpu_seconds=2))
    assert result.status is FAIL
    assert not result.evidence["timed_out"]
    greedy = "def bitcount(n):\n    return len('x' * (1 << 30))\n"
    result = project.verify(greedy, limits=Limits(memory_bytes=512 << 20))
    assert result.evidence["failed"][0]["exception"] == "MemoryError"


def test_tests_in_a_folder_find_modules_beside_it(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    project.write("pkg/__init__.py", "")
    project.write("tests/test_it.py", "from pkg.core import f\ndef test(): assert f() == 1\n")
    assert project.verify("def f(): return 1", output_file="pkg/core.py").status is PASS


def test_an_answer_may_write_the_init_file_of_a_package_with_other_modules(tmp_path: Path) -> None:
    project = Project(tmp_path / "work")
    project.write("shop/__init__.py", "")
    project.write("shop/money.py", "PENCE = 100\n")
    project.write(
        "test_shop.py",
        """
        from shop import name
        from shop.money import PENCE

        def test_both():
            assert (name(), PENCE) == ("shop", 100)
        """,
    )
    answer = "def name():\n    return 'shop'\n"
    result = project.verify(answer, output_file="shop/__init__.py")
    assert result.status is VerificationStatus.PASS, result.summary


def test_the_original_of_the_answers_file_does_not_matter(project: Project) -> None:
    """Given a file without the name that the tests import, then the tests are still listed."""
    project.write("bitcount.py", "raise RuntimeError('unfinished')\n")
    assert project.verify(RIGHT).status is PASS


def test_files_of_a_runner_s_diff_are_tested(project: Project) -> None:
    diff = project.diff_of(bitcount__py=RIGHT)
    result = project.verify("I wrote the file.", output_file=None, diff=diff)
    assert result.status is PASS


def test_selection_and_early_stop_apply(project: Project) -> None:
    result = project.verify("def bitcount(n): return 0", args=["-k", "zero"])
    assert (result.status, result.evidence["collected"]) == (PASS, 1)
    result = project.verify(WRONG, args=["-x"])
    assert codes(result) == ["assertion"]
    assert (result.score, result.evidence["collected"]) == (0, 4)


def test_skipped_tests_do_not_count(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    project.write(
        "test_marks.py",
        """
        import pytest, solution

        @pytest.mark.skip
        def test_skipped(): assert False

        @pytest.mark.xfail
        def test_known_bug(): assert False

        def test_real(): assert solution.x
        """,
    )
    result = project.verify("x = 1", output_file="solution.py")
    assert (result.status, result.evidence["passed"], result.evidence["collected"]) == (PASS, 2, 2)
    project.write("test_marks.py", "import pytest\n@pytest.mark.skip\ndef test(): pass\n")
    result = project.verify("x = 1", output_file="solution.py")
    assert (result.status, result.score) == (VerificationStatus.SKIPPED, None)


def test_parameters_may_come_from_the_answer(tmp_path: Path) -> None:
    """Such tests cannot be listed without the answer, but their functions can."""
    project = Project(tmp_path / "project")
    project.write(
        "test_cases.py",
        """
        import pytest, solution

        @pytest.mark.parametrize("case", solution.CASES)
        def test_case(case): assert case > 0

        def test_other(): assert solution.CASES
        """,
    )
    result = project.verify("CASES = [1, 2, 3]", output_file="solution.py")
    assert (result.status, result.evidence["collected"]) == (PASS, 4)
    result = project.verify("CASES = [1, 0, 3]", output_file="solution.py")
    assert (result.status, result.score) == (FAIL, 75)


def test_a_test_file_that_no_stub_satisfies_is_parsed(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    project.write(
        "test_strict.py",
        """
        import solution
        assert type(solution.VERSION) is str

        def test_a(): assert solution.VERSION

        class TestB:
            def test_b(self): pass
        """,
    )
    result = project.verify("VERSION = '1'", output_file="solution.py")
    assert (result.status, result.evidence["collected"]) == (PASS, 2)


def test_secrets_do_not_reach_the_tests(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_KEY", "sk-secret")
    project.write(
        "test_env.py",
        """
        import os, sys
        def test_env():
            assert "MODEL_KEY" not in os.environ
            assert "nonce" not in str(os.environ) and "nonce" not in str(sys.argv)
        """,
    )
    assert project.verify(RIGHT, args=["test_env.py"]).status is PASS


def test_configuration_above_the_workspace_is_not_read(project: Project) -> None:
    (project.root.parent / "copies").mkdir()
    (project.root.parent / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    assert project.verify(RIGHT).status is PASS


# -- dishonest answers -----------------------------------------------------------------------------

FORGED_XML = (
    '<testsuites><testsuite name="pytest" errors="0" failures="0" skipped="0" tests="4">'
    + "".join(f'<testcase classname="test_bitcount" name="t{i}"/>' for i in range(4))
    + "</testsuite></testsuites>"
)

REWRITE_JUNIT = f"""
import atexit, os, pathlib
def lie():
    for path in pathlib.Path(os.environ["TMPDIR"]).rglob("*.xml"):
        path.write_text({FORGED_XML!r})
    os._exit(0)
"""

#: The expected error code and a dishonest answer, by what it does.
CHEATS = {
    "atexit": ("assertion", REWRITE_JUNIT + "atexit.register(lie)\n" + WRONG),
    "when the session is thrown away": (
        "forged",
        REWRITE_JUNIT + "import pytest\npytest.Session.__del__ = lambda self: lie()\n" + WRONG,
    ),
    "when the session ends": (
        "early_exit",
        REWRITE_JUNIT
        + """
import _pytest.terminal
_pytest.terminal.TerminalReporter.summary_stats = lambda self: lie()
"""
        + WRONG,
    ),
    "os._exit at import": ("early_exit", "import os\nos._exit(0)\n"),
    "os._exit in a test": ("early_exit", "import os\ndef bitcount(n):\n    os._exit(0)\n"),
    "os._exit after half": (
        "early_exit",
        "import os\ndef bitcount(n):\n    return n if n < 3 else os._exit(0)\n",
    ),
    "a crash": ("crash", "import os\ndef bitcount(n):\n    os.kill(os.getpid(), 11)\n"),
    "sys.exit at import": ("early_exit", "import sys\nsys.exit(0)\n"),
    "interrupt at import": ("early_exit", "raise KeyboardInterrupt\n"),
    "interrupt in a test": ("early_exit", "def bitcount(n):\n    raise KeyboardInterrupt\n"),
    "pytest.exit": (
        "forged",
        "import pytest\ndef bitcount(n):\n    pytest.exit('done', returncode=0)\n",
    ),
    "pytest.skip": ("exception", "import pytest\ndef bitcount(n):\n    pytest.skip('no need')\n"),
    "pytest.xfail": ("exception", "import pytest\ndef bitcount(n):\n    pytest.xfail('known')\n"),
    "skip under another name": (
        "forged",
        """
SOURCE = compile("import pytest; pytest.skip()", "test_bitcount.py", "exec")
def bitcount(n):
    return n if n < 2 else exec(SOURCE)
""",
    ),
    "skip at import": (
        "no_tests",
        "import pytest\npytest.skip('no', allow_module_level=True)\n",
    ),
    "tests that do nothing": (
        "forged",
        "import pytest\npytest.Function.runtest = lambda self: None\n" + WRONG,
    ),
    "reports that always pass": (
        "forged",
        """
from _pytest import reports
make = reports.TestReport.from_item_and_call.__func__
def passed(cls, item, call):
    report = make(cls, item, call)
    report.outcome, report.longrepr = "passed", None
    return report
reports.TestReport.from_item_and_call = classmethod(passed)
"""
        + WRONG,
    ),
    "code exchanged in place": (
        "forged",
        """
from _pytest import python
def pytest_pyfunc_call(pyfuncitem):
    return True
python.pytest_pyfunc_call.__code__ = pytest_pyfunc_call.__code__
"""
        + WRONG,
    ),
    "our plugin silenced": (
        "forged",
        "import __main__\n__main__.emit = lambda event, **facts: None\n" + WRONG,
    ),
    "our plugin and its checks silenced": (
        "early_exit",
        "import __main__\n__main__.emit = __main__.tell = lambda *args, **facts: None\n" + WRONG,
    ),
    "events without the key": (
        "forged",
        """
import json, os
for fd in range(3, 4096):
    try:
        os.write(fd, json.dumps({"event": "finish", "exit_code": 0, "seq": 0}).encode() + b"\\n")
    except OSError:
        pass
"""
        + RIGHT,
    ),
    "tests taken off the list": (
        "forged",
        """
import pytest
all_of = pytest.Session.genitems
pytest.Session.genitems = lambda self, node: (i for i in all_of(self, node) if "more" not in i.name)
def bitcount(n):
    return n
""",
    ),
    "a false JUnit file": (
        "forged",
        REWRITE_JUNIT.replace("os._exit(0)", "")
        + """
import _pytest.terminal
_pytest.terminal.TerminalReporter.summary_stats = lambda self: lie()
"""
        + WRONG,
    ),
}


@pytest.mark.parametrize("name", CHEATS)
def test_a_dishonest_answer_never_passes(project: Project, name: str) -> None:
    code, answer = CHEATS[name]
    result = project.verify(answer)
    assert result.status is FAIL
    assert codes(result)[0] == code, result
    assert result.score is not None
    assert result.score <= 50
    assert result.evidence.get("reason") == (code if code in ("early_exit", "crash") else None)


PLANTED = {
    "conftest.py": """
import pytest
@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    report.outcome = "passed"
    return report
""",
    "pytest.ini": "[pytest]\naddopts = --deselect test_bitcount.py\n",
    "sitecustomize.py": "import os\nos._exit(0)\n",
    "usercustomize.py": "import os\nos._exit(0)\n",
    "test_bitcount.py": "def test_zero(): pass\n",
    "pytest.py": "def main(*a, **k): return 0\n",
}


@pytest.mark.parametrize("name", PLANTED)
def test_planting_through_the_output_file_changes_nothing(project: Project, name: str) -> None:
    project.write("bitcount.py", WRONG)
    result = project.verify(PLANTED[name], output_file=name)
    assert (result.status, result.score) == (FAIL, 0)
    assert codes(result) == ["assertion"] * 4
    assert result.warnings == (f"{name} is protected and was restored",)


@pytest.mark.parametrize("name", [name for name in PLANTED if not name.startswith("test_")])
def test_planting_through_a_diff_changes_nothing(project: Project, name: str) -> None:
    diff = project.diff_of(**{name.replace(".", "__"): PLANTED[name]})
    result = project.verify(WRONG, diff=diff)
    assert (result.status, result.score) == (FAIL, 0)
    assert codes(result) == ["assertion"] * 4


def test_tests_added_by_a_diff_do_not_count(project: Project) -> None:
    easy = "".join(f"def test_{i}(): pass\n" for i in range(96))
    result = project.verify(WRONG, diff=project.diff_of(test_easy__py=easy))
    assert result.score == 0
    assert result.evidence["collected"] == 4


# -- no verdict ------------------------------------------------------------------------------------


def test_a_conftest_broken_by_the_answer_fails_the_answer(project: Project) -> None:
    project.write("conftest.py", "import bitcount\n")
    result = project.verify("raise RuntimeError('broken')")
    assert result.status is FAIL
    assert result.evidence["exit_code"] == 4
    assert result.evidence["reason"] == "conftest_broken"
    assert "broken" in result.errors[0].message
    assert project.verify(RIGHT).status is PASS


@pytest.mark.parametrize(
    ("files", "options", "message"),
    [
        ({"conftest.py": "raise RuntimeError('mine')"}, {}, "cannot list the tests"),
        ({"test_bitcount.py": "import not_installed_here"}, {}, "not_installed_here"),
        ({"test_bitcount.py": "def broken(:"}, {}, "cannot be imported with any answer"),
        ({"test_bitcount.py": "x = 1"}, {}, "no tests in the workspace"),
        ({}, {"args": ["test_gone.py"]}, "cannot list the tests"),
        ({}, {"args": ["-k", "nothing"]}, "no tests in -k nothing"),
    ],
)
def test_broken_tests_give_no_verdict(
    project: Project, files: dict[str, str], options: dict[str, Any], message: str
) -> None:
    for name, text in files.items():
        project.write(name, text)
    with pytest.raises(VerifierError, match=message):
        project.verify(RIGHT, **options)


def test_a_missing_package_is_named_once_with_what_to_do(project: Project) -> None:
    project.write("test_bitcount.py", "import not_installed_here")
    with pytest.raises(VerifierError) as caught:
        project.verify(RIGHT)
    assert str(caught.value) == (
        "test_bitcount.py cannot be imported with any answer: ModuleNotFoundError:"
        " No module named 'not_installed_here'; install it into the workers' Python"
    )


def test_an_internal_error_of_pytest_gives_no_verdict(project: Project) -> None:
    project.write("conftest.py", "def pytest_runtest_protocol(item): raise RuntimeError('hook')\n")
    with pytest.raises(VerifierError, match="internal error"):
        project.verify(RIGHT)


def test_an_answer_that_hides_the_tests_fails(project: Project) -> None:
    project.write(
        "test_bitcount.py",
        """
        import pytest
        solution = pytest.importorskip("bitcount")
        def test(): assert solution.bitcount(1) == 1
        """,
    )
    result = project.verify("raise ModuleNotFoundError('none', name='bitcount')")
    assert result.status is FAIL
    assert result.evidence["exit_code"] == 5
    assert codes(result) == ["no_tests"]


def test_a_workspace_is_required() -> None:
    verifier = PytestSubprocess(PytestSubprocess.Options())
    with pytest.raises(BadInput, match="needs a workspace"):
        verifier.verify(Candidate(output=Output(text=""), text=""))


def test_without_pytest_there_is_no_verdict(
    project: Project,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    venv.create(tmp_path / "bare", symlinks=True)
    monkeypatch.setattr("sys.executable", str(tmp_path / "bare" / "bin" / "python"))
    monkeypatch.setattr("sys.prefix", str(tmp_path / "bare"))
    system_files.cache_clear()
    request.addfinalizer(system_files.cache_clear)
    with pytest.raises(VerifierError, match="pytest cannot be imported"):
        project.verify(RIGHT)
