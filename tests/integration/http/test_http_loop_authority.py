"""What a loop over HTTP may not name: its caller has no more rights than any other producer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from support.console_server import client_of
from support.git_repositories import UserRepository
from support.ledger_scenario import SettingsMaker

from mulligan.console.http.context import open_context

ITEM = {"id": "A", "prompt": "p", "verifiers": ["json.object"]}
PROFILES = {"good": {"kind": "scripted", "answers": ["{}"]}}
COMMANDS = {"publish": {"argv": ["true"]}}


def console(settings: SettingsMaker, repository: Path, **more: Any) -> TestClient:
    """Return a console of a fleet that names one repository."""
    chosen = settings(
        runners=PROFILES,
        commands=COMMANDS,
        repositories={"shop": str(repository)},
        repository_cache=repository.parent / "cache",
        **{"allow_inline": False, **more},
    )
    return client_of(open_context(chosen))


def problems(client: TestClient, **config: Any) -> list[str]:
    """Create a loop; return why it was refused."""
    loop = {"name": "alpha", "runner": "good", "repo": "shop", "base": "main", **config}
    loop["edits"] = True  # a scripted runner only answers with text
    answer = client.post("/api/loops", json={"loop": loop, "items": [ITEM]})
    if answer.status_code == 201:
        return []
    assert answer.status_code == 422, answer.text
    found: list[str] = answer.json()["error"]["details"]
    return found


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    return UserRepository.make(tmp_path / "user").bare(tmp_path / "shop.git")


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({}, None),
        ({"branch": "mulligan/a/b"}, None),
        ({"deliver": {"command": "publish"}}, None),
        ({"deliver": {"command": ["sh", "-c", "id"]}}, "loop.deliver.command: only mulligan.toml"),
        ({"deliver": {"command": "nope"}}, "loop.deliver.command: no command 'nope'"),
        ({"repo": "shp"}, "loop.repo: no repository 'shp': add it to [repositories] of mulligan"),
        ({"branch": "main"}, "loop.branch: a loop that does not come from the command line may"),
        ({"branch": "mulligan"}, "loop.branch: "),
        ({"branch": "x/mulligan/a"}, "loop.branch: "),
        ({"deliver": {"fast_forward": "main"}}, "loop.deliver.fast_forward: a loop that does not"),
    ],
)
def test_a_producer_defines_no_command_and_writes_no_branch_of_others(
    settings: SettingsMaker, bare: Path, config: dict[str, Any], problem: str | None
) -> None:
    found = problems(console(settings, bare), **config)
    assert len(found) == (problem is not None), found
    assert all(each.startswith(problem or "") for each in found), found


def test_the_setting_names_other_branches(settings: SettingsMaker, bare: Path) -> None:
    """A name without a slash is one branch, not every one that ends with it."""
    client = console(settings, bare, loop_branches=["bots/*", "main"])
    (found,) = problems(client)
    assert "may not write mulligan/alpha: name a branch that loop_branches" in found
    assert "(bots/*, main)" in found
    assert len(problems(client, branch="bots/x/y")) == 1
    assert len(problems(client, branch="x/main")) == 1
    assert problems(client, branch="bots/x", deliver={"fast_forward": "main"}) == []


def test_with_inline_commands_a_loop_may_name_any(settings: SettingsMaker, bare: Path) -> None:
    client = console(settings, bare, allow_inline=True)
    assert problems(client, branch="mine", deliver={"command": ["true"]}) == []
