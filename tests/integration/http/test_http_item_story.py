"""How the attempts of an item ended, over HTTP, on the page and on a terminal."""

from __future__ import annotations

import pytest
from support.coding_console import console_of
from support.coding_loop import LOOP, CodingLoop, check, has_line, item
from support.console_server import client_of, get_json, new_token
from support.git_repositories import UserRepository

from mulligan.console.cli.loops.loop_screen import print_item
from mulligan.console.http.context import ConsoleContext
from mulligan.console.http.models.job_models import REDACTED
from mulligan.tasks.loops.view import view_item
from mulligan.testing import real_models

pytestmark = pytest.mark.real_models("command")

API = f"/api/loops/{LOOP}"
#: A's agent does its work and fails, B's guard fails before the work, C's agent writes nonsense.
CODE = """
write(f"{item}.txt", "no\\n" if item == "C" else "done\\n")
sys.exit("error: lost my way" if item == "A" else 0)
"""
ITEMS = [
    item("A"),
    item("B", verifiers=[has_line("B.txt", "done"), check("has('nowhere')", "guard")]),
    item("C"),
]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> CodingLoop:
    folder = tmp_path_factory.mktemp("ended")
    fleet = CodingLoop(folder, UserRepository.make(folder / "user").path)
    with real_models("command"):
        states = fleet.run_all(*ITEMS, code=CODE, max_attempts=2)
    assert states == {"A": "passed", "B": "failed", "C": "failed"}
    return fleet


@pytest.fixture(scope="module")
def console(fleet: CodingLoop) -> ConsoleContext:
    return console_of(fleet)


def test_an_attempt_says_how_its_agent_ended(console: ConsoleContext) -> None:
    client = client_of(console, new_token(console, role="ops", name="ada", texts=True))
    (attempt,) = get_json(client, f"{API}/tests/A")["attempts"]
    assert "exited with code 1: error: lost my way" in attempt["ended"]
    assert "/" not in attempt["ended"].partition(":")[0], "no path of the worker"
    assert [each["ended"] for each in get_json(client, f"{API}/tests/C")["attempts"]] == [None] * 2
    assert "its session broke off" in client.get(f"/loops/{LOOP}/items/A").text
    job = get_json(client, f"{API}/tests/A")["job_id"]
    assert "Its session broke off" in client.get(f"/jobs/{job}").text


def test_why_says_what_the_escalation_says(console: ConsoleContext) -> None:
    client = client_of(console, new_token(console, role="ops", name="eve", texts=True))
    for path in (f"{API}/why?test=B", f"{API}/why"):
        assert "fails before the work" in get_json(client, path)["detail"]
    assert "fails before the work" in get_json(client, f"{API}/tests/B")["why"]["detail"]
    for name, said in (("B", "fails before the work"), ("C", "grep")):
        assert said in client.get(f"/loops/{LOOP}/items/{name}").text


def test_without_the_right_to_read_texts_nothing_is_quoted(console: ConsoleContext) -> None:
    client = client_of(console, new_token(console, role="ops", name="bob"))
    assert get_json(client, f"{API}/why?test=B")["detail"] is None
    assert get_json(client, f"{API}/tests/A")["attempts"][0]["ended"] == REDACTED
    for name, said in (("A", "lost my way"), ("B", "before the work")):
        assert said not in client.get(f"/loops/{LOOP}/items/{name}").text


def test_a_terminal_shows_what_ended_an_item_before_anybody_worked(
    console: ConsoleContext, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in "AB":
        print_item(view_item(console.services.loops, LOOP, name))
    shown = " ".join(capsys.readouterr().out.split())
    assert "its session broke off: " in shown
    assert "score –" not in shown
    assert "attempt 1 initial, command.subprocess" in shown
