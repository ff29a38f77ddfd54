"""Which new files of an attempt are test files, by the patterns of pytest."""

from __future__ import annotations

import pytest

from mulligan.workers.verifiers.pytest.new_tests import new_test_files

DEFAULT = ("test_*.py", "*_test.py")


@pytest.mark.parametrize(
    ("name", "patterns", "found"),
    [
        ("test_new.py", DEFAULT, True),
        ("tests/deep/test_new.py", DEFAULT, True),
        ("tests/new_test.py", DEFAULT, True),
        ("tests/helpers.py", DEFAULT, False),
        ("tests/__init__.py", DEFAULT, False),
        ("tests/test_data.json", DEFAULT, False),
        ("tests/test_new.txt", ("test_*",), False),
        ("checks/check_new.py", ("check_*.py",), True),
        ("checks/test_new.py", ("check_*.py",), False),
        ("checks/new.py", ("checks/*.py",), True),
        ("shop/checks/new.py", ("checks/*.py",), True),
        ("checks/deep/new.py", ("checks/*.py",), True),
        ("shop/new.py", ("checks/*.py",), False),
        ("shop/new.py", ("*.py",), True),
        ("test_new.py", (), False),
    ],
)
def test_new_files_are_matched_as_pytest_does(
    name: str, patterns: tuple[str, ...], found: bool
) -> None:
    assert new_test_files([name], patterns) == ((name,) if found else ())
