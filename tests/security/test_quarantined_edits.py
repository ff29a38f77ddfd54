"""An edit that kills its processes is held for a person, and the others go on."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import redis
from support.file_trees import die, in_child, snapshot, write_files
from support.ledger_scenario import SettingsMaker

from mulligan.policies.edits.edit import AutonomyMode, Edit, EditPlan, EditRiskTier
from mulligan.policies.edits.session import EditSession
from mulligan.policies.escalations.alerts import AlertLinks, alert_body
from mulligan.tasks.ports.appliers import ApplyContext, FileChange, Validation
from mulligan.workers.alerts.deliveries import WebhookDeliveries
from mulligan.workers.edits.applier_registry import EditApplierRegistry
from mulligan.workers.edits.sessions.engine import EditEngine, take_steps
from mulligan.workers.edits.sessions.session_store import session_store
from mulligan.workers.edits.sessions.started_steps import end_all_steps
from mulligan.workers.edits.tree.edited_tree import EditedTree
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.settings.alert_settings import WebhookSettings

KILLED = -signal.SIGKILL
BEFORE = {"a.txt": b"old\n"}


@dataclass(frozen=True)
class Put:
    """Writes a text into its target. Texts can also kill the process, or end it in other ways."""

    op: ClassVar[str] = "put"

    def validate(self, edit: Edit, ctx: ApplyContext) -> Validation:
        return Validation(ok=True)

    def changes(self, edit: Edit, ctx: ApplyContext) -> list[FileChange]:
        match edit.payload["text"]:
            case "crash":
                die()
            case "interrupted":
                raise KeyboardInterrupt
            case "cold shutdown":
                end_all_steps()
                die()
        place = ctx.root / edit.target
        before = place.read_bytes() if place.exists() else None
        return [
            FileChange(path=edit.target, before=before, after=str(edit.payload["text"]).encode())
        ]


@dataclass(frozen=True)
class Fleet:
    ledger: RedisLedger
    home: Path

    def engine(self) -> EditEngine:
        return EditEngine(
            sessions=session_store(self.ledger.settings, self.ledger),
            home=self.home,
            appliers=EditApplierRegistry([Put()]),
            tiers={"put": EditRiskTier.AUTO},
        )

    def begin(self, root: Path, name: str, **texts: str) -> EditSession:
        """Create a queued session whose edits put these texts into files of the same name."""
        write_files(root, BEFORE)
        edits = [
            {"id": key, "op": "put", "target": f"{key}.txt", "payload": {"text": text}}
            for key, text in texts.items()
        ]
        body = {"session": name, "benchmark": {"policy": "allow"}, "edits": edits}
        plan = EditPlan.model_validate(body)
        return self.engine().begin(plan, root, AutonomyMode.AUTO, suite=None, inline=False)

    def work(self, name: str) -> int:
        """Let a process work on a session. Return its exit status."""
        # The lease of a process that died would last for half a minute.
        self.ledger.calls.run("HDEL", f"mulligan:{{fleet}}:edits:session:{name}", "lease")
        return in_child(lambda: take_steps(self.engine(), name))

    def outcomes(self, name: str) -> dict[str, tuple[str, str]]:
        session = self.engine().sessions.get(name).session
        return {done.edit_id: (done.status, done.reason) for done in session.outcomes}


@pytest.fixture
def fleet(redis_client: redis.Redis, settings: SettingsMaker, tmp_path: Path) -> Fleet:
    chosen = settings()
    return Fleet(RedisLedger(redis_client, chosen, patience=5.0), tmp_path / "home")


def test_an_edit_that_kills_its_process_twice_is_quarantined(fleet: Fleet, tmp_path: Path) -> None:
    root = tmp_path / "tree"
    fleet.begin(root, "s", good="1\n", bad="crash", later="2\n")
    assert [fleet.work("s"), fleet.work("s")] == [KILLED, KILLED]
    assert fleet.work("s") == 0
    assert fleet.outcomes("s") == {
        "good": ("applied", "ungated"),
        "bad": ("pending_review", "quarantined"),
        "later": ("applied", "ungated"),
    }
    session = fleet.engine().sessions.get("s").session
    assert session.phase == "done"
    assert "2 processes in a row were killed or crashed at it" in str(session.outcomes[1].error)
    files = {path.name: path.read_bytes() for path in root.iterdir()}
    assert files == {**BEFORE, "good.txt": b"1\n", "later.txt": b"2\n"}


def test_a_quarantine_is_alerted_like_an_escalation(fleet: Fleet, tmp_path: Path) -> None:
    fleet.begin(tmp_path / "tree", "s", bad="crash")
    for _ in range(3):
        fleet.work("s")
    deliveries = WebhookDeliveries(fleet.ledger)
    hook = WebhookSettings(url="https://hooks.example/x")
    assert deliveries.write_due([hook], window=900.0).written == 1
    assert deliveries.write_due([hook], window=900.0).written == 0
    (delivery,) = deliveries.all()
    body = alert_body(delivery.alert, AlertLinks(console="https://console.example"))
    assert body["event"] == "escalated"
    assert body["text"] == "edit s/bad is quarantined: its processes died"
    assert body["console_url"] == "https://console.example/edits/s/bad"
    json.dumps(body)


def test_an_approved_edit_is_tried_again_and_quarantined_again(
    fleet: Fleet, tmp_path: Path
) -> None:
    fleet.begin(tmp_path / "tree", "s", bad="crash")
    for _ in range(2):
        assert [fleet.work("s") for _ in range(3)] == [KILLED, KILLED, 0]
        assert fleet.outcomes("s") == {"bad": ("pending_review", "quarantined")}
        fleet.engine().approve("s", "bad", by="ada", note=None)


def test_an_edit_in_the_tree_is_rolled_back_when_it_is_quarantined(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "tree"
    fleet.begin(root, "s", a="new\n")
    real = EditedTree.apply

    def apply_and_crash(*arguments: object, **named: object) -> None:
        real(*arguments, **named)  # type: ignore[arg-type]
        die()

    before = snapshot(root)
    with monkeypatch.context() as patch:
        patch.setattr(EditedTree, "apply", apply_and_crash)
        assert fleet.work("s") == KILLED
    assert (root / "a.txt").read_bytes() == b"new\n"
    # The next process finds the edit in the tree, and dies as well.
    with monkeypatch.context() as patch:
        patch.setattr(EditedTree, "history", lambda _: die())
        assert fleet.work("s") == KILLED
    assert fleet.work("s") == 0
    assert fleet.outcomes("s") == {"a": ("pending_review", "quarantined")}
    assert snapshot(root) == before


@pytest.mark.parametrize("text", ["interrupted", "cold shutdown"])
def test_a_process_that_is_stopped_does_not_count(fleet: Fleet, tmp_path: Path, text: str) -> None:
    fleet.begin(tmp_path / "tree", "s", a=text)
    for _ in range(4):
        assert fleet.work("s") != 0
    assert fleet.outcomes("s") == {}


def test_deaths_at_different_sessions_and_edits_do_not_add_up(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("s", "t"):
        fleet.begin(tmp_path / name, name, a="1\n", b="2\n")

    def work_and_die(name: str, target: str) -> None:
        real: Callable[..., list[FileChange]] = Put.changes

        def changes(self: Put, edit: Edit, ctx: ApplyContext) -> list[FileChange]:
            if edit.target == target:
                die()
            return real(self, edit, ctx)

        with monkeypatch.context() as patch:
            patch.setattr(Put, "changes", changes)
            assert fleet.work(name) == KILLED

    for name in ("s", "t"):
        work_and_die(name, "a.txt")
        work_and_die(name, "b.txt")
    for name in ("s", "t"):
        assert fleet.work(name) == 0
        assert fleet.outcomes(name) == dict.fromkeys("ab", ("applied", "ungated"))
