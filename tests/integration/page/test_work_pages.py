"""The pages of work in a repository without a browser: content, access and what is escaped."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from support.coding_console import console_of
from support.coding_loop import LOOP, CodingLoop, item
from support.console_server import client_of, new_token, post_json
from support.git_repositories import UserRepository

from mulligan.console.http.context import ConsoleContext
from mulligan.console.page.loops import checkpoint_reader
from mulligan.console.page.loops.checkpoint_reader import CheckpointReader
from mulligan.console.page.loops.work_pages import checkpoint_lines
from mulligan.tasks.loops.rollback import checkpoints_of
from mulligan.tasks.ports.repositories import BranchCommit, Repository
from mulligan.testing import real_models

HTML = {"Accept": "text/html"}
PAGE = f"/loops/{LOOP}"
CODE = """
write(f"{item}.txt", "done\\n<script>alert(1)</script>\\n\\u202egnp\\n")
print("<b>bold</b> \\u202e")
"""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> CodingLoop:
    folder = tmp_path_factory.mktemp("pages")
    found = CodingLoop(folder, UserRepository.make(folder / "user").path)
    with real_models("command"):
        states = found.run_all(item("A", title="<i>First</i>"), item("B", "A"), code=CODE)
    assert set(states.values()) == {"passed"}
    return found


@pytest.fixture(scope="module")
def context(fleet: CodingLoop) -> Iterator[ConsoleContext]:
    opened = console_of(fleet)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def client(context: ConsoleContext) -> TestClient:
    return client_of(context, new_token(context, role="ops", texts=True))


def page(client: TestClient, path: str, status: int = 200) -> str:
    response = client.get(path, headers=HTML)
    assert response.status_code == status, response.text
    return re.sub(r"\s+", " ", response.text)


def text_of(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


def session_page(fleet: CodingLoop, name: str = "A") -> str:
    return f"{PAGE}/items/{name}/transcripts/{fleet.snapshot.record(name).job_id}/1"


def test_a_loop_shows_its_repository_and_checkpoints(client: TestClient, fleet: CodingLoop) -> None:
    html = page(client, PAGE)
    shown = text_of(html)
    assert f"repository {fleet.repository} branch mulligan/{LOOP}" in shown
    assert f'href="{PAGE}/items/A"' in html
    assert "✓ merged" in shown
    assert "the beginning" in shown
    questions = re.findall(r'data-confirm="(Go back[^"]*)"', html)
    assert len(questions) == 2, "nothing comes after the newest"
    undone = "undone by a new commit on the branch"
    assert f"The work of B is {undone}, and it runs again." in questions[0]
    assert f"The work of A, B is {undone}, and they run again." in questions[1]
    assert f'data-call="/api/loops/{LOOP}/rollback"' in html
    every = page(client, f"{PAGE}/checkpoints")
    assert re.findall(r'data-confirm="(Go back[^"]*)"', every) == questions


def test_the_question_names_commits_of_others() -> None:
    """What they are about only to those who may read texts."""

    def commit(name: str, subject: str, **trailers: str) -> BranchCommit:
        return BranchCommit(
            commit=name, tree="", parents=(), at=0.0, subject=subject, trailers=trailers
        )

    merge = {"Mulligan-Item": f"{LOOP}/A", "Mulligan-Attempt": "job/1"}
    history = [commit("c3", "user fix"), commit("c2", "A", **merge), commit("c1", "begin")]
    line = checkpoint_lines(checkpoints_of(history, LOOP))[-1]
    assert line.question(texts=True).endswith("It also removes 1 commit of others: c3 user fix.")
    assert line.question(texts=False).endswith("It also removes 1 commit of others: c3.")


def test_a_checkpoint_and_an_item_show_what_they_changed(client: TestClient) -> None:
    html = page(client, f"{PAGE}/items/B")
    shown = text_of(html)
    assert "Its work is on the branch." in shown
    assert "1 file +3 −0" in shown
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    assert "<script>alert" not in html
    assert "+⟨U+202E⟩gnp" in shown
    assert 'data-confirm="Undo B? The work of B is undone' in html
    assert "Undo A? The work of A, B is undone" in page(client, f"{PAGE}/items/A")
    (commit,) = set(re.findall(rf'href="{PAGE}/checkpoints/(\w+)"', page(client, PAGE))[:1])
    of_checkpoint = page(client, f"{PAGE}/checkpoints/{commit}")
    assert "B.txt" in of_checkpoint
    assert commit in of_checkpoint


def test_a_transcript_shows_what_the_agent_did(client: TestClient, fleet: CodingLoop) -> None:
    html = page(client, session_page(fleet))
    assert "&lt;b&gt;bold&lt;/b&gt; ⟨U+202E⟩" in html
    assert "<b>bold" not in html
    assert "The agent has ended." in html
    assert "data-stream" not in html
    assert session_page(fleet) in page(client, f"/jobs/{fleet.snapshot.record('A').job_id}")


@pytest.mark.parametrize(
    "path", ["/checkpoints/ffffffff", "/items/X", "/items/A/transcripts/p00-x/1"]
)
def test_what_does_not_exist_is_not_found(client: TestClient, path: str) -> None:
    assert "Not found" in page(client, PAGE + path, 404)


def test_without_texts_only_numbers_are_shown(context: ConsoleContext, fleet: CodingLoop) -> None:
    blind = client_of(context, new_token(context, role="ops", texts=False))
    for path in (PAGE, f"{PAGE}/checkpoints", f"{PAGE}/items/A", session_page(fleet)):
        html = page(blind, path)
        for secret in ("A.txt", "bold", "Item A: make"):
            assert secret not in html, path
    assert "1 file +3 −0" in text_of(page(blind, f"{PAGE}/items/A"))
    other = client_of(context, new_token(context, role="ops", tenant="zeta"))
    for path in (PAGE, f"{PAGE}/checkpoints", f"{PAGE}/items/A", session_page(fleet)):
        page(other, path, 404)


def test_a_repository_that_is_away_leaves_the_pages_usable(
    client: TestClient, context: ConsoleContext, fleet: CodingLoop
) -> None:
    place = Path(fleet.repository)
    place.rename(place.with_name("moved"))
    try:
        change = client.patch(f"/api/loops/{LOOP}", json={"priority": 4})  # so that it is read anew
        assert change.status_code == 200
        for path in (PAGE, f"{PAGE}/checkpoints", f"{PAGE}/items/A", session_page(fleet)):
            shown = text_of(page(client, path))
            assert "the repository cannot be used now" in shown, path
        assert "attempt 1" in text_of(page(client, f"{PAGE}/items/A"))
    finally:
        place.with_name("moved").rename(place)


def test_a_page_does_not_wait_for_a_repository_that_hangs(
    fleet: CodingLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_reader, "_FIRST", 0.1)
    released = threading.Event()
    loops, opened = fleet.services.loops, list[str]()

    def slow(name: str) -> Repository:
        opened.append(name)
        released.wait(20)
        return loops.repository(name)

    reader = CheckpointReader(replace(loops, repository=slow))
    assert reader.read(fleet.snapshot).found is None
    assert reader.read(fleet.snapshot).found is None
    assert len(opened) == 1, "it is asked once"
    released.set()
    monkeypatch.setattr(checkpoint_reader, "_FIRST", 20)
    found = reader.read(fleet.snapshot).found
    assert found is not None
    assert len(found) == 3


def test_a_pending_rollback_is_shown_and_cannot_be_asked_for_twice(
    client: TestClient, fleet: CodingLoop
) -> None:
    """The last test: it changes the loop."""
    post_json(client, f"/api/loops/{LOOP}/rollback", 202, test="B")
    for path in (PAGE, f"{PAGE}/items/B"):
        html = page(client, path)
        assert "A rollback of B was requested by" in text_of(html)
        assert "Roll back…" not in html
        assert "Undo…" not in html
    fleet.sweep()
    html = page(client, PAGE)
    assert "↻ rollback of 1" in text_of(html)
    assert "✕ undone" in text_of(html)
