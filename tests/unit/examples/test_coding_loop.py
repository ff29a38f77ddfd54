"""The coding loop of the examples: its graph, and that its agent ends every item well."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest

from mulligan.console.loopfiles.inspect_loop import loop_rules
from mulligan.console.loopfiles.loop_file import read_loop
from mulligan.policies.loops.spec import ItemSpec, LoopDocument, item_prompt
from mulligan.policies.repair.wording import EARLIER_RUN
from mulligan.workers.settings.model import load_settings

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "coding_loop"
#: What the first try of an item returns: -11 and -9 are signals. All others return 0.
FIRST_EXIT = {"SHOP-003": -9, "SHOP-008": -9, "SHOP-010": 1, "SHOP-013": -11}
GUARD = "tests/test_smoke.py"
#: Its agent only changes its mind in a new run.
INSISTS = "SHOP-005"
CORRECTION = "\n\nThe first failures of the tests:\n…\n\nDo this now:\nCorrect the code."
NEW_RUN = f"\n\n{EARLIER_RUN.format(summary='All 3 attempts failed alike.', advice='Begin anew.')}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the example whose project is a repository."""
    ignored = shutil.ignore_patterns("__pycache__", ".pytest_cache")
    copy = tmp_path_factory.mktemp("example") / "coding_loop"
    shutil.copytree(EXAMPLE, copy, ignore=ignored)
    subprocess.run(["git", "init", "--quiet"], cwd=copy / "project", check=True)
    return copy


@pytest.fixture(scope="module")
def loop(folder: Path) -> LoopDocument:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MULLIGAN_CONFIG", str(folder / "mulligan.toml"))
        rules = loop_rules(load_settings())
    return read_loop(str(folder), parameters={}, environment={}, rules=rules)


@pytest.fixture
def project(folder: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "project"
    shutil.copytree(folder / "project", copy, ignore=shutil.ignore_patterns(".git"))
    return copy


def waves(loop: LoopDocument) -> Iterator[list[ItemSpec]]:
    """Yield the items that can run at once, one set after the other."""
    done: set[str] = set()
    rest = list(loop.items)
    while rest:
        wave = [item for item in rest if done >= set(item.depends_on)]
        yield wave
        done |= {item.id for item in wave}
        rest = [item for item in rest if item.id not in done]


def ancestors(loop: LoopDocument, item: str) -> set[str]:
    (spec,) = [each for each in loop.items if each.id == item]
    return set(spec.depends_on).union(*(ancestors(loop, each) for each in spec.depends_on))


def work_on(item: ItemSpec, project: Path, told: str = "") -> subprocess.CompletedProcess[str]:
    """Let the agent work on an item. If it is stopped by a signal, it is killed."""
    argv = [sys.executable, str(EXAMPLE / "agent.py"), "--pause", "0"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        argv, cwd=project, stdin=pipe, stdout=pipe, stderr=pipe, text=True
    ) as agent:
        assert agent.stdin is not None
        agent.stdin.write(item_prompt(item) + told)
        agent.stdin.close()
        agent.stdin = None
        os.waitid(os.P_PID, agent.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        agent.kill()  # which does nothing to one that has ended
        out, err = agent.communicate()
    return subprocess.CompletedProcess(argv, agent.returncode, out, err)


def outcomes(project: Path) -> dict[str, Counter[str]]:
    """Run all tests and return how many of each file passed, failed or could not run."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rA", "--tb=no", "-p", "no:cacheprovider"],
        cwd=project,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    found: dict[str, Counter[str]] = {}
    for line in done.stdout.splitlines():
        word, _, rest = line.partition(" ")
        if word in ("PASSED", "FAILED", "ERROR"):
            found.setdefault(rest.partition("::")[0], Counter())[word] += 1
    return found


def files_of(item: ItemSpec, role: str) -> set[str]:
    """Return the test files of an item's acceptance verifiers or guards."""
    chosen = [each for each in item.verifiers if each.role == role]
    return {str(file) for each in chosen for file in each.options["args"]}


def test_some_items_have_a_guard(loop: LoopDocument) -> None:
    assert [files_of(item, "guard") for item in loop.items].count({GUARD}) >= 4


def test_the_graph_is_deep_and_wide(loop: LoopDocument) -> None:
    sets = list(waves(loop))
    assert len(loop.items) == 14
    assert len(sets) >= 4
    assert len(sets[0]) >= 3
    assert loop.loop.concurrency == 3


def test_only_two_items_that_may_run_at_once_declare_the_same_files(loop: LoopDocument) -> None:
    """SHOP-001 and SHOP-002 edit the same lines, too; as they do not declare it, they conflict."""
    clashes = [
        (one.id, other.id)
        for one, other in combinations(loop.items, 2)
        if set(one.touches) & set(other.touches)
        and one.id not in ancestors(loop, other.id)
        and other.id not in ancestors(loop, one.id)
    ]
    assert clashes == [("SHOP-006", "SHOP-007")]


def test_every_item_fails_at_first_and_passes_in_the_end(loop: LoopDocument, project: Path) -> None:
    """Given an agent that fails at its first try, when it is corrected, then all tests pass."""
    found = outcomes(project)
    passing = {GUARD}
    for wave in waves(loop):
        for item in wave:
            (acceptance,) = files_of(item, "acceptance")
            assert found[acceptance]["FAILED"], f"{item.id} is done already"
            assert not found[acceptance]["ERROR"]
            assert files_of(item, "guard") <= passing
            first = work_on(item, project)
            assert first.returncode == FIRST_EXIT.get(item.id, 0), first.stderr
            second = work_on(item, project, NEW_RUN if item.id == INSISTS else CORRECTION)
            assert second.returncode == 0, second.stderr
            assert json.loads(second.stdout.splitlines()[-1])["type"] == "result"
            passing.add(acceptance)
        found = outcomes(project)
        assert {file for file, counts in found.items() if set(counts) == {"PASSED"}} == passing


def test_an_agent_that_insists_only_hears_of_a_new_run(loop: LoopDocument, project: Path) -> None:
    (item,) = [each for each in loop.items if each.id == INSISTS]
    tries = [work_on(item, project, told) for told in ("", CORRECTION, NEW_RUN)]
    ends = [json.loads(each.stdout.splitlines()[-1])["result"] for each in tries]
    assert ends == ["Fixed.", "Fixed.", "SHOP-005 is done: 2 edits."]


def test_the_agent_resolves_a_conflict(loop: LoopDocument, project: Path, tmp_path: Path) -> None:
    """Given two items that were done at the same time, when the second one finds git's markers."""
    one, other = loop.items[:2]
    theirs = tmp_path / "theirs"
    base = tmp_path / "base"
    for copy in (theirs, base):
        shutil.copytree(project, copy)
    work_on(one, theirs)
    work_on(other, project)
    for name in ("shop/__init__.py", "CHANGELOG.md", "shop/amounts.py"):
        sides = [str(side / name) for side in (project, base, theirs)]
        subprocess.run(["git", "merge-file", "--diff3", *sides], check=False)
    assert "<<<<<<<" in (project / "shop/__init__.py").read_text()
    work_on(other, project, CORRECTION)
    found = outcomes(project)
    for file in files_of(one, "acceptance") | files_of(other, "acceptance"):
        assert set(found[file]) == {"PASSED"}


def test_an_empty_account_is_told_by_the_exit_code(loop: LoopDocument, folder: Path) -> None:
    (item,) = [each for each in loop.items if each.runner is not None]
    profile = tomllib.loads((folder / "mulligan.toml").read_text("utf-8"))["runners"]["trial"]
    assert item.runner is not None
    assert item.runner.profile == "trial"
    (folder / "accounts" / "trial").write_text(str(time.time() + 1000), "utf-8")
    done = subprocess.run(
        [sys.executable, str(folder / "agent.py"), *profile["argv"][1:]],
        cwd=folder / "project",
        input=item_prompt(item),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in profile["out_of_credits_exit_codes"]
