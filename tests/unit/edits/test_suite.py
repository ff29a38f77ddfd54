"""Suites: valid files, and the message for each invalid one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mulligan.console.jobfiles.suite_file import SuiteFile
from mulligan.policies.edits.suite import (
    WHOLE,
    Suite,
    SuiteRuns,
    SuiteScores,
    SuiteTask,
    TaskScore,
    content_digest,
    run_key,
)
from mulligan.policies.problem import Problem

GOOD = """\
repeats: 3
confidence: 0.95
seed: 4
tasks:
  - {id: unit, cluster: parsing, command: [python, -m, pytest, -q], timeout: 2m}
  - {id: scorer, command: [python, score.py]}
  - id: asks
    cluster: extraction
    job:
      prompt_file: prompts/extract.md
      vars: {name: Ada}
      runner: small
      verifiers: [json.object]
      workspace: {path: .}
"""


def write(folder: Path, text: str, name: str = "suite.yaml") -> str:
    (folder / name).write_text(text)
    return name  # tests run in tmp_path


def test_a_suite_file_is_read(tmp_path: Path) -> None:
    suite = SuiteFile.read(write(tmp_path, GOOD)).suite
    assert suite is not None
    assert [task.id for task in suite.tasks] == ["unit", "scorer", "asks"]
    assert suite.tasks[0].timeout == 120
    assert (suite.repeats, suite.runs, suite.confidence, suite.seed) == (3, 3, 0.95, 4)
    assert suite.clusters is None  # scorer prints its clusters


def test_a_suite_may_be_json(tmp_path: Path) -> None:
    raw = {"deterministic": True, "tasks": [{"id": "t", "cluster": "c", "command": ["x"]}]}
    suite = SuiteFile.read(write(tmp_path, json.dumps(raw), "suite.json")).suite
    assert suite is not None
    assert suite.runs == 1  # whatever the number of repeats
    assert suite.clusters == ("c",)


def task(more: str) -> str:
    return f"tasks:\n  - id: t\n    cluster: c\n    {more}\n"


def job(more: str) -> str:
    return task(
        f"job:\n      prompt: p\n      runner: small\n      verifiers: [json.object]\n{more}"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[]\n", "suite.yaml:1: a suite is a mapping with `tasks:`"),
        ("repeats: 3\n", "suite.yaml:1: tasks: is required"),
        ("tasks: []\n", "suite.yaml:1: tasks: must have 1 or more items"),
        (task("comand: [x]\n    command: [y]"),
         "suite.yaml:4: tasks[0].comand: there is no such field; did you mean 'command'?"),
        ("repeat: 3\n" + task("command: [x]"),
         "suite.yaml:1: repeat: there is no such field; did you mean 'repeats'?"),
        (task("command: python score.py"),
         "suite.yaml:4: tasks[0].command: must be a list, such as [python, score.py]"),
        (task("command: []"), "suite.yaml:4: tasks[0].command: name a program, as in [python, "
                              "score.py]"),
        (task("timeout: 5"), "suite.yaml:2: tasks[0]: give either a command or a job"),
        (task("command: [x]\n    timeout: 0"),
         "suite.yaml:5: tasks[0].timeout: must be greater than 0"),
        ("tasks:\n  - {id: t, command: [x]}\n  - {id: t, command: [y]}\n",
         "suite.yaml:3: tasks[1].id: 't' is used twice"),
        ("tasks:\n  - {id: t, job: {prompt: p, runner: r, verifiers: [json.object]}}\n",
         "suite.yaml:2: tasks[0].cluster: is required, because a job counts for a cluster"),
        (job("    timeout: 3"),
         "suite.yaml:8: tasks[0].timeout: is for commands; a job has budget.seconds"),
        (job("      task_type: extract"),
         "suite.yaml:8: tasks[0].job.task_type: is not allowed in jobs of a suite; leave it out"),
        (job("      prompt_file: a.md"),
         "suite.yaml:8: tasks[0].job.prompt_file: give either a prompt or a prompt_file"),
        (job("      vars: {a: 1}"),
         "suite.yaml:8: tasks[0].job.vars: has no effect without prompt_file"),
        (job("      workspace: {path: ../other}"),
         "suite.yaml:8: tasks[0].job.workspace.path: ../other leaves the tree; it is relative to "
         "the root"),
        (job("      promt: p"),
         "suite.yaml:8: tasks[0].job.promt: there is no such field; did you mean 'prompt'?"),
        (task("job: {prompt: p, verifiers: [json.object]}"),
         "suite.yaml:4: tasks[0].job.runner: is required"),
        ("confidence: 1\n" + task("command: [x]"),
         "suite.yaml:1: confidence: must be less than 1"),
        ("repeats: 0\n" + task("command: [x]"),
         "suite.yaml:1: repeats: must be at least 1"),
    ],
)  # fmt: skip
def test_each_problem_has_its_line(tmp_path: Path, text: str, expected: str) -> None:
    found = SuiteFile.read(write(tmp_path, text))
    assert found.suite is None
    assert [str(found.source.place(problem)) for problem in found.problems] == [expected]


def test_problems_found_later_have_a_line_too(tmp_path: Path) -> None:
    found = SuiteFile.read(write(tmp_path, GOOD))
    gone = Problem("is gone", ("tasks", 2, "job", "prompt_file"))
    assert str(found.source.place(gone)) == "suite.yaml:10: tasks[2].job.prompt_file: is gone"


# -- values ---------------------------------------------------------------------------------------


def a_task(**fields: Any) -> SuiteTask:
    return SuiteTask(**{"id": "t", "cluster": "c", "command": ("x",), **fields})


def test_a_run_is_identified_by_what_it_does() -> None:
    key = run_key("s", a_task(), 0, "state")
    assert key == run_key(
        "s", a_task(cluster="d"), 0, "state"
    )  # the cluster does not change the run
    others = [
        run_key("s2", a_task(), 0, "state"),
        run_key("s", a_task(id="u"), 0, "state"),
        run_key("s", a_task(command=("y",)), 0, "state"),
        run_key("s", a_task(timeout=3), 0, "state"),
        run_key("s", a_task(), 1, "state"),
        run_key("s", a_task(), 0, "other"),
    ]
    assert len({key, *others}) == 7


def test_the_order_of_keys_does_not_change_the_digest() -> None:
    assert content_digest({"a": 1, "b": 2}) == content_digest({"b": 2, "a": 1})


def test_scores_and_runs_survive_json() -> None:
    one = SuiteScores(runs=((TaskScore(task="t", cluster="c", values={WHOLE: 0.5}, note="so"),),))
    two = one.joined(one)
    assert SuiteScores.model_validate_json(two.model_dump_json()) == two
    assert two.repeats == 2
    assert two.notes == ("t: so",)
    runs = SuiteRuns(
        session="s", state="sha256:1", repeat=0, jobs={"t": "p00-1"}, failed={"u": "no"}
    )
    assert SuiteRuns.model_validate_json(runs.model_dump_json()) == runs
    suite = Suite(tasks=(a_task(), a_task(id="u", command=None, job={"prompt": "p"})))
    assert Suite.model_validate_json(suite.model_dump_json()) == suite
