"""Files that run by themselves wait for a person, whatever the operation and the spelling."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from mulligan.policies.edits.edit import Edit, EditOutcome, EditRiskTier, tier_of
from mulligan.tasks.ports.appliers import ApplyContext, FileChange, Validation
from mulligan.workers.edits.applier_registry import EditApplierRegistry, default_registry
from mulligan.workers.edits.execute_edits import EditContext, execute_edits

RUN_BY_THEMSELVES = [
    ".github/workflows/test.yml",
    "lib/.github/actions/a/action.yml",
    ".gitlab-ci.yml",
    ".circleci/config.yml",
    "Jenkinsfile",
    "azure-pipelines.yml",
    ".pre-commit-config.yaml",
    "conftest.py",
    "tests/deep/conftest.py",
    "sitecustomize.py",
    "usercustomize.py",
    "site/evil.pth",
    "setup.py",
    "setup.cfg",
    "pyproject.toml",
    "noxfile.py",
    "tox.ini",
    "pytest.ini",
    "Makefile",
    "GNUmakefile",
    "sub/rules.mk",
    "justfile",
    "package.json",
    "vite.config.ts",
    "Dockerfile",
    "Dockerfile.dev",
    "docker-compose.override.yml",
    "compose.yaml",
    ".envrc",
    ".bashrc",
    ".vscode/tasks.json",
    ".devcontainer/devcontainer.json",
    ".claude/settings.json",
    ".gitattributes",
    "docs/.gitattributes",
    ".gitmodules",
    ".gitconfig",
    ".husky/pre-push",
    ".githooks/anything",
    "hooks/post-checkout",
    ".devcontainer.json",
    ".gitpod.yml",
    ".semaphore/semaphore.yml",
    ".build.yml",
    ".zuul.yaml",
    "pylintrc",
    ".mypy.ini",
    ".coveragerc",
    ".rspec",
    ".eslintrc.json",
    ".prettierrc",
    "deno.jsonc",
    ".yarn/releases/yarn.cjs",
    ".pnp.cjs",
    "Cargo.toml",
    "rust-toolchain.toml",
    "composer.json",
    ".config/mise/config.toml",
    "infra/main.tf",
    "renovate.json5",
    "Snakefile",
    "tasks.py",
    "pytest.py",
    ".aider.conf.yml",
    ".clinerules/rules.md",
    ".run/app.run.xml",
    # other spellings
    ".github\\workflows\\x.yml",
    "makef\u0131le",
    "MAKEFILE",
    "./conftest.py",
    "tests//Conftest.PY",
    "Makefile.",
    "ＭＡＫＥＦＩＬＥ",
    "make\u200bfile",
    ".GitHub/workflows/x.yml",
]
ORDINARY = [
    "app/main.py",
    "README.md",
    "tests/test_config.py",
    "agents.toml",
    "src/hooks/use_state.ts",
    "config.json",
    "prompts/makefile.md/x.md",
    "github/workflows.py",
]


def edits_of(name: str) -> list[Edit]:
    """Return an edit for each way to write, move or remove a file."""
    changed = f"--- a/{name}\n+++ b/{name}\n@@ -1 +1 @@\n-old\n+new\n"
    created = f"--- /dev/null\n+++ b/{name}\n@@ -0,0 +1 @@\n+new\n"
    moved = f"diff --git a/f.txt b/{name}\nrename from f.txt\nrename to {name}\n"
    copied = f"diff --git a/f.txt b/{name}\ncopy from f.txt\ncopy to {name}\n"
    ways: list[tuple[str, str, dict[str, Any]]] = [
        ("write_file", name, {"content": "new\n"}),
        ("search_replace", name, {"search": "old", "replace": "new"}),
        ("edit_python", name, {"symbol": "f", "code": "def f(): pass"}),
        ("run_formatter", name, {}),
        ("patch_file", name, {"diff": changed}),
        ("patch_file", ".", {"diff": changed}),
        ("patch_file", ".", {"diff": created}),
        ("patch_file", ".", {"diff": moved}),
        ("patch_file", ".", {"diff": copied}),
        ("rename_file", "f.txt", {"to": name}),
        ("rename_file", name, {"to": "g.txt"}),
        ("delete_file", name, {}),
    ]
    return [
        Edit(id=f"e{number}", op=op, target=target, payload=payload, risk_tier=EditRiskTier.AUTO)
        for number, (op, target, payload) in enumerate(ways)
    ]


@pytest.mark.parametrize("name", RUN_BY_THEMSELVES)
def test_every_way_to_touch_a_file_that_runs_by_itself_is_reviewed(name: str) -> None:
    assert {tier_of(edit) for edit in edits_of(name)} == {EditRiskTier.REVIEW}


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_files_keep_the_tiers_of_the_operations(name: str) -> None:
    write, *_ = edits_of(name)
    assert tier_of(write) is EditRiskTier.AUTO


def test_the_operator_alone_may_lower_or_raise_the_tier() -> None:
    write, *_ = edits_of("Makefile")
    assert tier_of(write, {"write_file": EditRiskTier.AUTO}) is EditRiskTier.REVIEW
    assert tier_of(write, {"self_running_file": EditRiskTier.AUTO}) is EditRiskTier.AUTO
    assert tier_of(write, {"self_running_file": EditRiskTier.MANUAL}) is EditRiskTier.MANUAL


@dataclass(frozen=True)
class WriteElsewhere:
    """An operation whose edits do not name the file that it writes."""

    op: ClassVar[str] = "elsewhere"

    def validate(self, edit: Edit, ctx: ApplyContext) -> Validation:
        return Validation(ok=True)

    def changes(self, edit: Edit, ctx: ApplyContext) -> list[FileChange]:
        return [FileChange(path=str(edit.payload["path"]), before=None, after=b"new\n")]


def applied(tmp_path: Path, edit: Edit, mode: str = "tiered", **tiers: EditRiskTier) -> EditOutcome:
    root = tmp_path / "tree"
    root.mkdir(exist_ok=True)
    registry: EditApplierRegistry = default_registry()
    registry.register(WriteElsewhere())
    context = EditContext(
        root=root, home=tmp_path / "home", tiers={"elsewhere": EditRiskTier.AUTO, **tiers}
    )
    (outcome,) = execute_edits(edits=[edit], ctx=context, autonomy_mode=mode, registry=registry)
    return outcome


def elsewhere(path: str) -> Edit:
    return Edit(id="e", op="elsewhere", target="x", payload={"path": path})


def test_what_an_operation_really_changes_counts_too(tmp_path: Path) -> None:
    outcome = applied(tmp_path, elsewhere(".github/workflows/x.yml"))
    assert (outcome.status, outcome.reason) == ("pending_review", "review_tier")
    assert list((tmp_path / "tree").iterdir()) == []
    assert applied(tmp_path, elsewhere("plain.txt")).status == "applied"
    lowered = applied(tmp_path, elsewhere("Makefile"), self_running_file=EditRiskTier.AUTO)
    assert lowered.status == "applied"


def test_a_reviewed_workflow_is_not_written_before_its_approval(tmp_path: Path) -> None:
    edit = Edit(
        id="e", op="write_file", target=".github/workflows/x.yml", payload={"content": "on: push\n"}
    )
    outcome = applied(tmp_path, edit)
    assert (outcome.status, outcome.reason) == ("pending_review", "review_tier")
    assert list((tmp_path / "tree").iterdir()) == []
    assert applied(tmp_path, edit, mode="auto").status == "applied"
