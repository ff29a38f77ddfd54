"""pytest.subprocess: what it reports of a failure is true, readable and small."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.pytest_project import TESTS, Project

from mulligan.policies.failures.failure import VerificationResult

TEXTS = """
from bitcount import bitcount

def test_text():
    # The secret of this test is forty-two.
    lines = ["a", "b"]
    assert bitcount(lines) == "a\\n    b\\n"

def test_path(tmp_path):
    assert bitcount(str(tmp_path / "out.txt")) is None
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = Project(tmp_path / "project")
    project.write("test_bitcount.py", TESTS)
    return project


@pytest.fixture
def texts(tmp_path: Path) -> Project:
    project = Project(tmp_path / "project")
    project.write("test_text.py", TEXTS)
    return project


def report(result: VerificationResult) -> str:
    return str(result.evidence["report"])


JOINED = "def bitcount(lines):\n    return lines if isinstance(lines, str) else '\\n'.join(lines)\n"


def test_the_lines_of_the_test_and_the_white_space_of_the_difference_are_kept(
    texts: Project,
) -> None:
    result = texts.verify(JOINED)
    block = report(result)
    assert block.startswith(
        "test_text.py::test_text\n"
        "    def test_text():\n"
        "        # The secret of this test is forty-two.\n"
        '        lines = ["a", "b"]\n'
        '>       assert bitcount(lines) == "a\\n    b\\n"\n'
        "E   "
    )
    # pytest marks the missing indentation with spaces in front.
    assert "\nE     -     b" in block
    assert "    b" in result.errors[0].message
    # A temporary directory is the test's own, not the worker's.
    assert str(texts.root.parent) not in str(result)
    assert "pytest-of-" not in block
    assert "out.txt" in block


def test_the_lines_of_a_hidden_test_are_not_shown(texts: Project) -> None:
    result = texts.verify(JOINED, show_source=False)
    assert "forty-two" not in str(result)
    assert report(result).startswith("test_text.py::test_text\nE   ")


def test_a_syntax_error_names_the_answers_file_once(project: Project) -> None:
    project.write("test_other.py", TESTS)
    result = project.verify("def bitcount(n:\n    return 7\n")
    (finding,) = result.errors
    assert (finding.code, finding.path) == ("syntax_error", "bitcount.py")
    assert finding.message == "SyntaxError in line 1, `def bitcount(n:`: '(' was never closed"
    assert "report" not in result.evidence, "the finding says all"


def test_an_exception_in_the_answer_names_its_line(project: Project) -> None:
    result = project.verify("def bitcount(n):\n    return 1 // 0\n")
    assert result.errors[0].path == "test_bitcount.py::test_zero"
    assert result.errors[0].message.endswith("modulo by zero (bitcount.py, line 2)") or (
        result.errors[0].message.endswith("division by zero (bitcount.py, line 2)")
    )
    # Four tests fail with one error: it is shown once.
    assert report(result).count("ZeroDivisionError") == 1


def test_the_hanging_test_is_named(project: Project) -> None:
    result = project.verify("def bitcount(n):\n    while n == 1: pass\n    return 0\n", timeout=6)
    finding = result.errors[0]
    assert (finding.code, finding.path) == ("timeout", "test_bitcount.py::test_one")
    assert finding.message == "the tests were stopped after 6 s in test_bitcount.py::test_one"


def test_a_file_that_hangs_on_import_is_named(project: Project) -> None:
    result = project.verify("while True: pass\n", timeout=6)
    finding = result.errors[0]
    assert (finding.code, finding.path) == ("timeout", "test_bitcount.py")
    assert finding.message.endswith("while importing test_bitcount.py")


def test_a_conftest_that_the_answer_breaks_shows_the_error(project: Project) -> None:
    project.write("conftest.py", "import bitcount\n")
    result = project.verify("def bitcount(n:\n")
    finding = result.errors[0]
    assert finding.code == "collection_error"
    assert 'File "bitcount.py", line 1' in finding.message
    assert finding.message.endswith("SyntaxError: '(' was never closed")


HOSTILE = """
import pytest
from bitcount import bitcount

@pytest.mark.parametrize("text", ["i"], ids=["i" * 10_000])
def test_long(text):
    assert bitcount(text)

def test_codes():
    raise ValueError("\\x1b[31mred\\x1b[0m \\x00 \\ud800 " + bitcount("x" * 5_000_000) * 2)
"""


def test_hostile_messages_are_cut_and_cleaned(project: Project) -> None:
    project.write("test_bitcount.py", HOSTILE)
    result = project.verify("def bitcount(n):\n    return n if n[0] == 'x' else ''\n")
    paths = [str(error.path) for error in result.errors]
    assert [len(path) for path in paths] == [200, len("test_bitcount.py::test_codes")]
    message = result.errors[1].message
    assert message.startswith("ValueError: red \N{REPLACEMENT CHARACTER} ? xxx")
    assert len(result.model_dump_json()) < 12_000
