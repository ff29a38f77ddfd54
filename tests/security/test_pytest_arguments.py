"""The arguments of pytest.subprocess are an allow-list."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pydantic import ValidationError
from support.pytest_project import TESTS, Project

from mulligan.policies.failures.failure import VerificationStatus
from mulligan.workers.verifiers.pytest.pytest_subprocess import PytestSubprocess

ALLOWED = [
    [],
    ["."],
    ["test_a.py", "tests/test_b.py::TestB::test_c[../x]"],
    ["-k", "a and not b", "-m", "not slow", "-x"],
    ["-kzero", "-mslow", "-rA", "-xvs", "-qq", "-vk", "zero", "-x", "--maxfail=2"],
    ["--deselect", "tests/test_a.py::test_b", "--ignore=tests/slow", "--ignore-glob=*/slow_*"],
    ["--tb=long", "--durations", "5", "-W", "error", "-W", "ignore:no: way:UserWarning"],
    ["--import-mode=importlib", "--strict-markers", "--capture=no", "--verbosity=-1"],
]
REFUSED = [
    ["@/etc/passwd"],
    ["-k", "@arguments.txt"],
    ["--log-file=/tmp/x"],
    ["--log-file", "x"],
    ["--log-f=x"],
    ["--debug"],
    ["--debug=/tmp/x"],
    ["--pastebin=all"],
    ["-p", "plugin"],
    ["-pplugin"],
    ["-xp", "plugin"],
    ["-o", "cache_dir=/tmp"],
    ["-ocache_dir=/tmp"],
    ["--override-ini=cache_dir=/tmp"],
    ["-c", "x.ini"],
    ["-cx.ini"],
    ["--config-file=x.ini"],
    ["--rootdir=/"],
    ["--confcutdir=/"],
    ["--basetemp=/tmp/x"],
    ["--junitxml=x"],
    ["--junit-xml", "x"],
    ["--pyargs", "os"],
    ["--trace-config"],
    ["--cov=."],
    ["--collect-only"],
    ["--co"],
    ["--pdb"],
    ["--pdbcls=os:system"],
    ["-n4"],
    ["-h"],
    ["-V"],
    ["--assert=plain"],
    ["--noconftest"],
    ["-W", "error::package.module.Warning"],
    ["--"],
    ["-"],
    ["-k"],
    ["-k", "--log-file=x"],
    ["--exitfirst=x"],
    ["--maxfail", "x"],
    ["/etc/passwd"],
    ["../other/test_a.py"],
    ["--ignore=../x"],
    ["--ignore-glob=/etc/*"],
    ["--deselect", "../x.py::test"],
    ["--import-mode=os"],
    [""],
]


@pytest.mark.parametrize("args", ALLOWED, ids=" ".join)
def test_what_selects_tests_and_shapes_output_is_allowed(args: list[str]) -> None:
    assert PytestSubprocess.Options.model_validate({"args": args}).args == tuple(args)


@pytest.mark.parametrize("args", REFUSED, ids=" ".join)
def test_anything_else_is_refused_by_name(args: list[str]) -> None:
    with pytest.raises(ValidationError) as refused:
        PytestSubprocess.Options.model_validate({"args": args})
    assert any(repr(arg) in str(refused.value) for arg in args)


def test_every_option_of_pytest_is_known_or_refused(pytestconfig: pytest.Config) -> None:
    """An option that a later pytest adds is refused until somebody has looked at it."""
    groups = [pytestconfig._parser._anonymous, *pytestconfig._parser._groups]
    names = {name for group in groups for option in group.options for name in option.names()}
    accepted = set()
    for name in names:
        try:
            PytestSubprocess.Options.model_validate({"args": [name]})
        except ValidationError as error:
            if "needs a value" not in str(error):
                continue
        accepted.add(name)
    assert accepted == {
        "-k", "-l", "-m", "-q", "-r", "-s", "-v", "-x", "-W", "--capture",
        "--continue-on-collection-errors", "--deselect", "--disable-warnings", "--doctest-glob",
        "--doctest-modules", "--durations", "--durations-min", "--exitfirst", "--full-trace",
        "--ignore", "--ignore-glob", "--import-mode", "--log-level", "--maxfail", "--no-header",
        "--no-showlocals", "--no-summary", "--quiet", "--runxfail", "--show-capture",
        "--showlocals", "--strict", "--strict-config", "--strict-markers", "--tb", "--verbose",
        "--verbosity",
    }  # fmt: skip


def test_the_message_says_what_is_allowed() -> None:
    with pytest.raises(ValidationError, match="'--debug' is not allowed; use files, node ids and"):
        PytestSubprocess.Options.model_validate({"args": ["--debug"]})


def test_allowed_arguments_work_together(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    project.write("test_bitcount.py", TESTS)
    project.write(f"slow{os.sep}test_slow.py", "def test_slow(): assert False\n")
    args = ["-xvk", "zero or one", "--ignore=slow", "--tb=long", "-rA", "-W", "error", "-s", "-l"]
    result = project.verify("def bitcount(n): return n", args=args)
    assert (result.status, result.evidence["passed"]) == (VerificationStatus.PASS, 2)
