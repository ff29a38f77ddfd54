"""The repository of a loop file: what is wrong with it is said at its line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.git_repositories import UserRepository

from mulligan.console.jobfiles.job_file import with_absolute_git
from mulligan.console.loopfiles.inspect_loop import loop_rules
from mulligan.console.loopfiles.loop_file import lint_loop
from mulligan.console.loopfiles.repository_rules import local_repository_problems
from mulligan.workers.settings.model import load_settings

ITEM: dict[str, Any] = {"id": "A", "prompt": "p", "verifiers": ["json.object"]}
AGENT = {"kind": "command", "argv": ["sh"]}
TEXT = {"kind": "scripted", "answers": ["x"]}


def lint(folder: Path, *items: dict[str, Any], **config: Any) -> list[str]:
    loop = {"name": "a", "runner": TEXT if config.get("edits") else AGENT, **config}
    path = folder / "loop.yaml"
    path.write_text(json.dumps({"loop": loop, "items": list(items) or [ITEM]}))
    settings = load_settings(
        allow_inline=True,
        repositories={"shop": "/nowhere/shop"},
        commands={"publish": {"argv": ["true"]}},
    )
    rules = loop_rules(settings, repository=lambda loop: local_repository_problems(settings, loop))
    _, found = lint_loop(str(path), parameters={}, environment={}, rules=rules)
    return [str(each).removeprefix(f"{path}:1: ") for each in found]


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"repo": "user"}, None),
        ({"repo": "./user"}, None),
        ({"repo": "https://git.example/shop.git"}, None),
        ({"repo": "uesr"}, "loop.repo: there is no directory 'uesr' beside this file, and no"),
        ({"repo": "shp"}, "mulligan.toml; did you mean 'shop'?"),
        ({"repo": "shop"}, "loop.repo: there is no directory /nowhere/shop"),
        ({"repo": "./missing"}, "loop.repo: there is no directory "),
        ({"repo": "plain"}, "is not a git repository: run `git init` there, or name another"),
        ({"repo": "ext::sh -c x"}, "loop.repo: ext::sh -c x: only https, http, ssh"),
        ({"repo": "user", "branch": "main"}, "loop.branch: main is checked out in "),
        ({"repo": "user", "base": "x"}, "has no branch, tag or commit 'x'"),
        ({"repo": "user", "sync": "x"}, "loop.sync: "),
        ({"repo": "empty"}, "empty has no commits: make a first commit, or name its branch"),
        (
            {"repo": "user", "deliver": "main"},
            "loop.deliver: 'main' is none of branch, {fast_forward: BRANCH} and {command: NAME}",
        ),
        ({"repo": "user", "branch": "a..b"}, "loop.branch: 'a..b' is not the name of a branch"),
        ({"repo": 1, "base": "main"}, "loop.repo: must be a string"),
        ({"base": "main"}, "loop.base: belongs to repo"),
        ({"repo": "user", "workspace": {"path": "."}}, "loop.workspace: give either repo or"),
        ({"repo": "user", "runner": TEXT}, "loop.runner: scripted only answers with text, which"),
        ({"repo": "user", "runner": AGENT, "edits": True}, "is no plan: leave out `edits`"),
        (
            {"repo": "user", "setup": {"run": ["install"]}},
            "loop.setup.run[0]: no command 'install'",
        ),
        (
            {"repo": "user", "deliver": {"command": "publsh"}},
            "loop.deliver.command: no command 'publsh'; did you mean 'publish'?",
        ),
        ({"repo": "user", "deliver": {"command": "publish"}}, None),
        (
            {"repo": "user", "base": "refs/mulligan/fence/x"},
            "loop.base: refs/mulligan/fence/x is a reference of mulligan: name a branch",
        ),
        ({"repo": "user", "sync": "refs/mulligan/fence/x"}, "loop.sync: refs/mulligan/fence/x is"),
        (
            {"workspace": {"git": "user", "branch": "mulligan/a"}},
            "loop.workspace.branch: only a loop with a repo has a branch: use ref",
        ),
        (
            {"workspace": {"git": "user", "commit": "0" * 40}},
            "loop.workspace.commit: is found when the work is submitted: use ref",
        ),
        (
            {"workspace": {"git": "user", "ref": "refs/mulligan/fence/x"}},
            "loop.workspace.ref: refs/mulligan/fence/x is a reference of mulligan",
        ),
        ({"repo": "user", "branch": "mine", "deliver": {"command": ["true"]}}, None),
    ],
)
def test_the_repository_of_a_loop_is_checked(
    tmp_path: Path, config: dict[str, Any], problem: str | None
) -> None:
    user = UserRepository.make(tmp_path / "user")
    user.git("update-ref", "refs/mulligan/fence/x", "main")
    (tmp_path / "plain").mkdir()
    UserRepository.make(tmp_path / "empty", {})
    found = lint(tmp_path, **config)
    if problem is None:
        assert found == []
    else:
        assert len(found) == 1
        assert problem in found[0]


def test_an_item_with_guards_alone_is_refused(tmp_path: Path) -> None:
    """Nothing would fail before the work, and nothing would show that it is done."""
    UserRepository.make(tmp_path / "user")
    guards = {**ITEM, "verifiers": [{"id": "json.object", "role": "guard"}]}
    assert lint(tmp_path, guards) == [], "it is a check like others without a repository"
    assert lint(tmp_path, ITEM, {**guards, "id": "B"}, repo="user") == [
        "items[1].verifiers: every verifier is a guard, so none shows that the work is done: add"
        " one that fails before the work, without role: guard"
    ]


def test_the_path_of_a_repository_is_stored_as_it_is(tmp_path: Path) -> None:
    """Given a folder that is a link, whose parent is elsewhere."""
    (tmp_path / "loops" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "loops" / "deep")
    for repo, path in (("../shop", tmp_path / "loops" / "shop"), ("/a/shop", Path("/a/shop"))):
        found = with_absolute_git({"repo": repo}, "repo", tmp_path / "link")
        assert found == {"repo": str(path)}


def test_an_item_may_not_have_what_its_loop_adds(tmp_path: Path) -> None:
    UserRepository.make(tmp_path / "user")
    ours = {**ITEM, "verifiers": ["json.object", {"id": "git.merge", "acceptance": []}, "git.diff"]}
    added = "by itself: leave it out"
    assert lint(tmp_path, ours, repo="user") == [
        f"items[0].verifiers[1].id: a loop with a repo adds git.merge {added}",
        f"items[0].verifiers[2].id: a loop with a repo adds git.diff {added}",
    ]
    space = {"git": "user", "branch": "mulligan/x", "commit": "0" * 40}
    assert lint(tmp_path, {**ITEM, "workspace": space}) == [
        "items[0].workspace.branch: only a loop with a repo has a branch: use ref",
        "items[0].workspace.commit: is found when the work is submitted: use ref",
    ]


def test_the_problems_of_items_are_at_their_own_verifiers(tmp_path: Path) -> None:
    """A loop with a repository adds verifiers before and after those of an item."""
    UserRepository.make(tmp_path / "user")
    wrong = {**ITEM, "verifiers": ["json.object", "json.objct"]}
    own = {**ITEM, "id": "B", "workspace": {"path": "."}}
    for edits in (False, True):
        found = lint(tmp_path, wrong, own, repo="user", edits=edits)
        assert found == [
            "items[0].verifiers[1].id: unknown verifier 'json.objct'; did you mean 'json.object'?",
            "items[1].workspace: the items of a loop with a repository have no workspace of their"
            " own",
        ]
