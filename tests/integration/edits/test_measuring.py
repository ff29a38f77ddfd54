"""Measuring a tree: real commands in private copies, real jobs, nothing measured twice."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.doubles import fake_blobs
from support.ledger_scenario import SettingsMaker
from support.waiting import wait_for

from mulligan.policies.edits.gate import KeepEdit, RejectEdit, compare
from mulligan.policies.edits.suite import WHOLE, Suite, SuiteRuns, SuiteScores, TaskScore
from mulligan.tasks.ports.errors import BadInput, MissingBlob
from mulligan.tasks.ports.measurer import Measurer
from mulligan.workers.edits.sessions.suite_measurer import (
    RedisScores,
    ScoreStore,
    SuiteMeasurer,
    suite_measurer,
)
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.local.local_stack import LocalStack, local_stack


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    root.mkdir()
    (root / "value.txt").write_text("0.25")
    return root


class MemoryScores:
    """A ScoreStore in memory."""

    def __init__(self) -> None:
        self._scores: dict[str, TaskScore] = {}

    def get(self, key: str) -> TaskScore | None:
        return self._scores.get(key)

    def put(self, key: str, score: TaskScore) -> None:
        self._scores[key] = score


def python(code: str, **fields: Any) -> dict[str, Any]:
    return {"id": "t", "cluster": "c", "command": [sys.executable, "-c", code], **fields}


def suite_of(*tasks: dict[str, Any], **fields: Any) -> Suite:
    return Suite.model_validate({"tasks": tasks, **fields})


def local_measurer(store: ScoreStore | None = None, **fields: Any) -> SuiteMeasurer:
    return SuiteMeasurer(blobs=fake_blobs(), store=store or MemoryScores(), **fields)


def measure(
    measurer: Measurer, suite: Suite, state: str, *, session: str = "s", repeat: int = 0
) -> SuiteScores:
    """Measure one repeat and return its scores."""
    runs = measurer.start(suite, state, session=session, repeat=repeat)
    found: list[SuiteScores] = []

    def ended() -> bool:
        scores = measurer.poll(suite, runs)
        found.extend([scores] if scores else [])
        return scores is not None

    wait_for(ended)
    return found[0]


def only(scores: SuiteScores) -> TaskScore:
    ((score,),) = scores.runs
    return score


# -- commands --------------------------------------------------------------------------------------

COMMANDS: list[tuple[str, dict[str, float], str]] = [
    ("print(open('value.txt').read())", {WHOLE: 1}, ""),  # no score printed: the exit code counts
    ("raise SystemExit(3)", {WHOLE: 0}, "exit code 3"),
    ("import sys; sys.exit('no tests here')", {WHOLE: 0}, "exit code 1: no tests here"),
    ("""print('{"score": 0.5}')""", {WHOLE: 0.5}, ""),
    ("""print('working'); print('{"score": 0.5}')""", {WHOLE: 0.5}, ""),
    ("""print('{\\n "score": 1\\n}')""", {WHOLE: 1}, ""),
    # A printed score counts more than the exit code.
    ("""print('{"score": 0.5}'); raise SystemExit(1)""", {WHOLE: 0.5}, ""),
    ("""print('{"scores": {"a": 0, "b": 0.5}}')""", {"a": 0, "b": 0.5}, ""),
    ("""print('{"score": NaN}')""", {WHOLE: 0}, "printed nan, which is not a number from 0 to 1"),
    ("""print('{"score": 1e999}')""", {WHOLE: 0}, "printed inf, which is not a number from 0 to 1"),
    ("""print('{"score": 70}')""", {WHOLE: 0}, "printed 70, which is not a number from 0 to 1"),
    ("""print('{"score": true}')""", {WHOLE: 0}, "printed True, which is not a number from 0 to 1"),
    ("""print('{"scores": {"a": "1"}}')""", {WHOLE: 0}, "printed '1', which is not a number"),
    ("""print('{"scores": []}')""", {WHOLE: 0}, "printed scores that are not a mapping"),
    ("import os; os.kill(os.getpid(), 9)", {WHOLE: 0}, "ended by signal 9"),
]


@pytest.mark.parametrize(("code", "values", "note"), COMMANDS, ids=[row[0] for row in COMMANDS])
def test_a_command_is_scored_by_its_output_or_exit_code(
    root: Path, code: str, values: dict[str, float], note: str
) -> None:
    measurer = local_measurer()
    score = only(measure(measurer, suite_of(python(code)), measurer.snapshot(root)))
    assert score.values == values
    assert score.note.startswith(note)
    assert bool(score.note) == bool(note)


def test_a_command_that_takes_too_long_gives_no_verdict(root: Path) -> None:
    measurer = local_measurer()
    suite = suite_of(python("import time; time.sleep(60)", timeout=0.3))
    score = only(measure(measurer, suite, measurer.snapshot(root)))
    assert (score.values, score.note) == ({WHOLE: 0}, "stopped after 0.3 s")
    assert not score.verdict


@pytest.mark.usefixtures("unconfined")
@pytest.mark.parametrize(("kills", "verdict"), [(1, True), (2, False), (3, False)])
def test_a_command_without_a_verdict_is_run_once_more(
    root: Path, tmp_path: Path, kills: int, verdict: bool
) -> None:
    """Given a command that is killed this many times before it scores."""
    log = tmp_path / "log"
    code = (
        f"import os; open({str(log)!r}, 'a').write('x')\n"
        f"if len(open({str(log)!r}).read()) <= {kills}: os.kill(os.getpid(), 9)"
    )
    measurer = local_measurer()
    suite, state = suite_of(python(code)), measurer.snapshot(root)
    score = only(measure(measurer, suite, state))
    assert (score.verdict, score.mean) == (verdict, 1.0 if verdict else 0.0)
    assert only(measure(measurer, suite, state)) == score
    assert log.read_text() == "xx"


def test_a_command_without_a_cluster_must_print_cluster_scores(root: Path) -> None:
    measurer = local_measurer()
    named = python("""print('{"scores": {"a": 0.5}}')""", cluster=None)
    silent = python("pass", cluster=None, id="u")
    scores = measure(measurer, suite_of(named, silent), measurer.snapshot(root))
    assert [score.values for score in scores.runs[0]] == [{"a": 0.5}, {}]
    assert "u: its score counts for no cluster" in scores.notes[0]


def test_commands_work_on_a_copy(root: Path) -> None:
    """A command's changes reach neither the tree nor the next command."""
    code = (
        "import pathlib, os; here = pathlib.Path.cwd()\n"
        f"assert here != pathlib.Path({str(root)!r})\n"
        "assert (here / 'value.txt').read_text() == '0.25'\n"
        "(here / 'value.txt').unlink(); (here / 'new').write_text('x')"
    )
    measurer = local_measurer()
    suite = suite_of(python(code), python(code, id="u"))
    scores = measure(measurer, suite, measurer.snapshot(root))
    assert [score.values for score in scores.runs[0]] == [{WHOLE: 1}, {WHOLE: 1}], scores.notes
    assert list(root.iterdir()) == [root / "value.txt"]


def test_seeds_are_fixed(root: Path) -> None:
    """The same before and after an edit, and different for each repeat."""
    suite = suite_of(
        python("import os; print({'score': 0} and '{\"scores\": {\"%s\": 1}}' "
               "% os.environ['MULLIGAN_SEED'])")
    )  # fmt: skip
    measurer = local_measurer()
    before = measurer.snapshot(root)
    (root / "value.txt").write_text("other")
    after = measurer.snapshot(root)
    seeds = {
        (state, repeat): next(iter(only(measure(measurer, suite, state, repeat=repeat)).values))
        for state in (before, after)
        for repeat in (0, 1)
    }
    assert seeds[before, 0] == seeds[after, 0] == str(suite.seed_of("t", 0))
    assert seeds[before, 1] == seeds[after, 1] == str(suite.seed_of("t", 1))


# -- states ----------------------------------------------------------------------------------------


def test_an_earlier_state_of_a_tree_can_be_measured(root: Path) -> None:
    suite = suite_of(
        python("print('{\"score\": %s}' % open('value.txt').read())"), deterministic=True
    )
    measurer = local_measurer()
    before = measurer.snapshot(root)
    (root / "value.txt").write_text("0.75")
    after = measurer.snapshot(root)
    (root / "value.txt").unlink()
    scores = {state: measure(measurer, suite, state) for state in (after, before)}
    assert only(scores[before]).mean == 0.25
    found = compare(scores[before], scores[after], suite=suite, target="c", max_regression=0.05)
    assert (found.decision, found.delta, found.cluster_deltas) == (KeepEdit(), 0.5, {"c": 0.5})
    back = compare(scores[after], scores[before], suite=suite, target="c", max_regression=0.05)
    assert back.decision == RejectEdit("regression")


def test_a_state_is_identified_by_its_content(root: Path) -> None:
    measurer = local_measurer(home=root / "state")
    first = measurer.snapshot(root)
    # It excludes mulligan's folder, version control, caches and links out of the tree.
    for folder in ("state", ".git", "__pycache__"):
        (root / folder).mkdir()
        (root / folder / "file").write_text("x")
    (root / "out").symlink_to("/etc")
    assert measurer.snapshot(root) == first
    (root / "value.txt").chmod(0o755)
    assert measurer.snapshot(root) != first


def test_a_tree_over_the_cap_is_refused(root: Path) -> None:
    (root / "large").write_bytes(b"x" * 2000)
    with pytest.raises(BadInput, match="1000 bytes of files"):
        local_measurer(cap=100).snapshot(root)


def test_a_missing_state_is_reported() -> None:
    measurer, suite = local_measurer(), suite_of(python("pass"))
    with pytest.raises(MissingBlob):
        measurer.poll(suite, SuiteRuns(session="s", state="sha256:00", repeat=0))


# -- stored scores ---------------------------------------------------------------------------------


@pytest.fixture
def new_store(ledger: RedisLedger) -> Callable[[], ScoreStore]:
    """Open the stored scores as another process does."""
    return lambda: RedisScores(ledger.calls, prefix="mulligan", retention=100)


@pytest.mark.usefixtures("unconfined")
def test_unchanged_tasks_are_not_run_again(
    root: Path, tmp_path: Path, new_store: Callable[[], ScoreStore]
) -> None:
    log = tmp_path / "log"
    suite = suite_of(python(f"open({str(log)!r}, 'a').write('x')"))

    def runs_after(**run: Any) -> int:
        measurer = local_measurer(new_store())
        scores = measure(measurer, suite, measurer.snapshot(root), **run)
        assert only(scores).values == {WHOLE: 1}
        return len(log.read_text())

    assert runs_after() == 1
    assert runs_after() == 1  # a repeated step
    assert runs_after(repeat=1) == 2
    assert runs_after(session="another") == 3
    (root / "value.txt").write_text("other")
    assert runs_after() == 4
    (root / "value.txt").write_text("0.25")
    assert runs_after() == 4  # rolled back: this state was measured


def test_a_step_ends_after_its_time_slice(root: Path) -> None:
    """A poll starts no command after its time slice and keeps what was measured."""
    suite = suite_of(*(python("pass", id=name) for name in ("t", "u", "v")))
    measurer = local_measurer(threads=1, time_slice=0)
    runs = measurer.start(suite, measurer.snapshot(root), session="s", repeat=0)
    assert measurer.poll(suite, runs) is None
    assert measurer.poll(suite, runs) is None
    scores = measurer.poll(suite, runs)
    assert scores is not None
    assert [score.task for score in scores.runs[0]] == ["t", "u", "v"]


# -- jobs ------------------------------------------------------------------------------------------

SMALL = {"kind": "scripted", "answers": ["nothing", '{"a": 1}']}
GOOD = {"kind": "scripted", "answers": ['{"a": 1}']}


@pytest.fixture
def stack(ledger: RedisLedger, settings: SettingsMaker) -> Iterator[LocalStack]:
    """A real ledger with worker threads."""
    profiles = {"small": SMALL, "good": GOOD}
    accept = [sys.executable, "-c", "print(open('value.txt').read()); open('sub/x')"]
    commands = {"has_sub": {"argv": accept}}
    with local_stack(settings(runners=profiles, commands=commands), ledger) as running:
        yield running


def measurer_of(stack: LocalStack) -> SuiteMeasurer:
    assert isinstance(stack.ledger, RedisLedger)
    return suite_measurer(stack.services.settings, stack.ledger, stack.intake, commands=False)


def job(name: str = "j", **fields: Any) -> dict[str, Any]:
    described = {"prompt": "p", "runner": "good", "verifiers": ["json.object"], **fields}
    if "prompt_file" in fields:
        del described["prompt"]
    return {"id": name, "cluster": "asking", "job": described}


def test_jobs_score_by_their_first_attempt(root: Path, stack: LocalStack) -> None:
    """Given a second answer that would be right, then only the first counts."""
    (root / "sub").mkdir()
    (root / "sub/x").write_text("x")
    (root / "ask.md").write_text("Who is {{name}}?")
    suite = suite_of(
        job("right"),
        job("wrong", runner="small"),
        job("file", prompt_file="ask.md", vars={"name": "Ada"}),
        job("tree", workspace={"path": "."}, verifiers=[{"id": "command.subprocess", "command":
            "has_sub"}]),
        job("part", workspace={"path": "sub"}, verifiers=[{"id": "command.subprocess", "command":
            "has_sub"}]),
    )  # fmt: skip
    measurer = measurer_of(stack)
    state = measurer.snapshot(root)
    runs = measurer.start(suite, state, session="s", repeat=0)
    scores = measure(measurer, suite, state)
    values = {score.task: score.values[WHOLE] for score in scores.runs[0]}
    assert values == {"right": 1, "wrong": 0, "file": 1, "tree": 1, "part": 0}
    views = {name: stack.ledger.job(job_id) for name, job_id in runs.jobs.items()}
    from_file = views["file"]
    assert from_file is not None
    assert (from_file.job.prompt, from_file.job.task_type) == ("Who is Ada?", "benchmark")
    wrong = views["wrong"]
    assert wrong is not None
    assert wrong.job.policy.max_attempts == 1  # a second attempt would not count
    # A low score is a measurement and needs no attention.
    assert stack.ledger.escalations() == []
    assert len(stack.ledger.jobs()) == 5  # starting twice submits the jobs once


def test_only_jobs_that_changed_are_submitted_again(root: Path, stack: LocalStack) -> None:
    (root / "ask.md").write_text("Who is this?")
    suite = suite_of(job("file", prompt_file="ask.md"), job("fixed"))
    measurer = measurer_of(stack)

    def start(**run: Any) -> dict[str, str]:
        state = measurer.snapshot(root)
        return measurer.start(suite, state, **{"session": "s", "repeat": 0, **run}).jobs

    before = start()
    (root / "ask.md").write_text("Who is that?")
    after = start()
    assert after["fixed"] == before["fixed"]
    assert after["file"] != before["file"]
    assert not set(start(repeat=1).values()) & set(after.values())
    assert not set(start(session="another").values()) & set(after.values())


def test_a_job_whose_files_are_missing_scores_0(root: Path, stack: LocalStack) -> None:
    suite = suite_of(job("file", prompt_file="gone.md"), job("part", workspace={"path": "gone"}))
    measurer = measurer_of(stack)
    scores = measure(measurer, suite, measurer.snapshot(root))
    assert [score.mean for score in scores.runs[0]] == [0, 0]
    assert scores.notes == (
        "file: prompt_file: there is no file gone.md in the tree",
        "part: workspace.path: there is no folder gone in the tree",
    )
    assert stack.ledger.jobs() == []


def test_a_cancelled_job_is_submitted_once_more(root: Path, stack: LocalStack) -> None:
    suite = suite_of(job(), python("pass"))
    measurer = SuiteMeasurer(blobs=fake_blobs(), store=MemoryScores(), intake=stack.intake)
    stack.ledger.pause("task_type:benchmark")
    runs = measurer.start(suite, measurer.snapshot(root), session="s", repeat=0)
    assert measurer.poll(suite, runs) is None  # never waits for a job
    stack.ledger.cancel(runs.jobs["j"])
    assert measurer.poll(suite, runs) is None
    assert measurer.poll(suite, runs) is None
    (second,) = {view.id for view in stack.ledger.jobs()} - set(runs.jobs.values())
    stack.ledger.cancel(second)
    scores = measurer.poll(suite, runs)
    assert scores is not None
    assert [(score.mean, score.verdict) for score in scores.runs[0]] == [(0, False), (1, True)]
    assert "was cancelled" in scores.notes[0]


def test_a_runner_that_takes_a_seed_gets_the_repeat_s_seed(
    root: Path, ledger: RedisLedger, settings: SettingsMaker
) -> None:
    model = {"kind": "openai", "base_url": "http://127.0.0.1:9/v1", "model": "m"}
    with local_stack(settings(runners={"model": model, "good": GOOD}), ledger) as stack:
        stack.ledger.pause("task_type:benchmark")
        measurer = measurer_of(stack)
        suite = suite_of(
            job("a", runner="model"), job("b"), job("c", runner={"profile": "model", "seed": 3})
        )
        runs = measurer.start(suite, measurer.snapshot(root), session="s", repeat=1)
        views = {name: stack.ledger.job(job_id) for name, job_id in runs.jobs.items()}
        seeds = {name: v and v.job.runner.options.get("seed") for name, v in views.items()}
        assert seeds == {"a": suite.seed_of("a", 1), "b": None, "c": 3}


# -- problems --------------------------------------------------------------------------------------


def test_problems_are_reported_before_anything_runs(root: Path, stack: LocalStack) -> None:
    suite = suite_of(
        {"id": "a", "cluster": "c", "command": ["no-such-program"]},
        {"id": "b", "cluster": "c", "command": ["./value.txt"]},
        job("d", runner="smal"),
        job("e", prompt_file="gone.md"),
        python("pass"),
    )
    measurer = SuiteMeasurer(blobs=fake_blobs(), store=MemoryScores(), intake=stack.intake)
    assert list(map(str, measurer.problems(suite, root))) == [
        "tasks[0].command: there is no program 'no-such-program' on this host",
        "tasks[1].command: ./value.txt does not exist or is not executable",
        "tasks[2].job.runner.profile: no profile 'smal'; did you mean 'small'?",
        "tasks[3].job.prompt_file: there is no file gone.md in the tree",
    ]
    assert measurer.problems(suite_of(job(), python("pass")), root) == []


def test_queued_plans_may_not_bring_commands(root: Path, stack: LocalStack) -> None:
    """A plan carries no authority: the workers' configuration names what it may run."""
    (problem,) = measurer_of(stack).problems(suite_of(python("pass")), root)
    assert problem.path == ("tasks", 0, "command")
    assert problem.code == "not_allowed"
    assert "allow_inline" in problem.message


def test_jobs_need_workers(root: Path) -> None:
    (problem,) = local_measurer().problems(suite_of(job()), root)
    assert "jobs need workers" in problem.message


def test_runs_are_kept_as_json(root: Path) -> None:
    """Another process continues what this one started."""
    measurer, suite = local_measurer(), suite_of(python("pass"))
    runs = measurer.start(suite, measurer.snapshot(root), session="s", repeat=0)
    again = SuiteRuns.model_validate(json.loads(runs.model_dump_json()))
    assert only(measurer.poll(suite, again) or SuiteScores()).mean == 1
