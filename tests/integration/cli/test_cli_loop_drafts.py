"""`mulligan loops check`, `import` of Markdown and `markdown`: specs, checklists and code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.cli_process import Shell, new_shell
from support.coding_loop import check, has_line, item
from support.git_repositories import UserRepository

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
    written = shell.invoke("loops", "markdown", "loop").stdout
    assert "- [x] `T-1`: Make a.txt" in written
    assert "python check.py '${HOME}'" in written
    shell.write("again.md", written)
    shell.invoke("loops", "import", "again.md", "--to", "again")
    again = shell.folder / "again/loop.yaml"
    again.write_text(again.read_text() + "runner: coder\nrepo: ../project\n")
    assert shell.invoke("loops", "markdown", "again").stdout == written


def test_an_import_overwrites_nothing_and_names_the_file(shell: Shell) -> None:
    shell.write("todo.md", CHECKLIST)
    shell.invoke("loops", "import", "todo.md", "--to", "loop")
    result = shell.invoke("loops", "import", "todo.md", "--to", "loop", code=2)
    assert "loop/loop.yaml exists; nothing was written" in result.stderr
    shell.write("empty.md", "nothing\n")
    result = shell.invoke("loops", "import", "empty.md", "--to", "other", code=2)
    assert "empty.md: has no items" in result.stderr
    assert not (shell.folder / "other").exists()
