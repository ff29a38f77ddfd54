"""Sessions on a real tree and a real Redis: who may work, what a kill leaves, the edit queue."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from support.fleet import CONTROL, WORK, running_fleet
from support.ledger_scenario import SettingsMaker
from support.waiting import wait_for

from mulligan.policies.edits.edit import AutonomyMode, EditPlan, EditRiskTier
from mulligan.policies.edits.session import EditSession
from mulligan.policies.edits.suite import Suite
from mulligan.tasks.edits.advance import RetryLater, advance
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.celery.queues import Pool
from mulligan.workers.edits.sessions.engine import EditEngine, build_edit_engine, take_steps
from mulligan.workers.edits.sessions.session_store import (
    SessionLease,
    SessionStore,
    StoredSession,
    hints,
)
from mulligan.workers.edits.tree.edited_tree import EditedTree
from mulligan.workers.ledger.redis_ledger import RedisLedger

SCORE = textwrap.dedent(
    """
    import json, pathlib
    text = pathlib.Path("a.txt").read_text().strip()
    main = {"start": 0.5, "good": 0.7, "unfair": 0.9}.get(text, 0.0)
    print(json.dumps({"scores": {"main": main, "rest": 0.2 if text == "unfair" else 0.5}}))
    """
)
SUITE = Suite.model_validate(
    {"deterministic": True, "tasks": [{"id": "all", "command": [sys.executable, "score.py"]}]}
)
Maker = Callable[..., EditEngine]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    (root / "a.txt").write_text("start\n")
    (root / "score.py").write_text(SCORE)
    return root


@pytest.fixture
def engine(redis_client: redis.Redis, settings: SettingsMaker) -> Maker:
    """``engine()``: what one process would have."""

    def make(**changes: Any) -> EditEngine:
        chosen = settings()
        ledger = RedisLedger(redis_client, chosen, patience=5.0)
        made = build_edit_engine(chosen, ledger, None, commands=True)
        lease = changes.pop("lease", 30.0)
        sessions = SessionStore(ledger.calls, prefix="mulligan", retention=60, lease=lease)
        return EditEngine(
            **{"sessions": sessions, "home": made.home, "measurer": made.measurer, **changes}
        )

    return make


def plan(*texts: str, session: str = "s1", **changes: Any) -> EditPlan:
    """Edits e1, e2… that write these texts into a.txt."""
    edits = [
        {"id": f"e{n}", "op": "write_file", "target": "a.txt", "payload": {"content": f"{text}\n"}}
        for n, text in enumerate(texts, 1)
    ]
    return EditPlan.model_validate({"session": session, "edits": edits, **changes})


def begin(engine: EditEngine, root: Path, wanted: EditPlan, **changes: Any) -> EditSession:
    more: dict[str, Any] = {"suite": SUITE, **changes}
    mode = AutonomyMode(more.pop("mode", "auto"))
    return engine.begin(wanted, root, mode, **more)


def said(session: EditSession) -> list[tuple[str, str]]:
    return [(outcome.status, outcome.reason) for outcome in session.outcomes]


def drive(engine: EditEngine, session: EditSession) -> EditSession:
    return engine.drive(session.id)


# -- a session on a tree ---------------------------------------------------------------------------


def test_kept_rejected_and_skipped_on_a_real_tree(engine: Maker, root: Path) -> None:
    backend = engine()
    session = begin(backend, root, plan("good", "unfair", "good"))
    done = drive(backend, session)
    assert said(done) == [
        ("applied", "kept"),
        ("rejected_by_gate", "regression"),
        ("skipped", "no_op"),
    ]
    assert (root / "a.txt").read_bytes() == b"good\n"
    assert done.outcomes[0].cluster_deltas == {"main": 0.2, "rest": 0.0}
    assert sorted(path.name for path in root.iterdir()) == ["a.txt", "score.py"]
    # The history has both effects, the newest first.
    effects = [(delta.edit_id, delta.reason) for delta in backend.sessions.deltas()]
    assert effects == [("e2", "regression"), ("e1", "kept")]
    _, text = backend.roll_back("s1", None, by="ada")
    assert "rolled back, 1 file changed" in text
    assert (root / "a.txt").read_bytes() == b"start\n"
    effects = [(delta.edit_id, delta.reason) for delta in backend.sessions.deltas()]
    assert effects == [("e2", "regression"), ("e1", "rolled_back")]


def test_the_history_has_what_people_decided(engine: Maker, root: Path) -> None:
    backend = engine()
    drive(backend, begin(backend, root, plan("good", "unfair"), mode="manual"))
    backend.reject("s1", "e2", by="ada", note="no")
    backend.roll_back("s1", None, by="ada")
    effects = {
        delta.edit_id: (delta.status, delta.benchmark_delta) for delta in backend.sessions.deltas()
    }
    assert effects == {"e1": ("rejected_by_user", 0.1), "e2": ("rejected_by_user", 0.05)}


def test_approving_much_later_measures_against_the_tree_as_it_is_then(
    engine: Maker, root: Path
) -> None:
    backend = engine()
    drive(backend, begin(backend, root, plan("good"), mode="manual"))
    (root / "score.py").write_text(SCORE.replace('"start": 0.5', '"start": 0.8'))
    backend.approve("s1", "e1", by="ada", note=None)
    done = drive(backend, backend.sessions.get("s1").session)
    assert said(done) == [("rejected_by_gate", "regression")], "0.8 before, 0.7 after"
    assert (root / "a.txt").read_text() == "start\n"


def test_a_suite_that_cannot_be_run_is_refused_before_anything_is_done(
    engine: Maker, root: Path
) -> None:
    suite = Suite.model_validate({"tasks": [{"id": "x", "command": ["no-such-program-here"]}]})
    with pytest.raises(BadInput, match=r"suite\.tasks\[0\]\.command"):
        begin(engine(), root, plan("good"), suite=suite)
    assert engine().sessions.find("s1") is None


def test_the_same_plan_again_is_the_same_session_and_another_is_refused(
    engine: Maker, root: Path
) -> None:
    backend = engine()
    drive(backend, begin(backend, root, plan("good")))
    again = begin(backend, root, plan("good"))
    assert said(again) == [("applied", "kept")]
    with pytest.raises(BadInput, match="the name of an earlier session"):
        begin(backend, root, plan("unfair"))


def test_the_name_of_a_session_that_the_ledger_forgot_is_no_pass(
    engine: Maker, root: Path, redis_client: redis.Redis
) -> None:
    backend = engine()
    drive(backend, begin(backend, root, plan("good")))
    redis_client.delete("mulligan:{fleet}:edits:session:s1")
    done = drive(backend, begin(backend, root, plan("unfair")))
    assert said(done) == [("rejected_by_gate", "conflict")]
    assert "this name was used before" in str(done.outcomes[0].error)
    assert (root / "a.txt").read_text() == "good\n"


# -- processes that die ----------------------------------------------------------------------------


class Died(BaseException):
    """As if the process had been killed."""


def test_an_edit_that_nothing_measures_is_known_again_after_a_kill(
    engine: Maker, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in the tree, and that was not saved: its beginning was."""
    backend = engine()
    session = begin(backend, root, plan("good", benchmark={"policy": "allow"}), suite=None)
    real = SessionStore.save

    def dying(self: SessionStore, found: StoredSession, moved: EditSession) -> StoredSession | None:
        if moved.outcomes:
            raise Died
        return real(self, found, moved)

    monkeypatch.setattr(SessionStore, "save", dying)
    with pytest.raises(Died):
        drive(backend, session)
    monkeypatch.undo()
    assert (root / "a.txt").read_text() == "good\n"
    assert said(drive(engine(), session)) == [("applied", "ungated")]
    assert len(EditedTree(root, backend.home).history()) == 1


@pytest.mark.parametrize("step", range(1, 6))
@pytest.mark.parametrize("text", ["good", "unfair"])
def test_a_step_that_was_taken_but_not_saved_does_nothing_twice(
    engine: Maker, root: Path, step: int, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = engine()
    session = begin(backend, root, plan(text))
    saves = iter(range(1, 100))
    real = SessionStore.save

    def dying(self: SessionStore, found: StoredSession, moved: EditSession) -> StoredSession | None:
        if next(saves) == step:
            raise Died
        return real(self, found, moved)

    monkeypatch.setattr(SessionStore, "save", dying)
    with pytest.raises(Died):
        drive(backend, session)
    monkeypatch.undo()
    done = drive(engine(), session)
    kept = text == "good"
    wanted = ("applied", "kept") if kept else ("rejected_by_gate", "regression")
    assert said(done) == [wanted]
    assert (root / "a.txt").read_text() == ("good\n" if kept else "start\n")
    points = EditedTree(root, backend.home).history()
    assert [point.kind for point in points] == (["edit"] if kept else ["edit", "rollback"])
    assert len(backend.sessions.deltas()) == 1


def test_who_lost_the_lease_writes_nothing(
    engine: Maker, root: Path, redis_client: redis.Redis
) -> None:
    backend = engine()
    session = begin(backend, root, plan("good", benchmark={"policy": "allow"}), suite=None)
    with backend.sessions.leased(session.id) as lease:
        redis_client.hset("mulligan:{fleet}:edits:session:s1", "lease", "other 99999999999999")
        context = backend._bench(session, lease, None)
        begun = advance(context, session)
        with pytest.raises(RetryLater, match="taken over by another process"):
            advance(context, begun)
    assert (root / "a.txt").read_text() == "start\n"
    assert EditedTree(root, backend.home).history() == []


def test_a_lease_is_one_process_s_until_it_expires(engine: Maker, root: Path) -> None:
    backend = engine()
    begin(backend, root, plan("good"))
    first = SessionLease(backend.sessions, "s1", "one", 0.05)
    second = SessionLease(backend.sessions, "s1", "two", 30)
    assert first.step("take")
    assert first.step("take"), "asking twice is one"
    wait_for(lambda: second.step("take"), "the lease to expire")
    assert not first.step("renew")
    assert not first.step("release"), "it is another's"
    assert backend.sessions.is_leased("s1")
    with pytest.raises(RetryLater, match="another process"):
        backend.work("s1")
    assert first.step("take", force=True)
    assert first.step("release")
    assert not backend.sessions.is_leased("s1")


@pytest.mark.parametrize("phase", ["ready", "baseline", "measuring"])
@pytest.mark.parametrize("edit_id", [None, "e1"])
def test_a_session_that_was_killed_can_be_given_up_in_every_phase(
    engine: Maker, root: Path, phase: str, edit_id: str | None
) -> None:
    backend = engine()
    begin(backend, root, plan("good"))
    advance_until(backend, "s1", phase)
    if phase == "ready" and edit_id is not None:
        with pytest.raises(BadInput, match="has not applied an edit 'e1'"):
            backend.roll_back("s1", edit_id, by="ada")
        return
    done, text = engine().roll_back("s1", edit_id, by="ada")
    assert ("rolled back" if phase == "measuring" else "applied") in text
    assert done.outcomes[0].status == ("rejected_by_user" if phase == "ready" else "rolled_back")
    assert (root / "a.txt").read_text() == "start\n"
    assert drive(engine(), done).phase == "done"


# -- two at once -----------------------------------------------------------------------------------


def test_the_second_session_on_a_tree_is_told_who_has_it(engine: Maker, root: Path) -> None:
    backend = engine()
    first = begin(backend, root, plan("good"))
    begin(backend, root, plan("unfair", session="s2"))
    assert backend.sessions.take_tree(first) is None
    with pytest.raises(RetryLater, match="session s1 is at work on it"):
        backend.work("s2")
    drive(backend, first)
    done = drive(backend, backend.sessions.get("s2").session)
    assert said(done) == [("rejected_by_gate", "regression")], "measured against s1's result"


def test_a_tree_that_another_process_holds_is_refused_with_its_holder(
    engine: Maker, root: Path
) -> None:
    backend = engine(patience=0.1)
    session = begin(backend, root, plan("good"))
    with (
        EditedTree(root, backend.home).held("somebody"),
        pytest.raises(RetryLater, match="session somebody"),
    ):
        drive(backend, session)


def test_a_decision_during_a_step_is_not_lost(engine: Maker, root: Path) -> None:
    """e1 waits for review while e2 is measured; who rejects it meanwhile is heard."""
    backend = engine()
    wanted = plan("good", "good")
    held = wanted.edits[0].model_copy(update={"risk_tier": EditRiskTier.REVIEW})
    session = begin(
        backend, root, wanted.model_copy(update={"edits": (held, wanted.edits[1])}), mode="tiered"
    )
    told: list[str] = []

    def meanwhile(moved: EditSession) -> None:
        if moved.phase == "measuring" and moved.at == 1 and not told:
            told.append(backend.reject("s1", "e1", by="ada", note="no").phase)

    done = backend.drive(session.id, on_progress=meanwhile)
    assert told == ["measuring"]
    assert said(done) == [("rejected_by_user", "rejected"), ("applied", "kept")]


# -- the record ------------------------------------------------------------------------------------


def test_what_is_finished_goes_and_what_waits_stays(
    engine: Maker, root: Path, redis_client: redis.Redis
) -> None:
    backend = engine()
    drive(backend, begin(backend, root, plan("good")))
    drive(backend, begin(backend, root, plan("unfair", session="s2"), mode="manual"))
    name = "mulligan:{fleet}:edits:session:"
    assert 0 < int(str(redis_client.ttl(f"{name}s1"))) <= 60
    assert redis_client.ttl(f"{name}s2") == -1, "somebody has to look at it"
    assert [session.id for session in backend.sessions.recent()] == ["s2", "s1"]
    assert backend.sessions.at_work() == []
    backend.reject("s2", "e1", by="ada", note="no")
    assert int(str(redis_client.ttl(f"{name}s2"))) > 0


def test_hints_are_for_sessions_of_the_queue_that_nobody_works_on(
    engine: Maker, root: Path
) -> None:
    backend = engine()
    begin(backend, root, plan("good"), inline=False)
    begin(backend, root, plan("good", session="s2"), inline=True)

    def hinted() -> list[str]:
        return [session.id for session in hints(backend.sessions, lambda _: True)]

    assert hinted() == ["s1"]
    with backend.sessions.leased("s1"):
        assert hinted() == []
    assert take_steps(backend, "s1") in ("measuring", "done")


def test_a_root_that_is_away_is_waited_for(engine: Maker, root: Path) -> None:
    """e1 is in the tree and being measured: nobody can take it back, so nobody gives up."""
    backend = engine()
    begin(backend, root, plan("good", "unfair"), inline=False)
    first = advance_until(backend, "s1", "measuring")
    root.rename(root.parent / "away")
    assert take_steps(backend, "s1") == "not now"
    assert backend.sessions.get("s1").session == first
    with pytest.raises(BadInput, match="is not a folder"):
        backend.roll_back("s1", None, by="ada")
    (root.parent / "away").rename(root)
    while take_steps(backend, "s1") != "done":
        pass
    assert said(backend.sessions.get("s1").session) == [
        ("applied", "kept"),
        ("rejected_by_gate", "regression"),
    ]
    assert (root / "a.txt").read_text() == "good\n"


def test_a_session_without_a_tree_can_be_ended_if_it_wrote_nothing(
    engine: Maker, root: Path
) -> None:
    backend, elsewhere = engine(), engine(host="elsewhere")
    begin(backend, root, plan("good"), inline=False)
    assert take_steps(elsewhere, "s1") == "not now"
    assert backend.sessions.get("s1").session.outcomes == []
    done, text = elsewhere.roll_back("s1", None, by="ada", note="the host is gone")
    assert "nothing was applied" in text
    assert said(done) == [("rejected_by_user", "rejected")]


def advance_until(backend: EditEngine, session_id: str, phase: str) -> EditSession:
    """Steps of a worker until the session is in a phase, which is saved."""
    with backend.sessions.leased(session_id) as lease:
        found = backend.sessions.get(session_id)
        while found.session.phase != phase:
            context = backend._bench(found.session, lease, None)
            found = backend._saved(found, advance(context, found.session))
    return found.session


@pytest.mark.parametrize("phase", ["ready", "baseline", "measuring"])
def test_a_worker_runs_no_commands_of_a_suite_unless_it_is_allowed_to(
    engine: Maker, root: Path, ledger: RedisLedger, settings: SettingsMaker, phase: str
) -> None:
    """What was begun elsewhere is taken back, and what was not touched waits for a person."""
    backend = engine()
    begin(backend, root, plan("good", "unfair"), inline=False)
    advance_until(backend, "s1", phase)
    worker = build_edit_engine(settings(), ledger, None, commands=False)
    while take_steps(worker, "s1") != "done":
        pass
    session = worker.sessions.get("s1").session
    begun, untouched = session.outcomes
    held = ("pending_review", "no_scorer")
    wanted = held if phase == "ready" else ("rejected_by_gate", "no_scorer")
    assert (begun.status, begun.reason) == wanted
    assert (untouched.status, untouched.reason) == held
    for outcome in (begun, untouched):
        assert "a suite may bring no commands here" in str(outcome.error)
    assert (root / "a.txt").read_text() == "start\n"


def test_what_was_measured_for_a_review_outlives_a_worker_that_gives_up(
    engine: Maker, root: Path, ledger: RedisLedger, settings: SettingsMaker
) -> None:
    backend = engine()
    drive(backend, begin(backend, root, plan("good"), mode="manual"))
    backend.approve("s1", "e1", by="ada", note=None)
    worker = build_edit_engine(settings(), ledger, None, commands=False)
    assert take_steps(worker, "s1") == "done"
    record = worker.sessions.get("s1").session.records[0]
    assert record.outcome is not None
    assert (record.outcome.reason, record.approved_by) == ("no_scorer", None)
    assert record.outcome.cluster_deltas == {"main": 0.2, "rest": 0.0}


# -- the edit queue --------------------------------------------------------------------------------

EDIT = Pool(name="edit", queues=("edit",))


def test_a_session_on_the_queue_with_real_workers(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("f")
    root = folder / "tree"
    root.mkdir()
    (root / "a.txt").write_text("start\n")
    (root / "score.py").write_text(SCORE)
    (root / "ask.txt").write_text("Say yes.\n")
    job = {
        "prompt_file": "ask.txt",
        "runner": {"kind": "scripted", "answers": ["yes"]},
        "verifiers": [{"id": "text.match", "contains": "yes"}],
    }
    tasks = [
        {"id": "all", "command": [sys.executable, "score.py"]},
        {"id": "asked", "cluster": "asked", "job": job},
    ]
    suite = Suite.model_validate({"deterministic": True, "tasks": tasks})
    with running_fleet(folder, pools=(CONTROL, WORK, EDIT)) as fleet:
        services = fleet.services
        backend = build_edit_engine(
            services.settings, services.ledger, services.intake, commands=True
        )
        wanted = plan("good", "unfair")
        begin(backend, root, wanted, suite=suite, inline=False)

        def session() -> EditSession:
            fleet.stack.watch()
            return backend.sessions.get("s1").session

        done = wait_for(lambda: (s := session()).phase == "done" and s, "the session to be done")
    assert said(done) == [("applied", "kept"), ("rejected_by_gate", "regression")]
    assert done.outcomes[0].cluster_deltas == {"asked": 0.0, "main": 0.2, "rest": 0.0}
    assert (root / "a.txt").read_text() == "good\n"
