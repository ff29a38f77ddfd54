"""Work is merged only if what must show that it is done has run, and passed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.coding_loop import BRANCH, LOOP, CodingLoop, check, coding_document, has_line, item
from support.git_repositories import UserRepository, files_of
from support.inline_fleet import ADA

from mulligan.policies.loops.spec import ItemSpec
from mulligan.tasks.loops.change import check_loop, inject
from mulligan.tasks.ports.errors import BadInput

pytestmark = pytest.mark.real_models("command")

SUITE: dict[str, Any] = {"id": "pytest.subprocess", "args": ["tests/test_app.py"]}
ON = "ENABLED = True\ndef f(): return 1\n"
OFF = "ENABLED = False\ndef f(): return 7\n"
TEST = """
import pytest
from app import {names}
@pytest.mark.skipif(not {switch}, reason="off")
def test_f(): assert f() == {result}
"""
HERE = TEST.format(names="ENABLED, f", switch="ENABLED", result=2)


@pytest.fixture
def user(tmp_path: Path) -> UserRepository:
    return UserRepository.make(tmp_path / "user")


@pytest.fixture
def fleet(tmp_path: Path, user: UserRepository) -> CodingLoop:
    return CodingLoop(tmp_path, user.path)


def writes(app: str) -> str:
    return f"write('app.py', {app!r}); write('A.txt', 'done\\n')"


def is_merged(user: UserRepository) -> bool:
    return "A.txt" in files_of(user.path, BRANCH)


def test_work_that_switches_its_test_off_is_corrected(
    fleet: CodingLoop, user: UserRepository
) -> None:
    user.commit({"app.py": ON, "tests/test_app.py": HERE})
    right = ON.replace("return 1", "return 2")
    code = f"app = {right!r} if again else {OFF!r}\nwrite('app.py', app)"
    assert fleet.run_all(item("A", verifiers=[SUITE]), code=code) == {"A": "passed"}
    found = fleet.results("A", 1)["pytest.subprocess"]
    assert found.endswith("it ran before the work, and is skipped now")
    assert "it ran before the work, and is skipped now" in fleet.prompt("A", 2)
    assert files_of(user.path, BRANCH)["app.py"][1].decode() == right


def test_a_guard_that_is_switched_off_fails(fleet: CodingLoop, user: UserRepository) -> None:
    passes = TEST.format(names="ENABLED, f", switch="ENABLED", result=1)
    user.commit({"app.py": ON, "tests/test_app.py": passes})
    done = item("A", verifiers=[has_line("A.txt", "done"), {**SUITE, "role": "guard"}])
    assert fleet.run_all(done, code=writes(OFF), max_attempts=2) == {"A": "failed"}
    assert not is_merged(user)


@pytest.mark.parametrize("more", [[], [has_line("A.txt", "done")]])
def test_work_whose_acceptance_is_skipped_is_not_verified(
    fleet: CodingLoop, user: UserRepository, more: list[dict[str, Any]]
) -> None:
    """Given a switch that only the work has, and by which its tests are off if it is true."""
    tests = TEST.format(names="SWITCH, f", switch="not SWITCH", result=2).replace("not not ", "")
    user.commit({"app.py": ON, "tests/test_app.py": tests})
    off = OFF.replace("ENABLED = False", "SWITCH = True")
    assert fleet.run_all(item("A", verifiers=[SUITE, *more]), code=writes(off)) == {"A": "failed"}
    assert fleet.job("A").reason == "not_verified"
    assert not is_merged(user)


def test_work_whose_acceptance_is_skipped_with_other_work_is_not_merged(
    fleet: CodingLoop, user: UserRepository
) -> None:
    """Given an item that switches the tests of another one off, and is merged first."""
    user.commit({"app.py": "def f(): return 1\n", "flag.py": "ON = True\n"})
    test = HERE.replace("from app import ENABLED, f", "from app import f\nfrom flag import ON")
    user.commit({"tests/test_app.py": test.replace("ENABLED", "ON")})
    code = """
if item == "A":
    write("flag.py", "ON = False\\n")
    write("A.txt", "done\\n")
else:
    write("app.py", "def f(): return 2\\n")
"""
    items = [item("A", priority=1), item("B", verifiers=[SUITE], priority=9)]
    states = fleet.run_all(*items, code=code, concurrency=2, max_attempts=2)
    assert states == {"A": "passed", "B": "failed"}
    assert "all 1 tests are skipped" in fleet.results("B", 1)["git.merge"]
    assert files_of(user.path, BRANCH)["app.py"][1] == b"def f(): return 1\n"


def test_an_item_whose_acceptance_is_skipped_before_the_work_is_not_done(
    fleet: CodingLoop, user: UserRepository
) -> None:
    user.commit({"app.py": OFF, "tests/test_app.py": HERE})
    assert fleet.run_all(item("A", verifiers=[SUITE])) == {"A": "failed"}
    job = fleet.job("A")
    assert job.reason == "nothing_fails_before"
    assert "pytest.subprocess is skipped: all 1 tests" in (job.detail or "")


def test_an_item_with_guards_alone_is_refused(fleet: CodingLoop, user: UserRepository) -> None:
    guards = item("A", verifiers=[check("True", role="guard")])
    [problem] = check_loop(fleet.services.loops, coding_document(user.path, guards))
    assert problem.path == ("items", 0, "verifiers")
    assert "every verifier is a guard" in problem.message
    fleet.start(item("B"))
    with pytest.raises(BadInput, match="every verifier is a guard"):
        inject(fleet.services.loops, LOOP, [ItemSpec.model_validate(guards)], ADA)
