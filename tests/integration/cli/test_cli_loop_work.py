"""`mulligan loops checkpoints`, `diff`, `rollback` and `transcript` on a real repository."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.cli_process import Shell, new_shell
from support.coding_loop import LOOP, CodingLoop, has_line, item, push
from support.git_repositories import UserRepository

from mulligan.console.cli.loops import loop_work

pytestmark = pytest.mark.real_models("command")

#: C changes the line beside that of A. What B writes tries to command a terminal.
CODE = """
write(f"{item}.txt", "done\\n" + "\\x1b[31mred\\n" * (item == "B"))
if item != "B":
    write("shared.txt", (read("shared.txt") if has("shared.txt") else "") + item + "\\n")
print(f"made {item}")
"""
ITEMS = [item("A"), item("B", "A"), item("C", "A")]


@pytest.fixture
def fleet(tmp_path: Path, redis_socket: Path, redis_url: str) -> CodingLoop:
    """A loop whose items have passed, on a ledger that commands reach."""
    user = UserRepository.make(tmp_path / "user").path
    found = CodingLoop(tmp_path, user, redis_url=f"unix://{redis_socket}")
    assert set(found.run_all(*ITEMS, code=CODE).values()) == {"passed"}
    return found


@pytest.fixture
def shell(redis_url: str, fleet: CodingLoop) -> Iterator[Shell]:
    cache = str(fleet.settings.repository_cache)
    with new_shell(
        MULLIGAN_BROKER_URL=redis_url, COLUMNS="200", MULLIGAN_REPOSITORY_CACHE=cache
    ) as found:
        yield found


def say(shell: Shell, *argv: str, code: int = 0) -> str:
    result = shell.invoke("loops", *argv, code=code)
    return f"{result.stdout}{result.stderr}".strip()


def emitted(shell: Shell, *argv: str, code: int = 0) -> Any:
    return json.loads(shell.invoke("loops", *argv, "--json", code=code).stdout)


@contextmanager
def sweeping(fleet: CodingLoop) -> Iterator[None]:
    """Make rollbacks meanwhile, as a worker does."""
    ended = threading.Event()

    def sweep() -> None:
        while not ended.wait(0.1):
            fleet.sweep()

    thread = threading.Thread(target=sweep)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_people_see_the_work_and_undo_it(shell: Shell, fleet: CodingLoop) -> None:
    shown = say(shell, "show", LOOP)
    assert f"repo      {fleet.repository}, branch mulligan/{LOOP}" in shown
    lines = say(shell, "checkpoints", LOOP).splitlines()
    assert lines[0].split() == ["commit", "when", "kind", "item", "attempt", "about"]
    assert [line.split()[3] for line in lines[1:]] == ["merge", "merge", "merge", "other"]
    found = emitted(shell, "checkpoints", LOOP, "--limit", "2")
    assert (len(found["checkpoints"]), found["total"]) == (2, 4)
    (merge,) = [e for e in emitted(shell, "checkpoints", LOOP)["checkpoints"] if e["item"] == "B"]

    printed = say(shell, "diff", LOOP, "B")
    assert "1 file, on the branch" in printed
    assert "+2 -0  B.txt (added)" in printed
    assert "+done\n+\N{REPLACEMENT CHARACTER}[31mred" in printed
    assert "\x1b" not in printed
    assert say(shell, "diff", LOOP, "--checkpoint", merge["commit"][:8]) == printed
    assert emitted(shell, "diff", LOOP, "B")["new"] == merge["commit"]

    assert "made A" in say(shell, "transcript", LOOP, "A")
    document = emitted(shell, "transcript", LOOP, "A", "--attempt", "1")
    assert (document["item"], document["ended"]) == ("A", True)
    followed = shell.invoke("loops", "transcript", LOOP, "A", "--follow", "--json").stdout
    assert [json.loads(line) for line in followed.splitlines()] == document["events"]

    with sweeping(fleet):
        done = say(shell, "rollback", LOOP, "--item", "B", "--yes")
    assert done == "rolled back; 1 item will run again: B"
    assert fleet.states(LOOP)["B"] in ("pending", "ready")
    assert "merge, undone" in say(shell, "checkpoints", LOOP)
    assert "attempt 1, not on the branch" in say(shell, "diff", LOOP, "B")


def test_a_rollback_that_is_not_made_says_why(
    shell: Shell, fleet: CodingLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = emitted(shell, "checkpoints", LOOP)["checkpoints"][-1]["commit"]
    asked = say(shell, "rollback", LOOP, "--to", base[:10], code=2)
    assert "this would undo A, " in asked
    assert f"of {LOOP}, so that they run again. No terminal to confirm on. Pass --yes" in asked
    assert fleet.loop.rollback == ""

    monkeypatch.setattr(loop_work, "PATIENCE", 0.1)
    late = say(shell, "rollback", LOOP, "--to", base[:10], "--yes", code=1)
    assert f"It is still pending: `mulligan loops show {LOOP}`" in late
    assert f"rollback  to {base[:10]}, requested " in say(shell, "show", LOOP)
    again = say(shell, "rollback", LOOP, "--item", "A", "--yes", code=2)
    assert again == "mulligan: another rollback of this loop is not finished yet"


def test_the_question_names_commits_of_others(shell: Shell, fleet: CodingLoop) -> None:
    base = emitted(shell, "checkpoints", LOOP)["checkpoints"][-1]["commit"]
    pushed = push(Path(fleet.repository), "user.txt")
    asked = say(shell, "rollback", LOOP, "--to", base[:10], code=2)
    assert f"again, and also remove 1 commit of others: {pushed[:10]} user fix. No" in asked
    with sweeping(fleet):
        document = emitted(shell, "rollback", LOOP, "--to", base[:10], "--yes")
    assert document["removes"] == [pushed]
    assert "other, undone" in say(shell, "checkpoints", LOOP)
    back = say(shell, "rollback", LOOP, "--to", pushed[:10], code=2)
    assert "this would bring back the earlier work of A, " in back
    assert f", and also bring back 1 commit of others: {pushed[:10]} user fix." in back


def test_the_question_before_a_delete_names_the_work_that_goes(
    shell: Shell, fleet: CodingLoop
) -> None:
    say(shell, "stop", LOOP)
    fleet.roll_back(item="B")
    assert say(shell, "delete", LOOP, code=2) == (
        f"mulligan: this would delete the loop {LOOP}, its transcripts and the unmerged work of"
        " 1 attempt; its branch stays. No terminal to confirm on. Pass --yes. Nothing was changed."
    )


def test_work_that_cannot_be_taken_out_alone_stays(shell: Shell, fleet: CodingLoop) -> None:
    """Given a rollback of which only the worker that makes it finds that it is not possible."""
    fleet.add(item("D", verifiers=[has_line("shared.txt", "D")]))
    fleet.run()
    assert fleet.states(LOOP)["D"] == "passed"
    with sweeping(fleet):
        document = emitted(shell, "rollback", LOOP, "--item", "C", "--yes", code=1)
    assert (document["made"], document["reopens"]) == (False, ["C"])
    assert "C cannot be taken out alone: later work changed the same lines" in document["problem"]
    assert fleet.states(LOOP)["C"] == "passed"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["checkpoints", "dem"], "there is no loop 'dem'; did you mean 'demo'?"),
        (["diff", LOOP], "name either an ITEM or a --checkpoint"),
        (["diff", LOOP, "A", "--checkpoint", "abcd"], "name either an ITEM or a --checkpoint"),
        (["diff", LOOP, "X"], "the loop 'demo' has no item 'X'"),
        (["diff", LOOP, "--checkpoint", "ffff"], "no checkpoint of the loop begins with 'ffff'"),
        (["rollback", LOOP], "name a checkpoint (--to COMMIT) or an item (--item ITEM)"),
        (["rollback", LOOP, "--to", "ffff"], "no checkpoint of the loop begins with 'ffff'"),
        (["rollback", LOOP, "--item", "X"], "the loop 'demo' has no item 'X'"),
        (["transcript", LOOP, "X"], "the loop 'demo' has no item 'X'"),
        (["transcript", LOOP, "A"], "A has not run yet"),
    ],
)
def test_mistakes_get_a_clear_message(
    redis_url: str, redis_socket: Path, tmp_path: Path, argv: list[str], message: str
) -> None:
    user = UserRepository.make(tmp_path / "user").path
    fleet = CodingLoop(tmp_path, user, redis_url=f"unix://{redis_socket}")
    fleet.start(item("A"))
    with new_shell(MULLIGAN_BROKER_URL=redis_url) as shell:
        assert message in say(shell, *argv, code=2)
