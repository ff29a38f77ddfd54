"""Edit sessions on a real tree and a real Redis: leases, kills and the edit queue."""

from __future__ import annotations

import json
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
from mulligan.workers.celery.broker.queues import Pool
from mulligan.workers.edits.sessions.engine import EditEngine, build_edit_engine, take_steps
from mulligan.workers.edits.sessions.session_store import (
    SessionLease,
    SessionStore,
    StoredSession,
    find_ready,
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
    """``engine()`` builds the engine of one process."""

    def make(**changes: Any) -> EditEngine:
        config = settings()
        ledger = RedisLedger(redis_client, config, patience=5.0)
        built = build_edit_engine(config, ledger, None, commands=True)
        lease = changes.pop("lease", 30.0)
        sessions = SessionStore(ledger.calls, prefix="mulligan", retention=60, lease=lease)
        return EditEngine(
            **{"sessions": sessions, "home": built.home, "measurer": built.measurer, **changes}
        )

    return make


def plan(*texts: str, session: str = "s1", **changes: Any) -> EditPlan:
    """Return a plan with edits e1, e2… that write these texts to a.txt."""
    edits = [
        {"id": f"e{n}", "op": "write_file", "target": "a.txt", "payload": {"content": f"{text}\n"}}
        for n, text in enumerate(texts, 1)
    ]
    return EditPlan.model_validate({"session": session, "edits": edits, **changes})


def begin(engine: EditEngine, root: Path, edit_plan: EditPlan, **changes: Any) -> EditSession:
    options: dict[str, Any] = {"suite": SUITE, **changes}
    mode = AutonomyMode(options.pop("mode", "auto"))
    return engine.begin(edit_plan, root, mode, **options)


def outcomes_of(session: EditSession) -> list[tuple[str, str]]:
    return [(outcome.status, outcome.reason) for outcome in session.outcomes]


def drive(engine: EditEngine, session: EditSession) -> EditSession:
    return engine.drive(session.id)


# -- sessions of another release ------------------------------------------------------------------


def test_a_session_of_another_release_stops_no_other_session(
    engine: Maker, root: Path, tmp_path: Path, redis_client: redis.Redis
) -> None:
    """Given one with an unknown field, then lists show the others, and it keeps its tree."""
    backend = engine()
    other = tmp_path / "other"
    other.mkdir()
    theirs = begin(backend, root, plan("good", session="theirs"))
    assert backend.sessions.take_tree(theirs) is None
    mine = begin(backend, other, plan("good", session="mine"), suite=None)
    row = "mulligan:{fleet}:edits:session:theirs"
    later = {**json.loads(str(redis_client.hget(row, "state"))), "reviewers": ["ada"]}
    redis_client.hset(row, "state", json.dumps(later))
    redis_client.lpush("mulligan:{fleet}:edits:deltas", '{"of": "another release"}')
    readable, unreadable = backend.sessions.read_recent()
    assert [session.id for session in readable] == ["mine"]
    assert [each.id for each in unreadable] == ["theirs"]
    assert "reviewers" in unreadable[0].problem
    assert [session.id for session in backend.sessions.at_work()] == ["mine"]
    assert redis_client.zscore("mulligan:{fleet}:edits:open", "theirs") is not None
    assert backend.sessions.deltas() == []
    with pytest.raises(BadInput, match="cannot be read by this release"):
        backend.sessions.get("theirs")
    assert outcomes_of(drive(backend, mine)) == [("pending_review", "no_scorer")]
    third = begin(backend, root, plan("good", session="third"))
    assert backend.sessions.take_tree(third) == "theirs"


# -- a session on a tree ---------------------------------------------------------------------------


def test_kept_rejected_and_skipped_on_a_real_tree(engine: Maker, root: Path) -> None:
    backend = engine()
    session = begin(backend, root, plan("good", "unfair", "good"))
    done = drive(backend, session)
    assert outcomes_of(done) == [
        ("applied", "kept"),
        ("rejected_by_gate", "regression"),
        ("skipped", "no_op"),
    ]
    assert (root / "a.txt").read_bytes() == b"good\n"
    assert done.outcomes[0].cluster_deltas == {"main": 0.2, "rest": 0.0}
    assert sorted(path.name for path in root.iterdir()) == ["a.txt", "score.py"]
    # The history lists both effects, newest first.
    effects = [(delta.edit_id, delta.reason) for delta in backend.sessions.deltas()]
    assert effects == [("e2", "regression"), ("e1", "kept")]
    _, text = backend.roll_back("s1", None, by="ada")
    assert "rolled back, 1 file changed" in text
    assert (root / "a.txt").read_bytes() == b"start\n"
    effects = [(delta.edit_id, delta.reason) for delta in backend.sessions.deltas()]
    assert effects == [("e2", "regression"), ("e1", "rolled_back")]


def test_the_history_has_the_decisions_of_people(engine: Maker, root: Path) -> None:
    backend = engine()
    drive(backend, begin(backend, root, plan("good", "unfair"), mode="manual"))
    backend.reject("s1", "e2", by="ada", note="no")
    backend.roll_back("s1", None, by="ada")
    effects = {
        delta.edit_id: (delta.status, delta.benchmark_delta) for delta in backend.sessions.deltas()
    }
    assert effects == {"e1": ("rejected_by_user", 0.1), "e2": ("rejected_by_user", 0.05)}


def test_a_late_approval_is_measured_against_the_current_tree(engine: Maker, root: Path) -> None:
    backend = engine()
    drive(backend, begin(backend, root, plan("good"), mode="manual"))
    (root / "score.py").write_text(SCORE.replace('"start": 0.5', '"start": 0.8'))
    backend.approve("s1", "e1", by="ada", note=None)
    done = drive(backend, backend.sessions.get("s1").session)
    assert outcomes_of(done) == [("rejected_by_gate", "regression")], "0.8 before, 0.7 after"
    assert (root / "a.txt").read_text() == "start\n"


def test_a_suite_that_cannot_run_is_refused_first(engine: Maker, root: Path) -> None:
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
    assert outcomes_of(again) == [("applied", "kept")]
    with pytest.raises(BadInput, match="the name of an earlier session"):
        begin(backend, root, plan("unfair"))


def test_the_name_of_an_expired_session_cannot_be_reused(
    engine: Maker, root: Path, redis_client: redis.Redis
) -> None:
    backend = engine()
    drive(backend, begin(backend, root, plan("good")))
    redis_client.delete("mulligan:{fleet}:edits:session:s1")
    done = drive(backend, begin(backend, root, plan("unfair")))
    assert outcomes_of(done) == [("rejected_by_gate", "conflict")]
    assert "choose another session name" in str(done.outcomes[0].error)
    assert (root / "a.txt").read_text() == "good\n"


# -- killed processes ------------------------------------------------------------------------------


class Died(BaseException):
    """The death of the process."""


def test_an_ungated_edit_is_recognised_after_a_kill(
    engine: Maker, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given an applied edit of which only the start was saved."""
    backend = engine()
    session = begin(backend, root, plan("good", benchmark={"policy": "allow"}), suite=None)
    real = SessionStore.save

    def dying_save(
        self: SessionStore, found: StoredSession, moved: EditSession
    ) -> StoredSession | None:
        if moved.outcomes:
            raise Died
        return real(self, found, moved)

    monkeypatch.setattr(SessionStore, "save", dying_save)
    with pytest.raises(Died):
        drive(backend, session)
    monkeypatch.undo()
    assert (root / "a.txt").read_text() == "good\n"
    assert outcomes_of(drive(engine(), session)) == [("applied", "ungated")]
    assert len(EditedTree(root, backend.home).history()) == 1


@pytest.mark.parametrize("step", range(1, 6))
@pytest.mark.parametrize("text", ["good", "unfair"])
def test_a_step_that_was_not_saved_is_not_applied_twice(
    engine: Maker, root: Path, step: int, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = engine()
    session = begin(backend, root, plan(text))
    saves = iter(range(1, 100))
    real = SessionStore.save

    def dying_save(
        self: SessionStore, found: StoredSession, moved: EditSession
    ) -> StoredSession | None:
        if next(saves) == step:
            raise Died
        return real(self, found, moved)

    monkeypatch.setattr(SessionStore, "save", dying_save)
    with pytest.raises(Died):
        drive(backend, session)
    monkeypatch.undo()
    done = drive(engine(), session)
    kept = text == "good"
    expected = ("applied", "kept") if kept else ("rejected_by_gate", "regression")
    assert outcomes_of(done) == [expected]
    assert (root / "a.txt").read_text() == ("good\n" if kept else "start\n")
    points = EditedTree(root, backend.home).history()
    assert [point.kind for point in points] == (["edit"] if kept else ["edit", "rollback"])
    assert len(backend.sessions.deltas()) == 1


def test_a_process_without_the_lease_writes_nothing(
    engine: Maker, root: Path, redis_client: redis.Redis
) -> None:
    backend = engine()
    session = begin(backend, root, plan("good", benchmark={"policy": "allow"}), suite=None)
    with backend.sessions.leased(session.id) as lease:
        redis_client.hset("mulligan:{fleet}:edits:session:s1", "lease", "other 99999999999999")
        context = backend._context(session, lease, None)
        started = advance(context, session)
        with pytest.raises(RetryLater, match="taken over by another process"):
            advance(context, started)
    assert (root / "a.txt").read_text() == "start\n"
    assert EditedTree(root, backend.home).history() == []


def test_a_lease_belongs_to_one_process_until_it_expires(engine: Maker, root: Path) -> None:
    backend = engine()
    begin(backend, root, plan("good"))
    first = SessionLease(backend.sessions, "s1", "one", 0.05)
    second = SessionLease(backend.sessions, "s1", "two", 30)
    assert first.step("take")
    assert first.step("take"), "a repeated call is the same lease"
    wait_for(lambda: second.step("take"), "the lease to expire")
    assert not first.step("renew")
    assert not first.step("release"), "another process has it"
    assert backend.sessions.is_leased("s1")
    with pytest.raises(RetryLater, match="another process"):
        backend.work("s1")
    assert first.step("take", force=True)
    assert first.step("release")
    assert not backend.sessions.is_leased("s1")


@pytest.mark.parametrize("phase", ["ready", "baseline", "measuring"])
@pytest.mark.parametrize("edit_id", [None, "e1"])
def test_a_killed_session_can_be_rolled_back_in_every_phase(
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


# -- concurrency -----------------------------------------------------------------------------------


def test_a_second_session_on_a_tree_waits_for_the_first(engine: Maker, root: Path) -> None:
    backend = engine()
    first = begin(backend, root, plan("good"))
    begin(backend, root, plan("unfair", session="s2"))
    assert backend.sessions.take_tree(first) is None
    with pytest.raises(RetryLater, match="session s1 is at work on it"):
        backend.work("s2")
    drive(backend, first)
    done = drive(backend, backend.sessions.get("s2").session)
    assert outcomes_of(done) == [("rejected_by_gate", "regression")], "measured against s1's result"


def test_a_tree_held_by_another_process_names_its_holder(engine: Maker, root: Path) -> None:
    backend = engine(patience=0.1)
    session = begin(backend, root, plan("good"))
    with (
        EditedTree(root, backend.home).held("other"),
        pytest.raises(RetryLater, match="session other"),
    ):
        drive(backend, session)


def test_a_decision_during_a_step_is_not_lost(engine: Maker, root: Path) -> None:
    """Given e1 waiting for review, when it is rejected while e2 is measured."""
    backend = engine()
    edits = plan("good", "good")
    reviewed = edits.edits[0].model_copy(update={"risk_tier": EditRiskTier.REVIEW})
    session = begin(
        backend, root, edits.model_copy(update={"edits": (reviewed, edits.edits[1])}), mode="tiered"
    )
    phases: list[str] = []

    def reject_once(moved: EditSession) -> None:
        if moved.phase == "measuring" and moved.at == 1 and not phases:
            phases.append(backend.reject("s1", "e1", by="ada", note="no").phase)

    done = backend.drive(session.id, on_progress=reject_once)
    assert phases == ["measuring"]
    assert outcomes_of(done) == [("rejected_by_user", "rejected"), ("applied", "kept")]


# -- stored sessions -------------------------------------------------------------------------------


def test_finished_sessions_expire_and_waiting_ones_stay(
    engine: Maker, root: Path, redis_client: redis.Redis
) -> None:
    backend = engine()
    drive(backend, begin(backend, root, plan("good")))
    drive(backend, begin(backend, root, plan("unfair", session="s2"), mode="manual"))
    name = "mulligan:{fleet}:edits:session:"
    assert 0 < int(str(redis_client.ttl(f"{name}s1"))) <= 60
    assert redis_client.ttl(f"{name}s2") == -1, "it waits for a review"
    assert [session.id for session in backend.sessions.recent()] == ["s2", "s1"]
    assert backend.sessions.at_work() == []
    backend.reject("s2", "e1", by="ada", note="no")
    assert int(str(redis_client.ttl(f"{name}s2"))) > 0


def test_hints_are_sent_for_idle_sessions_of_the_queue(engine: Maker, root: Path) -> None:
    backend = engine()
    begin(backend, root, plan("good"), inline=False)
    begin(backend, root, plan("good", session="s2"), inline=True)

    def hinted() -> list[str]:
        return [session.id for session in find_ready(backend.sessions, lambda _: True)]

    assert hinted() == ["s1"]
    with backend.sessions.leased("s1"):
        assert hinted() == []
    assert take_steps(backend, "s1") in ("measuring", "done")


def test_a_missing_root_is_waited_for(engine: Maker, root: Path) -> None:
    """Given e1 applied and being measured: it cannot be rolled back now, so the worker waits."""
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
    assert outcomes_of(backend.sessions.get("s1").session) == [
        ("applied", "kept"),
        ("rejected_by_gate", "regression"),
    ]
    assert (root / "a.txt").read_text() == "good\n"


def test_a_session_of_another_host_can_be_ended_if_it_wrote_nothing(
    engine: Maker, root: Path
) -> None:
    backend, other_host = engine(), engine(host="other-host")
    begin(backend, root, plan("good"), inline=False)
    assert take_steps(other_host, "s1") == "not now"
    assert backend.sessions.get("s1").session.outcomes == []
    done, text = other_host.roll_back("s1", None, by="ada", note="the host is gone")
    assert "nothing was applied" in text
    assert outcomes_of(done) == [("rejected_by_user", "rejected")]


def advance_until(backend: EditEngine, session_id: str, phase: str) -> EditSession:
    """Take a worker's steps until the session is saved in this phase."""
    with backend.sessions.leased(session_id) as lease:
        found = backend.sessions.get(session_id)
        while found.session.phase != phase:
            context = backend._context(found.session, lease, None)
            saved = backend.sessions.save(found, advance(context, found.session))
            assert saved is not None
            found = saved
    return found.session


@pytest.mark.parametrize("phase", ["ready", "baseline", "measuring"])
def test_a_worker_runs_a_suite_s_commands_only_if_allowed(
    engine: Maker, root: Path, ledger: RedisLedger, settings: SettingsMaker, phase: str
) -> None:
    """Edits that another process started are rolled back, and the others wait for a review."""
    backend = engine()
    begin(backend, root, plan("good", "unfair"), inline=False)
    advance_until(backend, "s1", phase)
    worker = build_edit_engine(settings(), ledger, None, commands=False)
    while take_steps(worker, "s1") != "done":
        pass
    session = worker.sessions.get("s1").session
    started, untouched = session.outcomes
    waiting = ("pending_review", "no_scorer")
    expected = waiting if phase == "ready" else ("rejected_by_gate", "no_scorer")
    assert (started.status, started.reason) == expected
    assert (untouched.status, untouched.reason) == waiting
    for outcome in (started, untouched):
        assert "a suite may not contain commands here" in str(outcome.error)
    assert (root / "a.txt").read_text() == "start\n"


def test_measurements_for_a_review_survive_a_worker_that_may_not_measure(
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


def test_a_session_runs_on_the_queue_with_real_workers(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
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
        {"id": "job", "cluster": "job", "job": job},
    ]
    suite = Suite.model_validate({"deterministic": True, "tasks": tasks})
    with running_fleet(folder, pools=(CONTROL, WORK, EDIT)) as fleet:
        services = fleet.services
        backend = build_edit_engine(
            services.settings, services.ledger, services.intake, commands=True
        )
        begin(backend, root, plan("good", "unfair"), suite=suite, inline=False)

        def session() -> EditSession:
            fleet.stack.watch()
            return backend.sessions.get("s1").session

        done = wait_for(lambda: (s := session()).phase == "done" and s, "the session to be done")
    assert outcomes_of(done) == [("applied", "kept"), ("rejected_by_gate", "regression")]
    assert done.outcomes[0].cluster_deltas == {"job": 0.0, "main": 0.2, "rest": 0.0}
    assert (root / "a.txt").read_text() == "good\n"
