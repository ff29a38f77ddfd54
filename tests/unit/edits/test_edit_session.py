"""An edit session on fakes: reasons, what stays on disk, reviews, repeated steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from mulligan.policies.edits.edit import AutonomyMode, BenchmarkSpec, Edit, EditReason, EditRiskTier
from mulligan.policies.edits.session import DIFF_CAP, EditSession, diff_of, records_of
from mulligan.policies.edits.suite import WHOLE, Suite, SuiteRuns, SuiteScores, SuiteTask, TaskScore
from mulligan.policies.problem import Problem
from mulligan.tasks.edits.advance import EditContextPorts, RetryLater, advance
from mulligan.tasks.edits.decide import approve, reject, roll_back
from mulligan.tasks.ports.appliers import (
    ApplyContext,
    EditConflict,
    EditRefused,
    FileChange,
    Validation,
)
from mulligan.tasks.ports.errors import BadInput

NOW = datetime(2026, 1, 1, tzinfo=UTC)
Files = dict[str, bytes]
#: Scores the files: a score for each cluster.
Judge = Callable[[Mapping[str, bytes]], dict[str, float]]


class Put:
    """``put`` writes the payload's text into a file."""

    op = "put"

    def __init__(self, files: Files) -> None:
        self._files = files

    def validate(self, edit: Edit, ctx: ApplyContext) -> Validation:
        return Validation(ok="text" in edit.payload, reason="payload.text: is required")

    def changes(self, edit: Edit, ctx: ApplyContext) -> list[FileChange]:
        match edit.payload["text"]:
            case "refuse":
                raise EditRefused("a.txt: expected 'x', there is 'y'")
            case "conflict":
                raise EditConflict("a.txt: changed meanwhile")
            case "crash":
                raise ZeroDivisionError("division by zero")
            case text:
                before = self._files.get(edit.target)
                note = "trailing white space" if "tolerant" in edit.references else ""
                after = str(text).encode()
                return [FileChange(path=edit.target, before=before, after=after, note=note)]


class Appliers:
    def __init__(self, files: Files) -> None:
        self._put = Put(files)

    def is_supported(self, op: str) -> bool:
        return op == "put"

    def get(self, op: str) -> Put:
        return self._put


class FakeTree:
    """A tree in memory that keeps its state before each edit."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self.before: dict[tuple[str, str], Files] = {}
        self.numbers: dict[tuple[str, str], int] = {}
        self.writes = 0
        self.refusal: Exception | None = None
        self.busy = False

    def applied(self, session_id: str, edit_id: str) -> int | None:
        return self.numbers.get((session_id, edit_id))

    def mode(self, path: str) -> int | None:
        return 0o644 if path in self.files else None

    def apply(self, session_id: str, edit_id: str, tier: str, changes: Sequence[FileChange]) -> int:
        if self.busy:
            raise RetryLater("held by session other")
        if self.refusal is not None:
            raise self.refusal
        self.before[session_id, edit_id] = dict(self.files)
        for change in changes:
            assert change.after is not None
            self.files[change.path] = change.after
        self.writes += 1
        self.numbers[session_id, edit_id] = self.writes
        return self.writes

    def rollback_edit(self, session_id: str, edit_id: str) -> str:
        if self.refusal is not None:
            raise self.refusal
        if self.numbers.pop((session_id, edit_id), None) is None:
            return "nothing to roll back"
        before = self.before[session_id, edit_id]
        self.files.clear()
        self.files.update(before)
        return "rolled back"

    def rollback_session(self, session_id: str) -> str:
        for session, edit_id in reversed(list(self.numbers)):
            if session == session_id:
                self.rollback_edit(session, edit_id)
        return "rolled back"


class FakeMeasurer:
    """Scores states of the files. With ``slow``, each run is ready at the second poll."""

    def __init__(
        self, files: Files, judge: Judge, *, slow: bool = False, noisy: bool = False
    ) -> None:
        self._noisy = noisy
        self._files = files
        self._judge = judge
        self._slow = slow
        self._polls: dict[str, int] = {}
        self.states: dict[str, Files] = {}
        self.too_large = False
        self.started: list[tuple[str, int]] = []

    def problems(self, suite: Suite, root: Path) -> list[Problem]:
        return []

    def forbidden(self, suite: Suite) -> list[Problem]:
        return []

    def snapshot(self, root: Path, changes: Sequence[FileChange] = ()) -> str:
        if self.too_large and self._files.get("a.txt") == b"huge":
            raise BadInput("the tree is over 20 MB")
        files = dict(self._files)
        for change in changes:
            files[change.path] = change.after or b""
        name = repr(sorted(files.items()))
        self.states[name] = files
        return name

    def start(self, suite: Suite, state: str, *, session: str, repeat: int) -> SuiteRuns:
        self.started.append((state, repeat))
        if self.states[state].get("a.txt") == b"breaks the suite":
            raise BadInput("tasks[0].prompt_file: there is no such file")
        return SuiteRuns(session=session, state=state, repeat=repeat)

    def poll(self, suite: Suite, runs: SuiteRuns) -> SuiteScores | None:
        key = f"{runs.state}/{runs.repeat}"
        self._polls[key] = self._polls.get(key, 0) + 1
        if self._slow and self._polls[key] == 1:
            return None
        scores = self._judge(self.states[runs.state])
        note = f"{self.states[runs.state]['a.txt'].decode()} was slow" if self._noisy else ""
        run = tuple(
            TaskScore(task=name, cluster=name, values={WHOLE: score}, note=note)
            for name, score in scores.items()
        )
        return SuiteScores(runs=(run,))


def by_table(files: Mapping[str, bytes]) -> dict[str, float]:
    """Score the tree by the text in ``a.txt``: ``good``, ``better``, ``unfair``…"""
    table = {
        b"start": {"main": 0.5, "rest": 0.5},
        b"good": {"main": 0.7, "rest": 0.5},
        b"better": {"main": 0.9, "rest": 0.5},
        b"middle": {"main": 0.6, "rest": 0.5},
        b"unfair": {"main": 0.9, "rest": 0.2},
        b"other": {"main": 0.5, "rest": 0.9},
        b"missing": {"main": 0.9},
    }
    return table[files["a.txt"]]


class SessionCase:
    """A session on a tree in memory that starts with ``a.txt: start``."""

    def __init__(
        self, *edits: Edit, mode: str = "auto", judge: Judge | None = by_table, **changes: Any
    ) -> None:
        self.files: Files = {"a.txt": b"start"}
        self.tree = FakeTree(self.files)
        slow = changes.pop("slow", False)
        noisy = changes.pop("noisy", False)
        self.measurer = FakeMeasurer(self.files, judge or by_table, slow=slow, noisy=noisy)
        tasks = tuple(
            SuiteTask(id=name, cluster=name, command=("score",)) for name in ("main", "rest")
        )
        suite = Suite(tasks=tasks, deterministic=True) if judge else None
        tiers = changes.pop("tiers", {"put": EditRiskTier.AUTO})
        self.session = EditSession(
            id="s1",
            host="h",
            root="/tree",
            mode=AutonomyMode(mode),
            suite=changes.pop("suite", suite),
            records=records_of(edits, tiers),
            created_at=NOW,
            updated_at=NOW,
            **changes,
        )
        self.context = EditContextPorts(
            ctx=ApplyContext(root=Path("/tree")),
            appliers=Appliers(self.files),
            tree=self.tree,
            measurer=self.measurer,
            now=lambda: NOW,
        )

    def run(self) -> list[tuple[str, EditReason]]:
        for _ in range(200):
            if self.session.phase == "done":
                return self.results()
            self.session = advance(self.context, self.session)
        raise AssertionError(f"the session does not end: {self.session}")

    def results(self) -> list[tuple[str, EditReason]]:
        return [(outcome.status, outcome.reason) for outcome in self.session.outcomes]


def put(text: str | None, name: str = "e1", **changes: Any) -> Edit:
    payload = {} if text is None else {"text": text}
    return Edit(id=name, op="put", target="a.txt", payload=payload, **changes)


# -- every reason ----------------------------------------------------------------------------------

REASONS: list[tuple[dict[str, Any], Edit, str, str]] = [
    ({}, put("good"), "applied", "kept"),
    (
        {"judge": None, "benchmark": BenchmarkSpec(policy="allow")},
        put("good"),
        "applied",
        "ungated",
    ),
    ({"mode": "manual"}, put("good"), "pending_review", "manual_mode"),
    ({"tiers": {"put": EditRiskTier.MANUAL}}, put("good"), "skipped", "manual_tier"),
    ({"mode": "tiered", "tiers": {}}, put("good"), "pending_review", "review_tier"),
    ({}, Edit(id="e1", op="fly", target="a.txt"), "skipped", "unsupported"),
    ({}, put(None), "rejected_by_gate", "validation"),
    ({}, put("good", expected_improvement="typo"), "rejected_by_gate", "validation"),
    ({}, put("refuse"), "rejected_by_gate", "apply_error"),
    ({}, put("crash"), "rejected_by_gate", "apply_error"),
    ({}, put("conflict"), "rejected_by_gate", "conflict"),
    ({}, put("start"), "skipped", "no_op"),
    ({"judge": None}, put("good"), "pending_review", "no_scorer"),
    ({"judge": None, "mode": "tiered"}, put("good"), "pending_review", "no_scorer"),
    ({}, put("unfair"), "rejected_by_gate", "regression"),
    ({}, put("missing"), "rejected_by_gate", "regression"),
    ({}, put("other", expected_improvement="main"), "rejected_by_gate", "no_improvement"),
]


@pytest.mark.parametrize(("changes", "edit", "status", "reason"), REASONS)
def test_every_cause_has_its_reason(
    changes: dict[str, Any], edit: Edit, status: str, reason: str
) -> None:
    case = SessionCase(edit, **changes)
    assert case.run() == [(status, reason)]
    kept = status == "applied"
    assert case.files["a.txt"] == (b"good" if kept else b"start")
    (outcome,) = case.session.outcomes
    assert (outcome.applied_at is not None) == kept


def test_contradictory_repeats_are_undecided() -> None:
    """Given one repeat that is much better and one that is a little worse, nothing is decided."""
    tasks = (SuiteTask(id="main", cluster="main", command=("score",)),)
    suite = Suite(tasks=tasks, repeats=2, undecided="reject")
    scores = iter([0.5, 0.9, 0.5, 0.48])
    case = SessionCase(put("good"), suite=suite, judge=lambda _: {"main": next(scores)})
    assert case.run() == [("rejected_by_gate", "undecided")]
    assert case.files["a.txt"] == b"start"


def test_notes_of_both_sides_are_kept_in_every_outcome() -> None:
    for text, status in (("good", "applied"), ("unfair", "rejected_by_gate")):
        case = SessionCase(put(text), noisy=True)
        case.run()
        (outcome,) = case.session.outcomes
        assert outcome.status == status
        notes = "; ".join((outcome.error or "", *outcome.notes))
        assert "before: main: start was slow" in notes
        assert f"after: main: {text} was slow" in notes


# -- the gate --------------------------------------------------------------------------------------


def test_a_rejected_edit_does_not_stay_on_disk() -> None:
    case = SessionCase(put("unfair"))
    case.run()
    assert case.tree.writes == 1, "the edit was applied and measured"
    assert case.files == {"a.txt": b"start"}


def test_every_measured_edit_has_deltas() -> None:
    case = SessionCase(put("unfair", "e1"), put("good", "e2"))
    case.run()
    first, second = case.session.outcomes
    assert first.cluster_deltas == {"main": 0.4, "rest": -0.3}
    assert first.benchmark_delta == 0.05, "the overall score alone would have kept it"
    assert second.cluster_deltas == {"main": 0.2, "rest": 0.0}
    assert second.benchmark_delta == 0.1


def test_each_edit_is_compared_with_the_tree_right_before_it() -> None:
    """0.5 → 0.9 is kept; 0.9 → 0.6 is rejected, although it is better than the beginning."""
    case = SessionCase(put("better", "e1"), put("middle", "e2"))
    assert case.run() == [("applied", "kept"), ("rejected_by_gate", "regression")]
    assert case.session.outcomes[1].cluster_deltas["main"] == -0.3
    assert case.files["a.txt"] == b"better"


def test_a_rejected_edit_does_not_change_the_next_comparison() -> None:
    case = SessionCase(put("unfair", "e1"), put("middle", "e2"))
    assert case.run()[1] == ("applied", "kept")
    assert case.session.outcomes[1].cluster_deltas["main"] == 0.1


def test_a_cluster_that_is_missing_afterwards_counts_as_zero() -> None:
    case = SessionCase(put("missing"))
    case.run()
    assert case.session.outcomes[0].cluster_deltas["rest"] == -0.5


def test_an_edit_that_breaks_the_suite_is_rolled_back() -> None:
    case = SessionCase(put("breaks the suite"))
    assert case.run() == [("rejected_by_gate", "apply_error")]
    assert case.files["a.txt"] == b"start"
    assert "prompt_file" in str(case.session.outcomes[0].error)


def test_an_edit_that_makes_the_tree_too_large_to_measure_is_rolled_back() -> None:
    case = SessionCase(put("huge"))
    case.measurer.too_large = True
    assert case.run() == [("rejected_by_gate", "apply_error")]
    assert case.files["a.txt"] == b"start"


def test_a_rejected_edit_that_cannot_be_rolled_back_is_reported() -> None:
    case = SessionCase(put("unfair"))
    while case.tree.writes == 0:
        case.session = advance(case.context, case.session)
    case.tree.refusal = EditConflict("a.txt: line 3 changed since")
    assert case.run() == [("rejected_by_gate", "conflict")]
    error = str(case.session.outcomes[0].error)
    assert "regression" in error
    assert "could not be rolled back: a.txt: line 3 changed since" in error


# -- waiting and repeating -------------------------------------------------------------------------


def test_a_waiting_session_is_unchanged() -> None:
    case = SessionCase(put("good"), slow=True)
    while case.session.phase != "measuring" or case.session.trial.runs is None:  # type: ignore[union-attr]
        case.session = advance(case.context, case.session)
    assert advance(case.context, case.session) is case.session
    assert case.run() == [("applied", "kept")]


@pytest.mark.parametrize("text", ["good", "unfair", "start", "refuse"])
@pytest.mark.parametrize("suite", [True, False])
def test_every_step_may_run_twice(text: str, suite: bool) -> None:
    """Each step runs, is forgotten as if its process had died, and runs again."""
    changes: dict[str, Any] = {} if suite else {"judge": None}
    policy = BenchmarkSpec(policy="allow")
    once, twice = (SessionCase(put(text), benchmark=policy, **changes) for _ in range(2))
    expected = once.run()
    for _ in range(50):
        advance(twice.context, twice.session)
        twice.session = advance(twice.context, twice.session)
    assert twice.results() == expected
    assert twice.files == once.files
    assert twice.tree.writes == once.tree.writes


def test_a_busy_tree_does_not_reject_the_edit() -> None:
    case = SessionCase(put("good"), judge=None, benchmark=BenchmarkSpec(policy="allow"))
    case.tree.busy = True
    with pytest.raises(RetryLater, match="held by session other"):
        case.run()
    case.tree.busy = False
    assert case.run() == [("applied", "ungated")]


def test_a_session_survives_json_at_every_step() -> None:
    case = SessionCase(put("good", "e1"), put("unfair", "e2"), slow=True)
    for _ in range(40):
        restored = EditSession.model_validate_json(case.session.model_dump_json())
        assert restored == case.session
        case.session = advance(case.context, restored)
    assert case.session.phase == "done"


# -- reviews ---------------------------------------------------------------------------------------


def test_an_approved_edit_is_applied_if_it_passes_the_gate() -> None:
    case = SessionCase(put("good", "e1"), put("unfair", "e2"), mode="manual")
    assert case.run() == [("pending_review", "manual_mode")] * 2
    for name in ("e1", "e2"):
        case.session = approve(case.session, name, by="ada", now=NOW, note="try it")
    assert case.run() == [("applied", "kept"), ("rejected_by_gate", "regression")]
    assert case.files["a.txt"] == b"good"
    record = case.session.records[0]
    assert (record.approved_by, record.note) == ("ada", "try it")


def test_approval_overrides_no_scorer_and_the_manual_tier() -> None:
    case = SessionCase(put("good"), judge=None)
    case.run()
    case.session = approve(case.session, "e1", by="ada", now=NOW)
    assert case.run() == [("applied", "ungated")]
    case = SessionCase(put("good"), tiers={"put": EditRiskTier.MANUAL})
    case.run()
    case.session = approve(case.session, "e1", by="ada", now=NOW)
    assert case.run() == [("applied", "kept")]


def test_an_edit_rejected_by_a_person_keeps_the_reason_and_is_never_applied() -> None:
    case = SessionCase(put("good"), mode="manual")
    case.run()
    case.session = reject(case.session, "e1", by="ada", now=NOW, note="too broad")
    assert case.run() == [("rejected_by_user", "rejected")]
    assert case.session.outcomes[0].error == "too broad"
    assert case.session.outcomes[0].benchmark_delta == 0.1, "the measurement is kept"
    assert case.session.records[0].decided_by == "ada"
    assert case.session.finished
    with pytest.raises(BadInput, match=r"rejected_by_user \(rejected\)"):
        approve(case.session, "e1", by="ada", now=NOW)


@pytest.mark.parametrize("note", ["", " \n"])
def test_rejecting_without_a_reason_is_refused(note: str) -> None:
    case = SessionCase(put("good"), mode="manual")
    case.run()
    with pytest.raises(BadInput, match="note: say why"):
        reject(case.session, "e1", by="ada", now=NOW, note=note)


def test_rolling_back_a_session_keeps_the_measurements_of_pending_edits() -> None:
    case = SessionCase(put("good", "e1"), put("good", "e2"), mode="manual")
    case.run()
    approved = approve(case.session, "e1", by="ada", now=NOW)
    ended, _ = roll_back(case.context, approved, None, by="ada")
    assert [o.reason for o in ended.outcomes] == ["rejected", "rejected"]
    assert [o.benchmark_delta for o in ended.outcomes] == [0.1, 0.1]


def test_only_a_pending_edit_can_be_decided() -> None:
    case = SessionCase(put("good", "e1"), put("good", "e2"))
    with pytest.raises(BadInput, match="pending or in progress"):
        approve(case.session, "e1", by="ada", now=NOW)
    case.run()
    with pytest.raises(BadInput, match=r"e1 is applied \(kept\)"):
        reject(case.session, "e1", by="ada", now=NOW, note="no")
    with pytest.raises(BadInput, match=r"skipped \(no_op\)"):
        approve(case.session, "e2", by="ada", now=NOW)
    with pytest.raises(BadInput, match="no edit 'e9'; it has e1, e2"):
        approve(case.session, "e9", by="ada", now=NOW)


def test_a_reviewer_sees_the_diff() -> None:
    case = SessionCase(put("good"), mode="manual")
    case.run()
    assert "-start" in case.session.records[0].diff
    assert "+good" in case.session.records[0].diff


@pytest.mark.parametrize(
    ("edit", "note"),
    [
        (put("refuse"), "rejected_by_gate (apply_error): a.txt: expected 'x', there is 'y'"),
        (put(None), "rejected_by_gate (validation): payload.text: is required"),
        (put("start"), "skipped (no_op): it changes nothing"),
        (put("good", expected_improvement="typo"), "the suite has no cluster 'typo'"),
        (Edit(id="e1", op="fly", target="a.txt"), "op fly not implemented in v1"),
    ],
)
def test_a_reviewer_sees_why_an_edit_cannot_be_applied(edit: Edit, note: str) -> None:
    case = SessionCase(edit, mode="manual")
    assert case.run() == [("pending_review", "manual_mode")]
    (outcome,) = case.session.outcomes
    assert note in "\n".join(outcome.notes)
    assert outcome.error is None, "it has not been tried, so there is no error yet"


def test_a_tolerant_match_is_noted_in_the_outcome() -> None:
    for mode, status in (("auto", "applied"), ("manual", "pending_review")):
        case = SessionCase(put("good", references=("tolerant",)), mode=mode)
        case.run()
        (outcome,) = case.session.outcomes
        assert (outcome.status, outcome.notes) == (status, ("a.txt: trailing white space",))


def test_notes_belong_to_the_last_computation_of_an_edit() -> None:
    case = SessionCase(put("good", references=("tolerant",)), mode="manual")
    case.run()
    case.session = approve(case.session, "e1", by="ada", now=NOW)
    case.files["a.txt"] = b"good"
    assert case.run() == [("skipped", "no_op")]
    assert case.session.outcomes[0].notes == ()


# -- rolling back ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "delta"), [("better", 0.4), ("unfair", 0.4)])
def test_a_reviewer_sees_the_measured_effect_and_the_tree_is_unchanged(
    text: str, delta: float
) -> None:
    case = SessionCase(put(text), mode="manual")
    assert case.run() == [("pending_review", "manual_mode")]
    (outcome,) = case.session.outcomes
    assert outcome.cluster_deltas["main"] == pytest.approx(delta)
    assert (outcome.error or "").startswith("measured: ")
    assert case.files == {"a.txt": b"start"}
    assert case.tree.numbers == {}


def test_an_approved_edit_is_measured_again() -> None:
    """It must pass the gate on the tree as it is at that time."""
    case = SessionCase(put("unfair"), mode="manual")
    case.run()
    case.session = approve(case.session, "e1", by="mia", now=NOW)
    assert case.run() == [("rejected_by_gate", "regression")]
    assert case.files == {"a.txt": b"start"}


def test_rolling_back_during_the_measurement_for_a_review_undoes_nothing() -> None:
    case = SessionCase(put("better"), mode="manual", slow=True)
    while case.session.trial is None:
        case.session = advance(case.context, case.session)
    case.session, text = roll_back(case.context, case.session, None, by="mia")
    assert "nothing was applied" in text
    assert case.results() == [("rejected_by_user", "rejected")]


def test_an_edit_that_is_rolled_back_keeps_its_measurement() -> None:
    case = SessionCase(put("good"))
    case.run()
    case.session, text = roll_back(case.context, case.session, "e1", by="ada", note="a bad day")
    assert text == "rolled back"
    assert case.results() == [("rolled_back", "rolled_back")]
    assert case.session.outcomes[0].benchmark_delta == 0.1
    assert case.session.outcomes[0].error == "a bad day"
    assert case.files["a.txt"] == b"start"
    again, text = roll_back(case.context, case.session, "e1", by="ada")
    assert text == "nothing to roll back"
    assert again.outcomes[0].status == "rolled_back"


def test_a_session_rolled_back_during_a_measurement_is_finished() -> None:
    case = SessionCase(put("good", "e1"), put("better", "e2"), put("middle", "e3"), slow=True)
    while not (case.session.at == 1 and case.session.phase == "measuring"):
        case.session = advance(case.context, case.session)
    assert case.files["a.txt"] == b"better"
    case.session, _ = roll_back(case.context, case.session, None, by="ada")
    assert case.files["a.txt"] == b"start"
    assert case.run() == [
        ("rolled_back", "rolled_back"),
        ("rolled_back", "rolled_back"),
        ("rejected_by_user", "rejected"),
    ]
    assert case.session.finished


def test_an_edit_that_was_never_applied_cannot_be_rolled_back() -> None:
    case = SessionCase(put("good"))
    with pytest.raises(BadInput, match="has not applied an edit 'e1'"):
        roll_back(case.context, case.session, "e1", by="ada")


# -- diffs -----------------------------------------------------------------------------------------


def test_a_diff_marks_new_deleted_and_binary_files() -> None:
    assert diff_of("x", b"a\n", b"a\nb") == (
        "--- a/x\n+++ b/x\n@@ -1 +1,2 @@\n a\n+b\n\\ No newline at end of file\n"
    )
    assert "--- /dev/null\n+++ b/x" in diff_of("x", None, b"a\n")
    assert "+++ /dev/null" in diff_of("x", b"a\n", None)
    assert diff_of("x", b"\xff\xfe", b"a").endswith("Binary files differ\n")


@pytest.mark.parametrize(
    ("before", "after", "modes", "shown"),
    [
        (b"a\n", b"a\n", {"old_mode": 0o644, "mode": 0o755}, "old mode 100644\nnew mode 100755\n"),
        (None, b"", {"mode": 0o755}, "new file mode 100755\n"),
        (None, b"", {}, "new file mode 100644\n"),
        (b"", None, {"old_mode": 0o600}, "deleted file mode 100600\n"),
    ],
)
def test_a_diff_shows_modes_as_git_does(
    before: bytes | None, after: bytes | None, modes: dict[str, Any], shown: str
) -> None:
    assert diff_of("x", before, after, **modes) == f"diff --git a/x b/x\n{shown}"


def test_only_a_newline_ends_a_line_of_a_diff() -> None:
    assert diff_of("x", b"one\x0ctwo\r\n", b"one\x0c2\r\n") == (
        "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-one\x0ctwo\r\n+one\x0c2\r\n"
    )


def test_a_long_diff_is_cut_at_the_end_of_a_line() -> None:
    session = SessionCase(put("good")).session
    shown = session.fitting("+line\n" * DIFF_CAP)
    assert len(shown) < DIFF_CAP + 100
    assert shown.splitlines()[-2] == "+line"
    assert shown.splitlines()[-1].endswith("more characters")
