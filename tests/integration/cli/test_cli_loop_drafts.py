"""`mulligan loops draft`, `check`, `import` of Markdown and `markdown`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cli_process import Shell, new_shell
from support.coding_loop import CodingLoop, check, coding_document, has_line, item
from support.drafts import drafted, drafter, spec
from support.git_repositories import UserRepository

from mulligan.tasks.jobs.attempt import run_attempt
from mulligan.tasks.jobs.verify import run_verification
from mulligan.tasks.ports.ledger import Entry

ONE = drafted("A", verifiers=[check("has('new.txt')")])
CONFIG = '[runners.coder]\nkind = "command"\nargv = ["true"]\n'


@pytest.fixture
def shell() -> Iterator[Shell]:
    with new_shell(COLUMNS="200") as found:
        found.write("mulligan.toml", CONFIG)
        UserRepository.make(found.folder / "project")
        yield found


def write_loop(shell: Shell, *items: dict[str, Any], **spec: Any) -> None:
    loop = {"name": "demo", "runner": "coder", "repo": "project", "specs": ["spec.json"]}
    shell.write("loop.yaml", loop)
    shell.write("spec.json", {"items": list(items), **spec})


def say(shell: Shell, *argv: str, code: int = 0) -> list[str]:
    return shell.invoke("loops", *argv, code=code).stdout.strip().splitlines()


# -- check -----------------------------------------------------------------------------------------


def test_a_spec_is_compared_with_the_code_base(shell: Shell) -> None:
    """Given a spec, then verifiers that say nothing, guards that fail and more are named."""
    write_loop(
        shell,
        item("fine", touches=["a.txt", "src/*.py"]),
        item("passes", verifiers=[has_line("a.txt", "one")]),
        item("broken", verifiers=[{"id": "pytest.subprocess", "args": ["tests/none.py"]}]),
        item("guard", verifiers=[has_line("x", "x"), check("has('x')", role="guard")]),
        item("criteria", pass_criteria=["`x.txt` is right", "it is fast"], touches=["new.py"],
             verifiers=[has_line("x.txt", "x")]),
        item("done", verifiers=[has_line("a.txt", "one")]),
        states={"done": "passed"},
    )  # fmt: skip
    found = shell.invoke_json("loops", "check", ".", code=1)
    assert not found["ok"]
    rows = [(each["item"], each["code"], each["warning"]) for each in found["findings"]]
    assert rows == [
        ("passes", "passes_already", False),
        ("broken", "cannot_run", False),
        ("guard", "guard_fails", False),
        ("criteria", "criterion_unchecked", True),
        ("criteria", "touches_nothing", True),
    ]
    lines = say(shell, "check", ".", code=1)
    assert lines[0].startswith("passes: grep -qsx one a.txt passes before the work")
    assert lines[-1] == "3 problems, 2 warnings"


def test_a_spec_with_mere_warnings_is_fine(shell: Shell) -> None:
    write_loop(shell, item("fine", touches=["new.txt"]))
    assert say(shell, "check", ".") == [
        "warning: fine: touches 'new.txt', which no file matches yet",
        "no problems, 1 warning",
    ]


def test_a_malformed_spec_is_not_run(shell: Shell) -> None:
    write_loop(shell, item("a", "b"), item("b", "a"), {"id": "c", "prompt": "x"})
    found = shell.invoke_json("loops", "check", ".", code=1)
    assert found["findings"] == []
    assert any("form a cycle: a → b → a" in each for each in found["problems"])
    assert any("items[2].verifiers: is required" in each for each in found["problems"])


def test_a_spec_is_compared_with_another_repository(shell: Shell) -> None:
    write_loop(shell, item("a"))
    other = UserRepository.make(shell.folder / "other")
    other.commit({"a.txt": "done\n"})
    assert say(shell, "check", ".") == ["no problems"]
    (line, *_) = say(shell, "check", ".", "--repo", "other", code=1)
    assert "passes before the work" in line
    result = shell.invoke("loops", "check", ".", "--repo", "nowhere", code=2)
    assert "nowhere" in result.stderr


def test_a_loop_without_a_repository_is_compared_with_its_workspace(shell: Shell) -> None:
    (shell.folder / "space").mkdir()
    shell.write("space/a.txt", "done\n")
    loop = {"name": "demo", "runner": "coder", "workspace": {"path": "space"}, "specs": ["s.json"]}
    shell.write("loop.yaml", loop)
    shell.write("s.json", {"items": [item("a"), item("b")]})
    found = shell.invoke_json("loops", "check", ".", code=1)["findings"]
    assert [(each["item"], each["code"]) for each in found] == [("a", "passes_already")]


# -- draft -----------------------------------------------------------------------------------------

GOAL = ("draft", "Make a.txt", "--repo", "project", "--base", "main")
RUNNERS = ("--runner", "planner", "--agent", "coder", "--allow", sys.executable)


@pytest.fixture
def fleet(tmp_path: Path, redis_socket: Path, redis_url: str) -> CodingLoop:
    """The workers of a ledger that commands reach, which do nothing by themselves."""
    del redis_url  # which empties the ledger
    runners = {"coder": {"kind": "command", "argv": ["true"]}, "planner": drafter(spec(ONE))}
    url = f"unix://{redis_socket}"
    return CodingLoop(tmp_path, tmp_path, redis_url=url, runners=runners)


@pytest.fixture
def drafting(fleet: CodingLoop, redis_url: str) -> Iterator[Shell]:
    variables = {
        "MULLIGAN_ALLOW_INLINE": "true",
        "MULLIGAN_RUNNERS": json.dumps(dict(fleet.settings.runners)),
    }
    with new_shell(MULLIGAN_BROKER_URL=redis_url, COLUMNS="200", **variables) as found:
        UserRepository.make(found.folder / "project")
        yield found


def ask(shell: Shell, *argv: str, code: int = 1) -> str:
    """Ask for a draft, wait for it no longer than a moment, and return its job."""
    first, *_ = say(shell, *GOAL, *RUNNERS, "--timeout", "0.1", *argv, code=code)
    return first.split()[0]


def work_on(fleet: CodingLoop, job_id: str) -> None:
    """Draft, as a worker would."""
    run_attempt(fleet.services.context, Entry("attempt", job_id, 1))
    run_verification(fleet.services.context, Entry("verification", job_id, 1, index=2))


def test_a_draft_that_is_not_ready_is_bought_once_and_fetched_later(
    drafting: Shell, fleet: CodingLoop
) -> None:
    """Given nobody who waits, then the command says how to get the draft, and that works."""
    begun, later = say(drafting, *GOAL, *RUNNERS, "--timeout", "0.1", code=1)
    job_id = begun.split()[0]
    assert later.endswith(f"the draft goes on; to get it: `mulligan loops draft --resume {job_id}`")
    assert ask(drafting) == job_id
    work_on(fleet, job_id)
    again = say(drafting, "draft", "--resume", job_id, "--output", "one")
    assert again[:2] == [
        f"{job_id}  drafting make-a-txt, which was asked for before",
        "attempt 1  score 100  no problems",
    ]
    assert (drafting.folder / "one/loop.yaml").is_file()
    assert ask(drafting, "--output", "two", code=0) == job_id  # a passed one is not bought again
    new = ask(drafting, "--new", "--output", "three")
    assert new != job_id
    assert ask(drafting, "--output", "three") == new


def test_another_request_is_another_draft(drafting: Shell, fleet: CodingLoop) -> None:
    """Given another name, another wish or a cancelled draft, then a new one is asked for."""
    ids = [ask(drafting), ask(drafting, "--name", "other"), ask(drafting, "--auto-start")]
    fleet.ledger.cancel(ids[0])
    assert len({*ids, ask(drafting)}) == 4


def test_a_draft_whose_repository_changes_is_joined_while_it_runs(
    drafting: Shell, fleet: CodingLoop
) -> None:
    first = ask(drafting)
    UserRepository(drafting.folder / "project").commit({"new.txt": "new\n"})
    assert ask(drafting) == first
    work_on(fleet, first)
    assert ask(drafting) != first


def test_what_is_missing_or_too_much_is_said_at_once(drafting: Shell) -> None:
    def complaint(*argv: str) -> str:
        return drafting.invoke("loops", *argv, code=2).stderr

    said = complaint("draft")
    for missing in ("say what is to be done", "with --repo", "with --runner"):
        assert missing in said
    said = complaint(*GOAL, "--runner", "planer", "--agent", "codr")
    assert "loop.runner.profile: no profile 'codr'; did you mean 'coder'?" in said
    assert "mulligan: runner.profile: no profile 'planer'; did you mean 'planner'?" in said
    drafting.environment["MULLIGAN_RUNNERS"] = "{}"
    assert "(there is no mulligan.toml yet)" in complaint(*GOAL, "--runner", "planner")
    assert "there is no draft 'p00-x'" in complaint("draft", "--resume", "p00-x")
    assert "with --resume" in complaint("draft", "More", "--resume", "p00-x")


# -- Markdown --------------------------------------------------------------------------------------


CHECKLIST = """\
# Two files

What this is about.

- [x] T-1: Make a.txt
  - Verifiers:
    - `python check.py ${HOME}`
- [ ] T-2: Make b.txt
  - depends on: T-1
  - `pytest tests/test_b.py` passes

## Later
- [ ] Clean up
"""


def test_a_checklist_becomes_a_loop_and_a_checklist_again(shell: Shell) -> None:
    shell.write("todo.md", CHECKLIST)
    result = shell.invoke("loops", "import", "todo.md", "--to", "loop")
    files = ["loop/loop.yaml", "loop/specs/0000-two-files.yaml", "loop/specs/0001-later.yaml"]
    assert result.stdout.splitlines()[:3] == files
    assert result.stderr.splitlines() == [
        "todo.md: line 3: is not part of an item: left out",
        "todo.md: line 8: 'pytest tests/test_b.py' became a verifier of T-2",
    ]
    assert any(
        "clean-up" in each or "verifiers" in each for each in say(shell, "lint", "loop", code=2)
    )
    # What is missing is added.
    later = shell.folder / "loop/specs/0001-later.yaml"
    later.write_text(later.read_text() + "    verifiers: [{id: pytest.subprocess}]\n")
    config = shell.folder / "loop/loop.yaml"
    config.write_text(config.read_text() + "runner: coder\nrepo: ../project\n")
    written = shell.invoke("loops", "markdown", "./loop").stdout
    assert "- [x] `T-1`: Make a.txt" in written
    assert "python check.py '${HOME}'" in written
    shell.write("again.md", written)
    shell.invoke("loops", "import", "again.md", "--to", "again")
    again = shell.folder / "again/loop.yaml"
    again.write_text(again.read_text() + "runner: coder\nrepo: ../project\n")
    assert shell.invoke("loops", "markdown", "again/loop.yaml").stdout == written


def test_an_import_overwrites_nothing_and_names_the_file(shell: Shell) -> None:
    shell.write("todo.md", CHECKLIST)
    shell.invoke("loops", "import", "todo.md", "--to", "loop")
    result = shell.invoke("loops", "import", "todo.md", "--to", "loop", code=2)
    assert "loop/loop.yaml exists; nothing was written" in result.stderr
    shell.write("empty.md", "nothing\n")
    result = shell.invoke("loops", "import", "empty.md", "--to", "other", code=2)
    assert "empty.md: has no items" in result.stderr
    assert not (shell.folder / "other").exists()


def test_a_name_is_a_loop_and_a_path_is_files(drafting: Shell, fleet: CodingLoop) -> None:
    """Given a folder with the name of a loop, then neither is taken for the other silently."""
    drafting.write("todo.md", CHECKLIST)
    drafting.invoke("loops", "import", "todo.md", "--to", "demo")
    later = drafting.folder / "demo/specs/0001-later.yaml"
    later.write_text(later.read_text() + "    verifiers: [{id: pytest.subprocess}]\n")
    config = drafting.folder / "demo/loop.yaml"
    config.write_text(config.read_text() + "runner: coder\nrepo: ../project\n")
    hint = "for the files in demo here: `mulligan loops markdown ./demo`"
    assert hint in drafting.invoke("loops", "markdown", "demo", code=2).stderr
    fleet.create(coding_document(drafting.folder / "project", item("A"), code=""))
    found = drafting.invoke("loops", "markdown", "demo")
    assert "- [ ] `A`" in found.stdout
    assert f"this is the loop in the ledger; {hint}" in found.stderr
    for path in ("./demo", "demo/", "demo/loop.yaml"):
        assert "`T-1`" in drafting.invoke_json("loops", "markdown", path)["markdown"]
    del drafting.environment["MULLIGAN_BROKER_URL"]
    assert hint in drafting.invoke("loops", "markdown", "demo", code=3).stderr


@pytest.mark.parametrize(
    ("content", "said"),
    [("", "is empty"), ("INFO: up\n x: y: z\n", "broken YAML"), ("a: 1\n", "neither")],
)
def test_an_import_says_what_is_wrong_with_a_file_of_another_kind(
    shell: Shell, content: str, said: str
) -> None:
    shell.write("up.log", content)
    result = shell.invoke("loops", "import", "up.log", code=2)
    assert "up.log" in result.stderr
    assert "no exported loop" in result.stderr
    assert said in result.stderr
