"""A session over fakes: every reason, what stays on disk, what people decide, steps taken twice."""

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
#: The score of each cluster, by what the files are.
Judge = Callable[[Mapping[str, bytes]], dict[str, float]]


class Put:
    """``put``: a file becomes the payload's text."""

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
    """A tree in memory that remembers what it was before each edit."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self.before: dict[tuple[str, str], Files] = {}
        self.numbers: dict[tuple[str, str], int] = {}
        self.writes = 0
        self.refusal: Exception | None = None
        self.busy = False

    def standing(self, session_id: str, edit_id: str) -> int | None:
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
        was = self.before[session_id, edit_id]
        self.files.clear()
        self.files.update(was)
        return "rolled back"

    def rollback_session(self, session_id: str) -> str:
        for session, edit_id in reversed(list(self.numbers)):
            if session == session_id:
                self.rollback_edit(session, edit_id)
        return "rolled back"


class FakeMeasurer:
    """Scores states of the files. ``slow``: each run is ready at the second look."""

    def __init__(
        self, files: Files, judge: Judge, *, slow: bool = False, noisy: bool = False
    ) -> None:
        self._noisy = noisy
        self._files = files
        self._judge = judge
        self._slow = slow
        self._looks: dict[str, int] = {}
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
        self._looks[key] = self._looks.get(key, 0) + 1
        if self._slow and self._looks[key] == 1:
            return None
        found = self._judge(self.states[runs.state])
        note = f"{self.states[runs.state]['a.txt'].decode()} was slow" if self._noisy else ""
        run = tuple(
            TaskScore(task=name, cluster=name, values={WHOLE: score}, note=note)
            for name, score in found.items()
        )
        return SuiteScores(runs=(run,))


def by_table(files: Mapping[str, bytes]) -> dict[str, float]:
    """``a.txt`` says how good the tree is: ``good``, ``better``, ``unfair``…"""
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


class Scene:
    """One session at work on a tree in memory that starts with ``a.txt: start``."""

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
                return self.said()
            self.session = advance(self.context, self.session)
        raise AssertionError(f"it does not end: {self.session}")

    def said(self) -> list[tuple[str, EditReason]]:
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


@pytest.mark.parametrize(("scene", "edit", "status", "reason"), REASONS)
def test_every_cause_has_a_reason_of_its_own(
    scene: dict[str, Any], edit: Edit, status: str, reason: str
) -> None:
    stage = Scene(edit, **scene)
    assert stage.run() == [(status, reason)]
    kept = status == "applied"
    assert stage.files["a.txt"] == (b"good" if kept else b"start")
    (outcome,) = stage.session.outcomes
    assert (outcome.applied_at is not None) == kept


def test_undecided_is_a_reason_too() -> None:
    """Once it is much better, once a little worse: nobody can tell."""
    tasks = (SuiteTask(id="main", cluster="main", command=("score",)),)
    suite = Suite(tasks=tasks, repeats=2, undecided="reject")
    scores = iter([0.5, 0.9, 0.5, 0.48])
    stage = Scene(put("good"), suite=suite, judge=lambda _: {"main": next(scores)})
    assert stage.run() == [("rejected_by_gate", "undecided")]
    assert stage.files["a.txt"] == b"start"


def test_both_sides_notes_are_told_whatever_is_decided() -> None:
    for text, status in (("good", "applied"), ("unfair", "rejected_by_gate")):
        stage = Scene(put(text), noisy=True)
        stage.run()
        (outcome,) = stage.session.outcomes
        assert outcome.status == status
        told = "; ".join((outcome.error or "", *outcome.notes))
        assert "before: main: start was slow" in told
        assert f"after: main: {text} was slow" in told


# -- what a gate must not do -----------------------------------------------------------------------


def test_what_the_gate_rejects_does_not_stay_on_disk() -> None:
    stage = Scene(put("unfair"))
    stage.run()
    assert stage.tree.writes == 1, "it was applied and measured"
    assert stage.files == {"a.txt": b"start"}


def test_deltas_are_filled_whenever_something_was_measured() -> None:
    stage = Scene(put("unfair", "e1"), put("good", "e2"))
    stage.run()
    first, second = stage.session.outcomes
    assert first.cluster_deltas == {"main": 0.4, "rest": -0.3}
    assert first.benchmark_delta == 0.05, "the overall score alone would have kept it"
    assert second.cluster_deltas == {"main": 0.2, "rest": 0.0}
    assert second.benchmark_delta == 0.1


def test_before_is_the_tree_right_before_each_edit() -> None:
    """0.5 → 0.9 is kept; 0.9 → 0.6 is worse, though it is better than the beginning."""
    stage = Scene(put("better", "e1"), put("middle", "e2"))
    assert stage.run() == [("applied", "kept"), ("rejected_by_gate", "regression")]
    assert stage.session.outcomes[1].cluster_deltas["main"] == -0.3
    assert stage.files["a.txt"] == b"better"


def test_a_rejected_edit_does_not_move_before() -> None:
    stage = Scene(put("unfair", "e1"), put("middle", "e2"))
    assert stage.run()[1] == ("applied", "kept")
    assert stage.session.outcomes[1].cluster_deltas["main"] == 0.1


def test_a_cluster_that_is_missing_afterwards_counts_nothing() -> None:
    stage = Scene(put("missing"))
    stage.run()
    assert stage.session.outcomes[0].cluster_deltas["rest"] == -0.5


def test_an_edit_that_breaks_the_suite_is_taken_back() -> None:
    stage = Scene(put("breaks the suite"))
    assert stage.run() == [("rejected_by_gate", "apply_error")]
    assert stage.files["a.txt"] == b"start"
    assert "prompt_file" in str(stage.session.outcomes[0].error)


def test_an_edit_that_makes_the_tree_too_large_to_measure_is_taken_back() -> None:
    stage = Scene(put("huge"))
    stage.measurer.too_large = True
    assert stage.run() == [("rejected_by_gate", "apply_error")]
    assert stage.files["a.txt"] == b"start"


def test_a_rejected_edit_that_cannot_be_taken_back_says_so() -> None:
    stage = Scene(put("unfair"))
    while stage.tree.writes == 0:
        stage.session = advance(stage.context, stage.session)
    stage.tree.refusal = EditConflict("a.txt: line 3 changed since")
    assert stage.run() == [("rejected_by_gate", "conflict")]
    error = str(stage.session.outcomes[0].error)
    assert "regression" in error
    assert "could not be taken back: a.txt: line 3 changed since" in error


# -- waiting and repeating -------------------------------------------------------------------------


def test_a_session_that_waits_is_the_same_session() -> None:
    stage = Scene(put("good"), slow=True)
    while stage.session.phase != "measuring" or stage.session.trial.runs is None:  # type: ignore[union-attr]
        stage.session = advance(stage.context, stage.session)
    assert advance(stage.context, stage.session) is stage.session
    assert stage.run() == [("applied", "kept")]


@pytest.mark.parametrize("text", ["good", "unfair", "start", "refuse"])
@pytest.mark.parametrize("suite", [True, False])
def test_every_step_may_be_taken_twice(text: str, suite: bool) -> None:
    """Each step is taken, forgotten as if its process had died, and taken again."""
    changes: dict[str, Any] = {} if suite else {"judge": None}
    policy = BenchmarkSpec(policy="allow")
    once, twice = (Scene(put(text), benchmark=policy, **changes) for _ in range(2))
    wanted = once.run()
    for _ in range(50):
        advance(twice.context, twice.session)
        twice.session = advance(twice.context, twice.session)
    assert twice.said() == wanted
    assert twice.files == once.files
    assert twice.tree.writes == once.tree.writes


def test_a_busy_tree_says_nothing_about_the_edit() -> None:
    stage = Scene(put("good"), judge=None, benchmark=BenchmarkSpec(policy="allow"))
    stage.tree.busy = True
    with pytest.raises(RetryLater, match="held by session other"):
        stage.run()
    stage.tree.busy = False
    assert stage.run() == [("applied", "ungated")]


def test_a_session_goes_through_json_unchanged_at_every_step() -> None:
    stage = Scene(put("good", "e1"), put("unfair", "e2"), slow=True)
    for _ in range(40):
        again = EditSession.model_validate_json(stage.session.model_dump_json())
        assert again == stage.session
        stage.session = advance(stage.context, again)
    assert stage.session.phase == "done"


# -- what people decide ----------------------------------------------------------------------------


def test_an_approved_edit_is_applied_if_it_passes_the_gate() -> None:
    stage = Scene(put("good", "e1"), put("unfair", "e2"), mode="manual")
    assert stage.run() == [("pending_review", "manual_mode")] * 2
    for name in ("e1", "e2"):
        stage.session = approve(stage.session, name, by="ada", now=NOW, note="try it")
    assert stage.run() == [("applied", "kept"), ("rejected_by_gate", "regression")]
    assert stage.files["a.txt"] == b"good"
    record = stage.session.records[0]
    assert (record.approved_by, record.note) == ("ada", "try it")


def test_approving_is_the_way_out_of_no_scorer_and_of_the_manual_tier() -> None:
    stage = Scene(put("good"), judge=None)
    stage.run()
    stage.session = approve(stage.session, "e1", by="ada", now=NOW)
    assert stage.run() == [("applied", "ungated")]
    stage = Scene(put("good"), tiers={"put": EditRiskTier.MANUAL})
    stage.run()
    stage.session = approve(stage.session, "e1", by="ada", now=NOW)
    assert stage.run() == [("applied", "kept")]


def test_a_rejected_edit_has_its_reason_and_is_never_applied() -> None:
    stage = Scene(put("good"), mode="manual")
    stage.run()
    stage.session = reject(stage.session, "e1", by="ada", now=NOW, note="too broad")
    assert stage.run() == [("rejected_by_user", "rejected")]
    assert stage.session.outcomes[0].error == "too broad"
    assert stage.session.outcomes[0].benchmark_delta == 0.1, "what was measured stays"
    assert stage.session.records[0].decided_by == "ada"
    assert stage.session.finished
    with pytest.raises(BadInput, match=r"rejected_by_user \(rejected\)"):
        approve(stage.session, "e1", by="ada", now=NOW)


@pytest.mark.parametrize("note", ["", " \n"])
def test_rejecting_without_a_reason_is_refused(note: str) -> None:
    stage = Scene(put("good"), mode="manual")
    stage.run()
    with pytest.raises(BadInput, match="note: say why"):
        reject(stage.session, "e1", by="ada", now=NOW, note=note)


def test_rolling_a_session_back_keeps_what_was_measured_of_what_waited() -> None:
    stage = Scene(put("good", "e1"), put("good", "e2"), mode="manual")
    stage.run()
    approved = approve(stage.session, "e1", by="ada", now=NOW)
    ended, _ = roll_back(stage.context, approved, None, by="ada")
    assert [o.reason for o in ended.outcomes] == ["rejected", "rejected"]
    assert [o.benchmark_delta for o in ended.outcomes] == [0.1, 0.1]


def test_what_does_not_wait_cannot_be_decided() -> None:
    stage = Scene(put("good", "e1"), put("good", "e2"))
    with pytest.raises(BadInput, match="at work, or about to be"):
        approve(stage.session, "e1", by="ada", now=NOW)
    stage.run()
    with pytest.raises(BadInput, match=r"e1 is applied \(kept\)"):
        reject(stage.session, "e1", by="ada", now=NOW, note="no")
    with pytest.raises(BadInput, match=r"skipped \(no_op\)"):
        approve(stage.session, "e2", by="ada", now=NOW)
    with pytest.raises(BadInput, match="no edit 'e9', only e1, e2"):
        approve(stage.session, "e9", by="ada", now=NOW)


def test_who_reviews_sees_what_an_edit_would_change() -> None:
    stage = Scene(put("good"), mode="manual")
    stage.run()
    assert "-start" in stage.session.records[0].diff
    assert "+good" in stage.session.records[0].diff


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (put("refuse"), "rejected_by_gate (apply_error): a.txt: expected 'x', there is 'y'"),
        (put(None), "rejected_by_gate (validation): payload.text: is required"),
        (put("start"), "skipped (no_op): it changes nothing"),
        (put("good", expected_improvement="typo"), "the suite has no cluster 'typo'"),
        (Edit(id="e1", op="fly", target="a.txt"), "op fly not implemented in v1"),
    ],
)
def test_who_reviews_sees_why_an_edit_cannot_be_applied(edit: Edit, told: str) -> None:
    stage = Scene(edit, mode="manual")
    assert stage.run() == [("pending_review", "manual_mode")]
    (outcome,) = stage.session.outcomes
    assert told in "\n".join(outcome.notes)
    assert outcome.error is None, "it was not tried: nothing is wrong yet"


def test_how_the_place_was_found_is_told_with_the_outcome() -> None:
    for mode, status in (("auto", "applied"), ("manual", "pending_review")):
        stage = Scene(put("good", references=("tolerant",)), mode=mode)
        stage.run()
        (outcome,) = stage.session.outcomes
        assert (outcome.status, outcome.notes) == (status, ("a.txt: trailing white space",))


def test_notes_are_of_the_last_time_that_an_edit_was_computed() -> None:
    stage = Scene(put("good", references=("tolerant",)), mode="manual")
    stage.run()
    stage.session = approve(stage.session, "e1", by="ada", now=NOW)
    stage.files["a.txt"] = b"good"
    assert stage.run() == [("skipped", "no_op")]
    assert stage.session.outcomes[0].notes == ()


# -- rolling back ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "delta"), [("better", 0.4), ("unfair", 0.4)])
def test_who_reviews_sees_the_measured_effect_and_the_tree_is_untouched(
    text: str, delta: float
) -> None:
    scene = Scene(put(text), mode="manual")
    assert scene.run() == [("pending_review", "manual_mode")]
    (outcome,) = scene.session.outcomes
    assert outcome.cluster_deltas["main"] == pytest.approx(delta)
    assert (outcome.error or "").startswith("measured: ")
    assert scene.files == {"a.txt": b"start"}
    assert scene.tree.numbers == {}


def test_what_a_review_measured_is_not_the_last_word() -> None:
    """An approved edit passes the gate again, on the tree as it is then."""
    scene = Scene(put("unfair"), mode="manual")
    scene.run()
    scene.session = approve(scene.session, "e1", by="mia", now=NOW)
    assert scene.run() == [("rejected_by_gate", "regression")]
    assert scene.files == {"a.txt": b"start"}


def test_a_session_rolled_back_while_it_measures_for_a_review_has_nothing_to_undo() -> None:
    scene = Scene(put("better"), mode="manual", slow=True)
    while scene.session.trial is None:
        scene.session = advance(scene.context, scene.session)
    scene.session, text = roll_back(scene.context, scene.session, None, by="mia")
    assert "nothing was applied" in text
    assert scene.said() == [("rejected_by_user", "rejected")]


def test_one_edit_can_be_rolled_back_and_keeps_what_was_measured() -> None:
    stage = Scene(put("good"))
    stage.run()
    stage.session, text = roll_back(stage.context, stage.session, "e1", by="ada", note="a bad day")
    assert text == "rolled back"
    assert stage.said() == [("rolled_back", "rolled_back")]
    assert stage.session.outcomes[0].benchmark_delta == 0.1
    assert stage.session.outcomes[0].error == "a bad day"
    assert stage.files["a.txt"] == b"start"
    again, text = roll_back(stage.context, stage.session, "e1", by="ada")
    assert text == "nothing to roll back"
    assert again.outcomes[0].status == "rolled_back"


def test_a_session_rolled_back_in_the_middle_of_measuring_leaves_nothing_to_do() -> None:
    stage = Scene(put("good", "e1"), put("better", "e2"), put("middle", "e3"), slow=True)
    while not (stage.session.at == 1 and stage.session.phase == "measuring"):
        stage.session = advance(stage.context, stage.session)
    assert stage.files["a.txt"] == b"better"
    stage.session, _ = roll_back(stage.context, stage.session, None, by="ada")
    assert stage.files["a.txt"] == b"start"
    assert stage.run() == [
        ("rolled_back", "rolled_back"),
        ("rolled_back", "rolled_back"),
        ("rejected_by_user", "rejected"),
    ]
    assert stage.session.finished


def test_what_was_never_applied_cannot_be_rolled_back() -> None:
    stage = Scene(put("good"))
    with pytest.raises(BadInput, match="has not applied an edit 'e1'"):
        roll_back(stage.context, stage.session, "e1", by="ada")


# -- diffs -----------------------------------------------------------------------------------------


def test_a_diff_says_what_a_person_must_know() -> None:
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
    before: bytes | None, after: bytes | None, modes: dict[str, int], shown: str
) -> None:
    assert diff_of("x", before, after, **modes) == f"diff --git a/x b/x\n{shown}"


def test_only_a_newline_ends_a_line_of_a_diff() -> None:
    assert diff_of("x", b"one\x0ctwo\r\n", b"one\x0c2\r\n") == (
        "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-one\x0ctwo\r\n+one\x0c2\r\n"
    )


def test_a_long_diff_is_cut_at_a_line_s_end() -> None:
    session = Scene(put("good")).session
    shown = session.fitting("+line\n" * DIFF_CAP)
    assert len(shown) < DIFF_CAP + 100
    assert shown.splitlines()[-2] == "+line"
    assert shown.splitlines()[-1].endswith("more characters")
