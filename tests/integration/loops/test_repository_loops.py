"""Loops on a git repository: real git, real confinement, agents of a few lines.

Here: what an agent leaves behind, how it is verified, and what becomes of it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.coding_loop import (
    BRANCH,
    GOOD,
    LOOP,
    CodingLoop,
    agent,
    check,
    check_merged,
    has_line,
    item,
    merges,
)
from support.git_repositories import UserRepository, add_hook, files_of

from mulligan.tasks.jobs.attempt import SLACK
from mulligan.tasks.ports.ledger import Lease
from mulligan.workers.celery.leases import LeaseKeeper
from mulligan.workers.loops import attempt_work

pytestmark = pytest.mark.real_models("command")

TESTS = {
    "tests/test_math.py": "def test_math():\n    assert 1 + 1 == 2\n",
    "tests/test_words.py": "def test_words():\n    assert 'a' < 'b'\n",
}
SUITE = {"id": "pytest.subprocess", "role": "guard"}


@pytest.fixture
def user(tmp_path: Path) -> UserRepository:
    return UserRepository.make(tmp_path / "user")


@pytest.fixture
def fleet(tmp_path: Path, user: UserRepository) -> CodingLoop:
    return CodingLoop(tmp_path, user.path)


def files(user: UserRepository, branch: str = BRANCH) -> dict[str, str]:
    return {name: content.decode() for name, (_, content) in files_of(user.path, branch).items()}


def attempts(fleet: CodingLoop, name: str = "A") -> int:
    return len(fleet.job(name).attempts)


# -- attempts --------------------------------------------------------------------------------------


def test_a_corrected_retry_goes_on_with_the_work_that_is_kept(
    fleet: CodingLoop, user: UserRepository
) -> None:
    code = """
write(f"{item}.txt", "done\\n" if again and has("half.txt") else "no\\n")
write("half.txt", "half\\n")
"""
    assert fleet.run_all(item("A"), code=code) == {"A": "passed"}
    assert attempts(fleet) == 2
    assert "grep" in fleet.prompt("A", 2)
    assert fleet.loop.state == "completed"
    assert files(user).items() >= {"A.txt": "done\n", "half.txt": "half\n"}.items()
    check_merged(fleet, user.path)


def test_a_retry_goes_on_with_the_best_work_and_not_with_the_newest(fleet: CodingLoop) -> None:
    """Given an agent that deletes in its second attempt what was good about the first one."""
    code = "os.unlink('good') if has('good') else write('good', '')\nwrite(f'{again}.txt', '')"
    checks = [check("has('good')"), has_line("A.txt", "done")]
    assert fleet.run_all(item("A", verifiers=checks), code=code) == {"A": "failed"}
    first, second, third = fleet.job("A").attempts
    assert first.output is not None
    assert (first.plan.kept, second.plan.kept) == (None, first.output.commit)
    assert third.plan.kept == first.output.commit


def test_a_changed_strategy_begins_with_the_branch(fleet: CodingLoop, user: UserRepository) -> None:
    """Given an agent that makes the same mistake in each of its three attempts."""
    code = "write('second.txt' if again else 'other.txt', 'x\\n')"
    assert fleet.run_all(item("A"), code=code) == {"A": "failed"}
    saved = [each.output.commit for each in fleet.job("A").attempts if each.output]
    found = [sorted(files(user, each or "").keys() - files(user, "main").keys()) for each in saved]
    assert found == [["other.txt"], ["other.txt", "second.txt"], ["other.txt"]]
    assert [each.plan.kept for each in fleet.job("A").attempts] == [None, saved[0], None]


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("sys.exit(3)", "exited with code 3"),
        ("os.kill(os.getpid(), 9)", "was killed by signal 9"),
        ("time.sleep(60)", "did not end within 2.0 s"),
    ],
)
def test_work_is_verified_however_its_agent_ended(
    fleet: CodingLoop, user: UserRepository, end: str, said: str
) -> None:
    runner = agent(f"{GOOD}\nprint('halfway', flush=True)\n{end}", timeout=2)
    assert fleet.run_all(item("A"), runner=runner) == {"A": "passed"}
    assert attempts(fleet) == 1
    output = fleet.job("A").attempts[0].output
    assert output is not None
    assert output.ended is not None
    assert said in output.ended
    assert files(user)["A.txt"] == "done\n"


def test_a_file_that_is_too_large_is_left_out(fleet: CodingLoop, user: UserRepository) -> None:
    """Given a dump of memory beside good work, then nothing else is lost, and the agent is told.

    Work without a part of it is not merged: what remains may pass because of that.
    """
    code = f"""
if not again:
    os.rename("src", "new")
    os.truncate(os.open("core.1", os.O_CREAT | os.O_RDWR), 600_000_000)
{GOOD}
"""
    assert fleet.run_all(item("A"), code=code) == {"A": "passed"}
    assert attempts(fleet) == 2
    said = "too large to be saved, and left out: core.1"
    assert fleet.results("A", 1)["git.diff"] == said
    assert said in fleet.prompt("A", 2)
    assert any(name.startswith("src/") for name in files(user)), "nothing was removed"
    assert any(name.startswith("new/") for name in files(user))
    assert "core.1" not in files(user)
    assert "transcripts/" in user.git("for-each-ref", "refs/mulligan")


def test_a_retry_that_waited_for_its_provider_goes_on_with_its_own_work(
    fleet: CodingLoop, user: UserRepository
) -> None:
    """Given a retry that runs out of credits after half of its work, with known usage."""
    usage = {"input_tokens": 1000, "output_tokens": 500}
    message = {"id": "m", "role": "assistant", "content": [], "usage": usage}
    said = {"type": "assistant", "message": message}
    code = f"""
if not again:
    write("wrong.txt", "no\\n")
elif not has("half.txt"):
    write("half.txt", "half\\n")
    print({json.dumps(json.dumps(said))}, flush=True)
    sys.exit(75)
else:
    write(f"{{item}}.txt", "done\\n")
"""
    runner = agent(code, format="claude", out_of_credits_exit_codes=[75])
    budget = {"loop": {"tokens": 100_000}, "attempt": {"tokens": 10_000}}
    fleet.start(item("A"), runner=runner, budget=budget)
    fleet.run()
    before = fleet.snapshot.used["loop", "tokens"]
    for _ in range(4):
        fleet.wait(120)
    assert before == 10_000 + 1500, "an answer without usage counts as the most that it may use"
    assert files(user).keys() >= {"A.txt", "half.txt", "wrong.txt"}
    assert [each.faults for each in fleet.job("A").attempts] == [0, 1]


def test_a_repository_that_refuses_saved_work_ends_the_item_once(
    tmp_path: Path, user: UserRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_work, "_PAUSE", 0.01)
    monkeypatch.setattr(attempt_work, "_REFUSED_PATIENCE", 0.0)
    monkeypatch.setattr(attempt_work, "_LATER_PATIENCE", 0.0)
    origin = user.bare(tmp_path / "origin.git")
    add_hook(origin, "update", "case $1 in refs/mulligan/attempts/*) exit 1;; esac")
    fleet = CodingLoop(tmp_path, f"file://{origin}")
    assert fleet.run_all(item("A")) == {"A": "failed"}
    assert attempts(fleet) == 1
    assert "allow the workers to write refs/mulligan/ there" in (fleet.job("A").detail or "")


def test_an_agent_whose_files_are_ignored_is_told_so(
    fleet: CodingLoop, user: UserRepository
) -> None:
    user.commit({".gitignore": "dist/\n"})
    code = f"if again:\n    {GOOD}\nelse:\n    write('dist/out.js', 'x')"
    assert fleet.run_all(item("A"), code=code) == {"A": "passed"}
    assert fleet.results("A", 1)["git.diff"] == "no file was changed (git ignores dist/)"
    assert "git ignores dist/" in fleet.prompt("A", 2)


def test_a_claim_leaves_time_for_the_setup(
    tmp_path: Path, user: UserRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the deadline the process would be replaced, and its other slots would lose their work."""
    deadlines: list[float] = []
    hold = LeaseKeeper.holding

    def holding(keeper: LeaseKeeper, lease: Lease, deadline: float) -> object:
        deadlines.append(deadline)
        return hold(keeper, lease, deadline)

    monkeypatch.setattr(LeaseKeeper, "holding", holding)
    setup = {"run": [["true"], ["true"]], "timeout": 3000}
    assert CodingLoop(tmp_path, user.path).run_all(item("A"), setup=setup) == {"A": "passed"}
    assert min(each for each in deadlines if each > SLACK) > 2 * 3000 * 2


def test_a_test_of_a_module_that_does_not_exist_yet_fails_before_the_work(
    fleet: CodingLoop, user: UserRepository
) -> None:
    """Given a test that comes first, then its module is the work."""
    user.commit({"test_new.py": "import new\n\n\ndef test_new():\n    assert new.f() == 2\n"})
    done = item("A", verifiers=[{"id": "pytest.subprocess"}])
    code = "write('new.py', f'def f(): return {2 if again else 1}\\n')"
    assert fleet.run_all(done, code=code) == {"A": "passed"}
    assert attempts(fleet) == 2


def test_a_test_that_a_new_name_switches_off_is_no_pass(
    fleet: CodingLoop, user: UserRepository
) -> None:
    """Given a test whose condition is a name that only the answer has."""
    test = """
import pytest
from app import ENABLED, f

@pytest.mark.skipif(not ENABLED, reason="off")
def test_f():
    assert f() == 2

def test_other():
    assert f
"""
    user.commit({"test_f.py": test, "app.py": "def f(): return 1\n"})
    code = "write('app.py', 'ENABLED = False\\ndef f(): return 1\\n')"
    done = item("A", verifiers=[{"id": "pytest.subprocess"}])
    assert fleet.run_all(done, code=code) == {"A": "failed"}
    assert "test_f" in fleet.prompt("A", 2)


def test_text_files_beside_tests_are_no_tests(fleet: CodingLoop, user: UserRepository) -> None:
    user.commit({**TESTS, "tests/test_input.txt": "a\n"})
    code = f"{GOOD}\nwrite('tests/test_notes.txt', 'b\\n')"
    done = item("A", verifiers=[has_line("A.txt", "done"), SUITE])
    assert fleet.run_all(done, code=code) == {"A": "passed"}


def test_a_setup_may_write_the_path_of_its_checkout(
    fleet: CodingLoop, user: UserRepository
) -> None:
    """As an editable installation does."""
    user.commit({"setup.sh": "mkdir -p site && pwd > site/here.pth\n", ".gitignore": "site/\n"})
    check = {"id": "command.subprocess", "argv": ["sh", "-c", "test -s site/here.pth"]}
    done = item("A", verifiers=[has_line("A.txt", "done"), {**check, "role": "guard"}])
    setup = {"run": [["sh", "setup.sh"]]}
    assert fleet.run_all(done, setup=setup) == {"A": "passed"}


def test_an_agent_that_changes_nothing_is_told_so(fleet: CodingLoop) -> None:
    assert fleet.run_all(item("A"), code=f"if again:\n    {GOOD}") == {"A": "passed"}
    assert fleet.results("A", 1)["git.diff"] == "no file was changed"
    assert "No file was changed" in fleet.prompt("A", 2)


def test_an_agent_that_fails_without_any_work_is_asked_again(fleet: CodingLoop) -> None:
    code = f"if not again:\n    sys.exit('error: no idea')\n{GOOD}"
    assert fleet.run_all(item("A"), code=code) == {"A": "passed"}
    assert attempts(fleet) == 2
    assert "no idea" in fleet.prompt("A", 2)


@pytest.mark.parametrize(
    ("name", "mistake", "found"),
    [
        ("tests/test_math.py", "write('tests/test_math.py', '')", "it was changed"),
        ("tests/test_math.py", "os.unlink('tests/test_math.py')", "it is gone"),
        ("tests/test_math.py", "os.chmod('tests/test_math.py', 0o755)", "it was changed"),
        ("conftest.py", "write('conftest.py', '')", "it must not be added"),
        (
            "outside",
            "os.symlink('/etc/passwd', 'outside')",
            "it leads out of the repository, to /etc/passwd",
        ),
        (
            "a.txt",
            "os.unlink('a.txt'); os.symlink('tests/../../x', 'a.txt')",
            "it leads out of the repository, to tests/../../x",
        ),
        (
            "a.txt",
            "write('a.txt', '<<<<<<< ours\\none\\n=======\\ntwo\\n>>>>>>> theirs\\n')",
            "a conflict in it is not resolved",
        ),
    ],
)
def test_work_that_may_not_be_merged_is_corrected(
    fleet: CodingLoop, user: UserRepository, name: str, mistake: str, found: str
) -> None:
    """A retry goes on with its kept work, in which protected files are as they were."""
    user.commit(TESTS)
    undo = {
        "a.txt": "os.unlink('a.txt'); subprocess.run(['git', 'checkout', '-q', 'a.txt'])",
        "outside": "os.unlink('outside')",
    }.get(name, "pass")
    code = f"{GOOD}\nif again:\n    {undo}\nelse:\n    {mistake}"
    assert fleet.run_all(item("A"), code=code) == {"A": "passed"}
    assert fleet.results("A", 1)["git.diff"] == f"{name}: {found}"
    prompt = fleet.prompt("A", 2)
    assert name in prompt
    assert ("conftest.py must not be added. It is gone again" in prompt) == (name == "conftest.py")
    base = files_of(user.path, "main")
    assert files_of(user.path, BRANCH).get(name) == base.get(name)
    check_merged(fleet, user.path)


def test_an_attempt_that_weakens_a_protected_test_fails_by_the_real_one(
    fleet: CodingLoop, user: UserRepository
) -> None:
    user.commit({"tests/check.sh": "! grep -q bad a.txt\n"})
    code = """
if again:
    subprocess.run(["git", "checkout", "-q", "--", "a.txt", "tests"])
else:
    write("a.txt", "bad\\n")
    write("tests/check.sh", "true\\n")
"""
    guard = {"id": "command.subprocess", "argv": ["sh", "tests/check.sh"], "role": "guard"}
    done = item("A", verifiers=[has_line("A.txt", "done"), guard])
    assert fleet.run_all(done, code=f"{GOOD}\n{code}") == {"A": "passed"}
    assert fleet.results("A", 1).keys() >= {"git.diff", "command.subprocess"}
    check_merged(fleet, user.path)


@pytest.mark.parametrize(
    ("new", "found"),
    [
        ("tests/helpers/__init__.py", "tests/helpers/__init__.py: it hides tests/helpers.py"),
        ("tests/__init__.py", "helpers.py: it hides tests/helpers.py"),
        ("tests/decimal.py", "tests/decimal.py: it hides Python's module decimal"),
    ],
)
def test_new_files_cannot_replace_what_protected_tests_import(
    fleet: CodingLoop, user: UserRepository, new: str, found: str
) -> None:
    """Given an agent that makes its tests pass by a module of its own, then they still fail."""
    test = "from decimal import Decimal\nfrom helpers import check\nfrom app import f\n\n\n"
    test += "def test_f():\n    check(Decimal(f(3)) == 9)\n"
    check = "def check(fact):\n    assert fact\n"
    user.commit({"tests/test_f.py": test, "tests/helpers.py": check, "app.py": "f = str\n"})
    code = f"""
write("{new}", "def check(fact): pass\\ndef Decimal(text): return 9\\n")
if "{new}" == "tests/__init__.py":
    write("helpers.py", "def check(fact): pass\\n")
write("app.py", "f = repr\\n")
"""
    suite = {**SUITE, "role": "acceptance"}
    assert fleet.run_all(item("A", verifiers=[suite]), code=code) == {"A": "failed"}
    results = fleet.results("A", 1)
    assert results["git.diff"].startswith(found)
    assert "0 of 1 tests passed" in results["pytest.subprocess"]
    assert new in fleet.prompt("A", 2)


@pytest.mark.parametrize("planted", ["tests/test_f.py", "conftest.py", "decimal.py"])
def test_a_setup_that_an_agent_changed_cannot_change_protected_files(
    fleet: CodingLoop, user: UserRepository, planted: str
) -> None:
    """Given a setup script that is not protected, and makes a part of the tests."""
    test = "import decimal\nfrom app import f\nfrom made import nine\n\n\n"
    test += "def test_f():\n    assert f(3) == nine\n"
    script = 'open("tests/made.py", "w").write("nine = 9\\n")\n'
    user.commit({"tests/test_f.py": test, "app.py": "f = repr\n", "setup.py": script})
    evil = "import app\napp.f = lambda x: 9\ndef test_f():\n    pass\n"
    planting = f"{script}open({planted!r}, 'w').write({evil!r})\n"
    code = f"write('app.py', 'f = str\\n'); write('setup.py', {planting!r})"
    done = item("A", verifiers=[{**SUITE, "role": "acceptance"}])
    setup = {"run": [["python3", "setup.py"]]}
    assert fleet.run_all(done, code=code, setup=setup) == {"A": "failed"}
    verdict = fleet.job("A").attempts[0].verdict
    assert verdict is not None
    assert "assert '3' == 9" in verdict.results[1].errors[0].message


def test_a_file_that_quotes_conflicts_may_be_changed(
    fleet: CodingLoop, user: UserRepository
) -> None:
    """Given a manual with git's markers, then a change of it leaves no conflict behind."""
    manual = "<<<<<<< ours\none\n=======\ntwo\n>>>>>>> theirs\n"
    user.commit({"manual.txt": manual})
    code = f"{GOOD}\nwrite('manual.txt', open('manual.txt').read() + 'more\\n')"
    assert fleet.run_all(item("A"), code=code) == {"A": "passed"}
    assert attempts(fleet) == 1
    assert files(user)["manual.txt"] == f"{manual}more\n"


def test_a_new_test_is_allowed_and_run_by_the_guard(
    fleet: CodingLoop, user: UserRepository
) -> None:
    user.commit(TESTS)
    code = f"""
{GOOD}
write("tests/test_new.py", f"def test_new():\\n    assert {{again}}\\n")
"""
    done = item("A", verifiers=[has_line("A.txt", "done"), SUITE])
    assert fleet.run_all(done, code=code) == {"A": "passed"}
    assert "test_new" in fleet.results("A", 1)["pytest.subprocess"]
    assert "tests/test_new.py::test_new" in fleet.prompt("A", 2)
    assert "assert True" in files(user)["tests/test_new.py"]


def test_a_new_test_belongs_to_the_suite_of_the_next_item(
    fleet: CodingLoop, user: UserRepository
) -> None:
    """Given an item that adds a test, and one after it that breaks what it tests."""
    user.commit(TESTS)
    test = "import os\\ndef test_new():\\n    assert not os.path.exists('bad')\\n"
    code = f"""
{GOOD}
if item == "A":
    write("tests/test_new.py", "{test}")
elif again:
    os.unlink("bad")
else:
    write("bad", "")
"""
    items = [
        item(name, *before, verifiers=[has_line(f"{name}.txt", "done"), SUITE])
        for name, before in (("A", ()), ("B", ("A",)))
    ]
    assert fleet.run_all(*items, code=code) == dict.fromkeys("AB", "passed")
    assert (attempts(fleet, "A"), attempts(fleet, "B")) == (1, 2)
    assert fleet.results("B", 1)["pytest.subprocess"].startswith("2 of 3 tests passed")
    check_merged(fleet, user.path)


def test_conflicts_are_corrected_and_do_not_count_as_attempts(
    fleet: CodingLoop, user: UserRepository
) -> None:
    """Given three items that add a line at the same place, each of which may be tried twice."""
    code = """
marks = ("<<<<<<<", "=======", ">>>>>>>")
lines = [each for each in read("a.txt").splitlines() if not each.startswith(marks)]
write("a.txt", "\\n".join([*lines, *([] if item in lines else [item])]) + "\\n")
"""
    items = [item(name, verifiers=[has_line("a.txt", name)]) for name in "ABC"]
    states = fleet.run_all(*items, code=code, concurrency=3, max_attempts=2)
    assert states == dict.fromkeys("ABC", "passed")
    last = merges(user.path)[-1]
    assert attempts(fleet, last) == 3
    prompt = fleet.prompt(last, 2)
    assert "a.txt" in prompt
    assert "<<<<<<< the branch" in prompt
    assert sorted(files(user)["a.txt"].split()[3:]) == ["A", "B", "C"]
    check_merged(fleet, user.path)


def test_work_that_fails_only_together_with_other_work_is_corrected(
    fleet: CodingLoop, user: UserRepository
) -> None:
    """Given two items that pass alone, and a guard that allows as many files as a file says."""
    user.commit({"most": "1\n"})
    guard = check("len(list(pathlib.Path().glob('[AB].txt'))) <= int(read('most'))", "guard")
    code = f"{GOOD}\nif again:\n    write('most', '2\\n')"
    items = [item(name, verifiers=[has_line(f"{name}.txt", "done"), guard]) for name in "AB"]
    assert fleet.run_all(*items, code=code, concurrency=2) == dict.fromkeys("AB", "passed")
    last = merges(user.path)[-1]
    assert (
        "it passes alone, but not with what was merged meanwhile"
        in (fleet.results(last, 1)["git.merge"])
    )
    assert attempts(fleet, last) == 2
    assert files(user).items() >= {"A.txt": "done\n", "B.txt": "done\n", "most": "2\n"}.items()
    check_merged(fleet, user.path)


def test_an_attempt_that_is_reset_begins_with_the_branch(
    fleet: CodingLoop, user: UserRepository
) -> None:
    code = "write('late.txt' if again else 'early.txt', 'x')"
    assert fleet.run_all(item("A"), code=code, max_attempts=2) == {"A": "failed"}
    old = fleet.job("A")
    fleet.reset("A")
    fleet.run()
    first = fleet.job("A").attempts[0].output
    assert fleet.job("A").id != old.id
    assert first is not None
    assert first.commit is not None
    assert "early.txt" in files(user, first.commit)
    assert "late.txt" not in files(user, first.commit)


# -- before the work -------------------------------------------------------------------------------


def test_an_item_that_is_already_done_is_skipped(fleet: CodingLoop, user: UserRepository) -> None:
    user.commit({"A.txt": "done\n"})
    assert fleet.run_all(item("A"), item("B", "A")) == {"A": "skipped", "B": "passed"}
    assert fleet.loop.state == "completed"
    assert merges(user.path) == ["B"]
    assert fleet.job("A").attempts[0].output is None


def test_an_item_that_is_already_done_is_refused_if_the_loop_says_so(
    fleet: CodingLoop, user: UserRepository
) -> None:
    user.commit({"A.txt": "done\n"})
    assert fleet.run_all(item("A"), already_done="refuse") == {"A": "failed"}
    job = fleet.job("A")
    assert (job.reason, job.detail) == (
        "nothing_fails_before",
        "every acceptance verifier passes before the work",
    )


def test_a_guard_that_fails_before_the_work_ends_the_item(
    fleet: CodingLoop, user: UserRepository
) -> None:
    guard = check("has('missing')", "guard")
    done = item("A", verifiers=[has_line("A.txt", "done"), guard])
    assert fleet.run_all(done) == {"A": "failed"}
    assert fleet.job("A").reason == "guard_fails_before"
    assert user.git("for-each-ref", "refs/mulligan/attempts", "refs/mulligan/transcripts") == ""


def test_an_error_of_an_acceptance_verifier_is_no_failure_before_the_work(
    fleet: CodingLoop,
) -> None:
    error = {"id": "command.subprocess", "argv": ["./check.sh"]}
    assert fleet.run_all(item("A", verifiers=[error])) == {"A": "failed"}
    job = fleet.job("A")
    assert job.reason == "nothing_fails_before"
    assert "check.sh" in (job.detail or "")


def test_one_acceptance_verifier_that_fails_is_enough(fleet: CodingLoop) -> None:
    code = f"{GOOD}\nwrite('check.sh', '#!/bin/sh\\n')\nos.chmod('check.sh', 0o755)"
    error = {"id": "command.subprocess", "argv": ["./check.sh"]}
    done = item("A", verifiers=[error, has_line("A.txt", "done")])
    assert fleet.run_all(done, code=code) == {"A": "passed"}


# -- what belongs to the loop ----------------------------------------------------------------------


def test_upstream_is_merged_with_the_work(fleet: CodingLoop, user: UserRepository) -> None:
    fleet.start(item("A"), sync="main")
    fleet.run(until=lambda: bool(fleet.outcomes))
    upstream = user.commit({"upstream.txt": "new\n"})
    fleet.run()
    assert fleet.states(LOOP) == {"A": "passed"}
    assert files(user).items() >= {"A.txt": "done\n", "upstream.txt": "new\n"}.items()
    assert user.git("merge-base", "--is-ancestor", upstream, BRANCH) == ""
    check_merged(fleet, user.path)


@pytest.mark.parametrize("kind", ["conflict", "failure"])
def test_work_that_does_not_fit_to_upstream_is_merged_without_it(
    fleet: CodingLoop, user: UserRepository, kind: str
) -> None:
    """Given new commits upstream that conflict with the work, or with which it fails."""
    guard = check("'theirs' not in read('b.txt') or not has('A.txt')", "guard")
    done = item("A", verifiers=[has_line("A.txt", "done"), guard])
    fleet.start(done, code=f"{GOOD}\nwrite('a.txt', 'ours\\n')", sync="main")
    fleet.run(until=lambda: bool(fleet.outcomes))
    name = "a.txt" if kind == "conflict" else "b.txt"
    user.commit({name: "theirs\n"})
    fleet.run()
    assert fleet.states(LOOP) == {"A": "passed"}
    assert attempts(fleet) == 1
    (warning,) = fleet.warnings("A")
    assert warning.startswith("main was not merged: with it, it ")
    assert name in warning or kind == "failure"
    assert files(user)["a.txt"] == "ours\n"
    assert "b.txt" not in files(user)
    check_merged(fleet, user.path)


def test_a_conflict_of_the_branch_with_upstream_is_a_warning(
    fleet: CodingLoop, user: UserRepository
) -> None:
    fleet.start(item("A"), code=f"{GOOD}\nwrite('a.txt', 'ours\\n')", sync="main")
    fleet.run()
    user.commit({"a.txt": "theirs\n"})
    fleet.add(item("B"))
    fleet.run()
    assert fleet.states(LOOP) == {"A": "passed", "B": "passed"}
    warning = f"main was not merged: it conflicts with {BRANCH} in a.txt"
    assert fleet.warnings("B") == (warning,)
    assert files(user)["a.txt"] == "ours\n"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["sh", "-c", "echo error: no network >&2; exit 3"], "exit code 3: error: no network"),
        (["no-such-program"], "no-such-program"),
    ],
)
def test_a_setup_that_fails_before_the_work_is_named(
    fleet: CodingLoop, command: list[str], said: str
) -> None:
    fleet.start(item("A"), setup={"run": [command]})
    for _ in range(5):
        fleet.wait(60)
    view = fleet.job("A")
    assert fleet.states(LOOP) == {"A": "failed"}
    assert view.reason == "setup_failed"
    assert said in (view.detail or "")


def test_a_setup_that_an_attempt_breaks_is_its_failure(fleet: CodingLoop) -> None:
    code = f"{GOOD}\nos.unlink('bad') if again else write('bad', '')"
    script = "test ! -e bad || { echo error: bad is there >&2; exit 3; }"
    setup = {"run": [["sh", "-c", script]]}
    assert fleet.run_all(item("A"), code=code, setup=setup) == {"A": "passed"}
    assert attempts(fleet) == 2
    assert "exit code 3: error: bad is there" in fleet.results("A", 1)["command.subprocess"]
    assert "bad is there" in fleet.prompt("A", 2)


def test_a_setup_is_run_once_and_its_result_is_there_for_all(
    fleet: CodingLoop, tmp_path: Path, user: UserRepository
) -> None:
    user.commit({".gitignore": "deps/\n", "lock": "1\n"})
    make = "import os; os.mkdir('deps'); open('deps/x', 'w').write(os.urandom(8).hex())"
    setup = {"run": [["python3", "-c", make]], "cache": ["deps"], "key": ["lock"]}
    code = "write(f'{item}.txt', read('deps/x'))\nwrite('deps/x', 'of the agent')"
    seen = check("has('deps/x') and has('A.txt') and read('A.txt') == read('deps/x')")
    both = check("has('deps/x') and has('B.txt') and read('B.txt') == read('A.txt')")
    items = [item("A", verifiers=[seen]), item("B", "A", verifiers=[both])]
    assert fleet.run_all(*items, code=code, setup=setup) == dict.fromkeys("AB", "passed")
    kept = [each for each in (tmp_path / "cache" / "setups").iterdir() if each.is_dir()]
    assert len(kept) == 1
    assert not any(name.startswith("deps/") for name in files(user))


def test_an_answer_can_be_a_plan_of_edits(fleet: CodingLoop, user: UserRepository) -> None:
    edit = {"op": "write_file", "target": "A.txt", "payload": {"content": "done\n"}}
    plan = {"session": "s", "edits": [{"id": "e1", **edit}]}
    runner = {"kind": "scripted", "answers": ['{"edits": [{"id"', json.dumps(plan)]}
    assert fleet.run_all(item("A"), runner=runner, edits=True) == {"A": "passed"}
    assert attempts(fleet) == 2
    assert "edits" in fleet.prompt("A", 2)
    assert files(user)["A.txt"] == "done\n"
    check_merged(fleet, user.path)
