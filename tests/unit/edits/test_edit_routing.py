"""Which edits are applied, held for review and refused, by mode and tier."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import mulligan
from mulligan.policies.edits.edit import AutonomyMode, Edit, EditOutcome, EditRiskTier
from mulligan.tasks.ports.appliers import ApplyContext, FileChange, Validation
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.edits.applier_registry import EditApplierRegistry
from mulligan.workers.edits.execute_edits import EditContext, execute_edits

MANUAL_TIER = "manual tier, requires explicit approval"


class FakeApplier:
    """An operation that writes its name into a file, is invalid, or raises an error."""

    def __init__(self, op: str, *, reason: str = "", error: Exception | None = None) -> None:
        self.op = op
        self._reason = reason
        self._error = error

    def validate(self, edit: Edit, ctx: ApplyContext) -> Validation:
        return Validation(ok=not self._reason, reason=self._reason)

    def changes(self, edit: Edit, ctx: ApplyContext) -> list[FileChange]:
        if self._error is not None:
            raise self._error
        path = ctx.root / edit.target
        before = path.read_bytes() if path.exists() else None
        return [FileChange(path=edit.target, before=before, after=self.op.encode())]


REGISTRY = EditApplierRegistry(
    [
        FakeApplier("set_model_param"),
        FakeApplier("replace_system_prompt"),
        FakeApplier("lora_finetune"),
        FakeApplier("misfit", reason="payload.value: is required"),
        FakeApplier("broken", error=RuntimeError("the disk is on fire")),
    ]
)
TIERS = {"misfit": EditRiskTier.AUTO, "broken": EditRiskTier.AUTO, "unknown": EditRiskTier.AUTO}


@pytest.fixture
def ctx(tmp_path: Path) -> EditContext:
    root = tmp_path / "root"
    root.mkdir()
    return EditContext(root=root, home=tmp_path / "home", tiers=TIERS)


def edit(op: str, **changes: Any) -> Edit:
    return Edit(id="e1", op=op, target="out.txt", **changes)


def run(ctx: ApplyContext, mode: str, *edits: Edit) -> list[EditOutcome]:
    return execute_edits(edits=edits, ctx=ctx, autonomy_mode=AutonomyMode(mode), registry=REGISTRY)


#: mode, operation → status, reason, error. Tiers: set_model_param is auto,
#: replace_system_prompt is review, lora_finetune is manual.
TABLE: list[tuple[str, str, str, str, str | None]] = [
    # manual mode: every edit is reviewed
    ("manual", "set_model_param", "pending_review", "manual_mode", None),
    ("manual", "replace_system_prompt", "pending_review", "manual_mode", None),
    ("manual", "lora_finetune", "pending_review", "manual_mode", None),
    ("manual", "unknown", "pending_review", "manual_mode", None),
    ("manual", "misfit", "pending_review", "manual_mode", None),
    # manual tier: skipped
    ("auto", "lora_finetune", "skipped", "manual_tier", MANUAL_TIER),
    ("tiered", "lora_finetune", "skipped", "manual_tier", MANUAL_TIER),
    # review tier: pending in tiered mode, applied in auto mode
    ("tiered", "replace_system_prompt", "pending_review", "review_tier", None),
    ("auto", "replace_system_prompt", "applied", "ungated", None),
    # auto tier
    ("tiered", "set_model_param", "applied", "ungated", None),
    ("auto", "set_model_param", "applied", "ungated", None),
    # no applier
    ("auto", "unknown", "skipped", "unsupported", "op unknown not implemented in v1"),
    ("tiered", "unknown", "skipped", "unsupported", "op unknown not implemented in v1"),
    # refused by its validation or by an exception
    ("auto", "misfit", "rejected_by_gate", "validation", "payload.value: is required"),
    ("auto", "broken", "rejected_by_gate", "apply_error", "the disk is on fire"),
]


@pytest.mark.parametrize(("mode", "op", "status", "reason", "error"), TABLE)
def test_mode_and_tier_decide_what_happens_to_an_edit(
    ctx: EditContext, mode: str, op: str, status: str, reason: str, error: str | None
) -> None:
    (outcome,) = run(ctx, mode, edit(op))
    assert (outcome.edit_id, outcome.status, outcome.reason) == ("e1", status, reason)
    assert outcome.error == error
    assert (outcome.benchmark_delta, outcome.cluster_deltas) == (None, {})
    applied = status == "applied"
    assert (outcome.applied_at is not None) == applied
    assert (ctx.root / "out.txt").exists() == applied


def test_every_edit_has_an_outcome_in_its_order(ctx: EditContext) -> None:
    edits = [
        Edit(id=f"e{number}", op=op, target=f"{number}.txt")
        for number, op in enumerate(["broken", "set_model_param", "misfit", "lora_finetune"])
    ]
    outcomes = run(ctx, "auto", *edits)
    assert [o.edit_id for o in outcomes] == ["e0", "e1", "e2", "e3"]
    assert [o.status for o in outcomes] == [
        "rejected_by_gate", "applied", "rejected_by_gate", "skipped",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("configured", "requested", "status"),
    [
        (None, None, "applied"),
        (None, EditRiskTier.REVIEW, "pending_review"),  # an author may be stricter
        (EditRiskTier.REVIEW, EditRiskTier.AUTO, "pending_review"),  # and never laxer
        (EditRiskTier.MANUAL, EditRiskTier.AUTO, "skipped"),
        (EditRiskTier.REVIEW, None, "pending_review"),  # configuration overrides the table
    ],
)
def test_an_author_may_only_make_the_configured_tier_stricter(
    ctx: EditContext,
    configured: EditRiskTier | None,
    requested: EditRiskTier | None,
    status: str,
) -> None:
    tiers = {"set_model_param": configured} if configured else {}
    context = EditContext(root=ctx.root, home=ctx.home, tiers=tiers)
    (outcome,) = run(context, "tiered", edit("set_model_param", risk_tier=requested))
    assert outcome.status == status


DELETION = "--- a/f.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-one\n"
EPOCH = "1970-01-01 00:00:00 +0000"
DIFFS = {
    "changes": "--- a/f.txt\n+++ b/f.txt\n@@ -1 +1 @@\n-one\n+two\n",
    "creates": "--- /dev/null\n+++ b/g.txt\n@@ -0,0 +1 @@\n+two\n",
    "deletes": DELETION,
    "deletes in a fence": f"```diff\n{DELETION}```\n",
    "deletes with wrong counts": DELETION.replace("-1 +0,0", "-1,3 +2,9"),
    "deletes by its date": f"--- a/f.txt\t2020-01-01\n+++ b/f.txt\t{EPOCH}\n@@ -1 +0,0 @@\n-one\n",
    "renames": "diff --git a/f.txt b/g.txt\nrename from f.txt\nrename to g.txt\n",
}


@pytest.mark.parametrize("effect", DIFFS)
@pytest.mark.parametrize("target", [".", "f.txt"])
def test_a_diff_that_removes_a_file_is_reviewed_like_a_deletion(
    ctx: EditContext, effect: str, target: str
) -> None:
    (ctx.root / "f.txt").write_text("one\n")
    change = Edit(id="p", op="patch_file", target=target, payload={"diff": DIFFS[effect]})
    (outcome,) = execute_edits(edits=[change], ctx=ctx, autonomy_mode="tiered")
    if effect in ("changes", "creates"):
        assert outcome.reason != "review_tier"
    else:
        assert (outcome.status, outcome.reason) == ("pending_review", "review_tier")
        assert (ctx.root / "f.txt").read_text() == "one\n"


@pytest.mark.parametrize(("configured", "exists"), [("auto", False), ("review", True)])
def test_the_tier_of_deletions_applies_to_every_operation(
    ctx: EditContext, configured: str, exists: bool
) -> None:
    (ctx.root / "f.txt").write_text("one\n")
    tiers = {"patch_file": EditRiskTier.AUTO, "delete_file": EditRiskTier(configured)}
    context = EditContext(root=ctx.root, home=ctx.home, tiers=tiers)
    change = Edit(id="p", op="patch_file", target="f.txt", payload={"diff": DELETION})
    execute_edits(edits=[change], ctx=context, autonomy_mode="tiered")
    assert (ctx.root / "f.txt").exists() == exists


def edits_of_file(name: str) -> list[Edit]:
    """Return an edit for each way to write or remove a file."""
    diff = f"--- a/{name}\n+++ b/{name}\n@@ -1 +1 @@\n-old = 1\n+new = 1\n"
    created = f"--- /dev/null\n+++ b/{name}\n@@ -0,0 +1 @@\n+new = 1\n"
    moved = f"diff --git a/f.toml b/{name}\nrename from f.toml\nrename to {name}\n"
    ways: list[tuple[str, str, dict[str, Any]]] = [
        ("write_file", name, {"content": "new = 1\n"}),
        ("search_replace", name, {"search": "old", "replace": "new"}),
        ("patch_file", name, {"diff": diff}),
        ("patch_file", ".", {"diff": diff}),
        ("patch_file", ".", {"diff": created}),
        ("patch_file", ".", {"diff": moved}),
        ("rename_file", "f.toml", {"to": name}),
        ("rename_file", name, {"to": "g.toml"}),
        ("delete_file", name, {}),
    ]
    return [
        Edit(id=f"e{number}", op=op, target=target, payload=payload)
        for number, (op, target, payload) in enumerate(ways)
    ]


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("name", ["mulligan.toml", "deploy/Mulligan.TOML", "conf/own.toml"])
def test_no_edit_changes_the_settings_of_mulligan(
    ctx: EditContext, monkeypatch: pytest.MonkeyPatch, name: str, exists: bool
) -> None:
    monkeypatch.setenv("MULLIGAN_CONFIG", str(ctx.root / "conf/own.toml"))
    (ctx.root / "f.toml").write_text("moved = 1\n")
    (ctx.root / name).parent.mkdir(exist_ok=True)
    if exists:
        (ctx.root / name).write_text("old = 1\n")
    outcomes = execute_edits(edits=edits_of_file(name), ctx=ctx, autonomy_mode="auto")
    assert {outcome.status for outcome in outcomes} == {"rejected_by_gate"}
    assert f"{name}: edits may not change mulligan's settings" in str(outcomes[0].error)
    assert [p.read_text() for p in [ctx.root / name] if p.exists()] == ["old = 1\n"] * exists
    assert (ctx.root / "f.toml").exists()


def test_no_edit_changes_settings_behind_a_link(
    ctx: EditContext, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (ctx.root / "prod.toml").write_text("lease = 30\n")
    (tmp_path / "mulligan.toml").symlink_to(ctx.root / "prod.toml")
    monkeypatch.chdir(tmp_path)
    change = Edit(id="w", op="write_file", target="prod.toml", payload={"content": "lease = 1\n"})
    (outcome,) = execute_edits(edits=[change], ctx=ctx, autonomy_mode="auto")
    assert "prod.toml: edits may not change mulligan's settings" in str(outcome.error)


def test_an_operation_without_a_tier_is_reviewed(ctx: EditContext) -> None:
    plugged = EditApplierRegistry([FakeApplier("plugged")])
    (outcome,) = execute_edits(
        edits=[edit("plugged")], ctx=ctx, autonomy_mode="tiered", registry=plugged
    )
    assert (outcome.status, outcome.reason) == ("pending_review", "review_tier")


def test_an_edit_that_changes_nothing_is_not_applied(ctx: EditContext) -> None:
    first, again = (edit("set_model_param").model_copy(update={"id": name}) for name in "ab")
    outcomes = run(ctx, "auto", first, again)
    assert [(o.status, o.reason) for o in outcomes] == [
        ("applied", "ungated"),
        ("skipped", "no_op"),
    ]
    assert outcomes[1].applied_at is None


def test_a_duplicate_id_is_refused_before_anything_is_written(ctx: EditContext) -> None:
    with pytest.raises(BadInput, match="'e1' is used twice"):
        run(ctx, "auto", edit("set_model_param"), edit("set_model_param"))
    assert list(ctx.root.iterdir()) == []


def test_the_public_function_has_the_built_in_operations(ctx: EditContext) -> None:
    change = Edit(id="w", op="write_file", target="a.txt", payload={"content": "new\n"})
    plain = ApplyContext(root=ctx.root)
    (outcome,) = mulligan.execute_edits(edits=[change], ctx=plain, autonomy_mode=AutonomyMode.AUTO)
    assert outcome.status == "applied"
    assert (ctx.root / "a.txt").read_text() == "new\n"


@pytest.mark.parametrize(
    ("mode", "again", "status", "reason"),
    [
        ("auto", {"op": "write_file", "payload": {"content": "3"}}, "rejected_by_gate", "conflict"),
        ("auto", {"op": "write_file", "payload": {"content": "2"}}, "rejected_by_gate", "conflict"),
        ("auto", {"op": "wirte_file"}, "skipped", "unsupported"),
        ("tiered", {"op": "delete_file"}, "pending_review", "review_tier"),
        (
            "manual",
            {"op": "delete_file", "target": "../../etc/passwd"},
            "pending_review",
            "manual_mode",
        ),
    ],
)
def test_an_edit_id_of_an_earlier_run_bypasses_no_check(
    ctx: EditContext, mode: str, again: dict[str, Any], status: str, reason: str
) -> None:
    named = EditContext(root=ctx.root, home=ctx.home, session="tune")
    first = {"id": "e1", "op": "write_file", "target": "a.txt", "payload": {"content": "2"}}
    (done,) = mulligan.execute_edits(
        edits=[Edit.model_validate(first)], ctx=named, autonomy_mode="auto"
    )
    assert done.status == "applied"
    (outcome,) = mulligan.execute_edits(
        edits=[Edit.model_validate({**first, "payload": {}, **again})],
        ctx=named,
        autonomy_mode=mode,
    )
    assert (outcome.status, outcome.reason) == (status, reason)
    if reason == "conflict":
        assert "an earlier session named tune applied an edit e1" in str(outcome.error)
    assert (ctx.root / "a.txt").read_text() == "2"


def test_an_empty_plan_has_no_outcomes(ctx: EditContext) -> None:
    assert run(ctx, "auto") == []
