"""Job files: their shapes, and the messages for invalid ones."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from mulligan.console.jobfiles import source_document as documents
from mulligan.console.jobfiles.job_file import check_jobs, find_jobs
from mulligan.policies.jobs.job import Job
from mulligan.policies.problem import Problem
from mulligan.tasks.ports.errors import BadInput

ONE = """\
task_type: greet
prompt: Say hello.
runner: small
verifiers: [json.object]
"""


def load_jobs(paths: list[str]) -> list[Job]:
    return [found.job for found in find_jobs(paths)]


def write(folder: Path, text: str | bytes, name: str = "jobs.yaml") -> str:
    path = folder / name
    path.write_bytes(dedent(text).encode() if isinstance(text, str) else text)
    return str(path)


def problems_of(folder: Path, text: str | bytes, name: str = "jobs.yaml") -> list[str]:
    """Return the problems of a file, without the folder's name."""
    path = write(folder, text, name)
    with pytest.raises(BadInput) as caught:
        load_jobs([path])
    return [str(problem).replace(f"{folder}/", "") for problem in caught.value.problems]


# -- shapes ---------------------------------------------------------------------------------------


def test_a_file_holds_a_job_a_list_or_jobs(tmp_path: Path) -> None:
    raw = {"task_type": "a", "prompt": "p", "runner": "small", "verifiers": ["json.object"]}
    shapes: list[Any] = [raw, [raw], {"jobs": [raw]}]
    for number, shape in enumerate(shapes):
        for suffix in ("json", "yaml"):  # JSON is YAML, too
            path = write(tmp_path, json.dumps(shape), f"{number}.{suffix}")
            assert load_jobs([path]) == [Job.model_validate(raw)]


def test_several_files_are_read_in_order(tmp_path: Path) -> None:
    first = write(tmp_path, ONE, "1.yaml")
    second = write(tmp_path, ONE.replace("greet", "part"), "2.yaml")
    assert [job.task_type for job in load_jobs([first, second])] == ["greet", "part"]


def test_a_job_may_have_system_and_messages(tmp_path: Path) -> None:
    text = ONE.replace(
        "prompt: Say hello.", "system: Be short.\nmessages: [{role: user, content: Hi}]"
    )
    job = load_jobs([write(tmp_path, text)])[0]
    assert [message.role for message in job.conversation] == ["system", "user"]


def test_surrogate_pairs_are_joined_and_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    raw = {"task_type": "a", "prompt": "😀", "runner": "s", "verifiers": ["json.object"]}
    path = write(tmp_path, b"\xef\xbb\xbf" + json.dumps(raw).encode(), "a.json")
    assert load_jobs([path])[0].prompt == "😀"


def test_a_date_stays_text(tmp_path: Path) -> None:
    job = load_jobs([write(tmp_path, ONE + "labels: {day: 2026-01-31}\n")])[0]
    assert job.labels == {"day": "2026-01-31"}


def test_paths_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deep").mkdir()
    path = write(tmp_path / "deep", ONE + "workspace: {path: ./exercise}\n")
    monkeypatch.chdir(tmp_path)
    job = load_jobs([path])[0]
    assert job.workspace is not None
    assert job.workspace.path == str(tmp_path / "deep" / "exercise")


# -- defaults -------------------------------------------------------------------------------------

DEFAULTS: dict[str, Any] = {
    "runner": {"kind": "openai", "model": "small", "extra": {"a": 1}},
    "policy": {"max_attempts": 3, "same_failure_limit": 1},
    "labels": {"suite": "demo"},
}


@pytest.mark.parametrize(
    ("runner", "expected"),
    [
        # A missing field comes from the defaults.
        ({}, DEFAULTS["runner"]),
        # Without a kind or profile, or with the same one, keys merge, at any depth.
        ({"temperature": 0}, {**DEFAULTS["runner"], "temperature": 0}),
        ({"kind": "openai", "model": "x"}, {**DEFAULTS["runner"], "model": "x"}),
        ({"extra": {"b": 2}}, {**DEFAULTS["runner"], "extra": {"a": 1, "b": 2}}),
        # null removes a default.
        ({"extra": None}, {"kind": "openai", "model": "small"}),
        # With another kind or a profile, nothing comes from the default runner.
        ({"kind": "local"}, {"kind": "local"}),
        ("fast", {"profile": "fast"}),
        ({"profile": "fast", "temperature": 0.2}, {"profile": "fast", "temperature": 0.2}),
    ],
)
def test_runners_merge(tmp_path: Path, runner: Any, expected: dict[str, Any]) -> None:
    raw = {"task_type": "a", "prompt": "p", "verifiers": ["json.object"]}
    if runner:
        raw["runner"] = runner
    path = write(tmp_path, json.dumps({"defaults": DEFAULTS, "jobs": [raw]}))
    job = load_jobs([path])[0]
    assert job.runner.model_dump(exclude_none=True) == expected


def test_other_mappings_merge_key_by_key(tmp_path: Path) -> None:
    raw = {
        "task_type": "a",
        "prompt": "p",
        "verifiers": ["json.object"],
        "policy": {"max_attempts": 9},
        "labels": {"who": "me"},
    }
    job = load_jobs([write(tmp_path, json.dumps({"defaults": DEFAULTS, "jobs": [raw]}))])[0]
    assert (job.policy.max_attempts, job.policy.same_failure_limit) == (9, 1)
    assert job.labels == {"suite": "demo", "who": "me"}


def test_a_job_with_a_prompt_ignores_the_default_prompt(tmp_path: Path) -> None:
    write(tmp_path, "Hello {{who}}", "hello.txt")
    text = """\
        defaults: {task_type: a, runner: s, verifiers: [json.object], prompt_file: hello.txt,
                   vars: {who: you, unused: by this one}}
        jobs:
          - {}
          - {prompt: mine}
          - {messages: [{role: user, content: theirs}]}
    """
    jobs = load_jobs([write(tmp_path, text)])
    assert [job.task_text for job in jobs] == ["Hello you", "mine", "theirs"]


# -- prompt files ---------------------------------------------------------------------------------


def with_prompt_file(folder: Path, prompt: str, extra: str = "") -> str:
    write(folder, prompt, "prompt.txt")
    return write(folder, ONE.replace("prompt: Say hello.", "prompt_file: prompt.txt\n" + extra))


def test_placeholders_are_filled_once(tmp_path: Path) -> None:
    path = with_prompt_file(tmp_path, "{{ a }} and {{b}} and {c}", "vars: {a: '{{b}}', b: 3}")
    assert load_jobs([path])[0].prompt == "{{b}} and 3 and {c}"


@pytest.mark.parametrize(
    ("prompt", "extra", "expected"),
    [
        ("{{a}}", "", "vars: prompt.txt asks for {{a}}, which is not given"),
        ("hi", "vars: {a: 1}", "vars.a: prompt.txt has no {{a}}"),
        ("{{a}}", "vars: {a: [1]}", "vars.a: must be text or a number"),
        ("{{a}}", "vars: [a]", "vars: must be a mapping of names to values"),
        (" ", "", "prompt_file: prompt.txt: is empty"),
        ("hi", "prompt: too", "prompt_file: give either a prompt or a prompt_file"),
    ],
)
def test_an_invalid_prompt_file_is_refused(
    tmp_path: Path, prompt: str, extra: str, expected: str
) -> None:
    with pytest.raises(BadInput) as caught:
        load_jobs([with_prompt_file(tmp_path, prompt, extra)])
    assert len(caught.value.problems) == 1
    assert str(caught.value).endswith(expected)


def test_a_missing_prompt_file_is_named_with_its_line(tmp_path: Path) -> None:
    text = ONE.replace("prompt: Say hello.", "prompt_file: none.txt")
    assert problems_of(tmp_path, text) == [
        "jobs.yaml:2: prompt_file: none.txt: there is no such file"
    ]


# -- problems and their places --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "jobs.yaml: is empty; `mulligan init` writes an example"),
        ("# only a comment\n", "jobs.yaml:1: a job file holds a job, a list of jobs or `jobs:`"),
        ("just text", "jobs.yaml:1: a job file holds a job, a list of jobs or `jobs:`"),
        ("[]", "jobs.yaml:1: there are no jobs in it"),
        ("jobs: []", "jobs.yaml:1: jobs: there are no jobs in it"),
        ("jobs: {a: 1}", "jobs.yaml:1: jobs: must be a list of jobs"),
        ("defaults: {}", "jobs.yaml:1: defaults: is only of use beside `jobs:`"),
        ("jobs: [1]\ndefaults: 3", "jobs.yaml:2: defaults: must be a mapping of job fields"),
        ("a: 1\nb: [2\n", "jobs.yaml:3: broken YAML: expected ',' or ']'"),
        ("a: 1\na: 2\n", 'jobs.yaml:2: duplicate key "a": give it once'),
        ("a:\n\tb: 1\n", "jobs.yaml:2: broken YAML: a tab; indent with spaces"),
        ("a: !!python/object:os.system x", "jobs.yaml:1: broken YAML: the tag"),
        ("a: 1\n---\nb: 1\n", "jobs.yaml:2: a second document begins here"),
        ("a: &x [*x]\n", "jobs.yaml: expands to too much; does an alias contain itself?"),
        ("1: 2\n", "jobs.yaml:1: the key 1 is not text"),
        ("a: .nan\n", "jobs.yaml:1: nan cannot be kept as JSON"),
        ("a: \x07\n", "jobs.yaml:1: broken YAML: the character"),
        (b"a: 1\nb: \xff\xfe\n", "jobs.yaml:2: is not UTF-8 (byte 0xff); save it as UTF-8"),
    ],
)
def test_an_unreadable_file_is_refused(tmp_path: Path, text: str | bytes, expected: str) -> None:
    problems = problems_of(tmp_path, text)
    assert len(problems) == 1
    assert problems[0].startswith(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 1,}', "jobs.json:1: broken JSON:"),
        ('{"a": 1,\n "a": 2}', "jobs.json: a: is given twice"),
        ('{"a": NaN}', "jobs.json: NaN is not JSON"),
        ("[" * 5000, "jobs.json: is nested too deeply"),
        ("[" * 201 + "]" * 201, "jobs.json: is nested too deeply"),
    ],
)
def test_invalid_json_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    assert problems_of(tmp_path, text, "jobs.json")[0].startswith(expected)


def test_exponential_aliases_are_refused(tmp_path: Path) -> None:
    levels = [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 12)]
    text = "\n".join(["l0: &l0 [1]", *levels])
    assert "expands to too much" in problems_of(tmp_path, text)[0]


def test_missing_files_directories_and_huge_files_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "MAX_BYTES", 10)
    huge = write(tmp_path, "a" * 11)
    with pytest.raises(BadInput) as caught:
        load_jobs([str(tmp_path / "none.yaml"), str(tmp_path), huge])
    assert [problem.message for problem in caught.value.problems] == [
        "there is no such file",
        "is a directory; name a file in it",
        "is over 0 MB; is it the right file?",
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("promt: x", "jobs.yaml:5: promt: there is no such field; did you mean 'prompt'?"),
        ("zzz: x", "jobs.yaml:5: zzz: there is no such field"),
        (
            "policy: {max_atempts: 3}",
            "jobs.yaml:5: policy.max_atempts: there is no such field; did you mean 'max_attempts'?",
        ),
        ("policy: {max_attempts: 0}", "jobs.yaml:5: policy.max_attempts: must be at least"),
        ("budget: {seconds: 5 minutes}", "jobs.yaml:5: budget.seconds: '5 minutes' is not a dur"),
        ("workspace: {output_file: a.py}", "jobs.yaml:5: workspace: a workspace needs a path"),
        (
            "workspace: {path: ., output_file: ../a}",
            "jobs.yaml:5: workspace.output_file: '../a' is not inside the workspace",
        ),
        ("vars: {a: 1}", "jobs.yaml:5: vars: has no effect without prompt_file"),
        (
            "messages: [{role: user, content: x}]",
            "jobs.yaml:2: prompt: give either a prompt or mess",
        ),
    ],
)
def test_an_invalid_field_is_reported_with_its_line(
    tmp_path: Path, line: str, expected: str
) -> None:
    problems = problems_of(tmp_path, ONE + line + "\n")
    assert len(problems) == 1
    assert problems[0].startswith(expected)


def test_all_problems_of_all_files_are_reported_at_once(tmp_path: Path) -> None:
    first = write(
        tmp_path,
        """\
        defaults:
          runner: s
          polcy: {}
        jobs:
          - task_type: a
            prompt: p
            verifiers: [{weight: 3}]
          - prompt: p
            verifiers: []
          - just text
        """,
        "1.yaml",
    )
    second = write(tmp_path, ONE + "extra: 1\njobs: [a]\n", "2.yaml")
    with pytest.raises(BadInput) as caught:
        load_jobs([first, second, str(tmp_path / "3.yaml")])
    problems = [str(problem).replace(f"{tmp_path}/", "") for problem in caught.value.problems]
    assert problems[:4] == [
        "1.yaml:7: jobs[0].verifiers[0].id: is required",
        # A mistake in the defaults is reported once, not per job.
        "1.yaml:3: defaults.polcy: there is no such field; did you mean 'policy'?",
        "1.yaml:8: jobs[1].task_type: is required",
        "1.yaml:9: jobs[1].verifiers: must have 1 or more items",
    ]
    assert problems[4].startswith("1.yaml:10: jobs[2]: a job is a mapping")
    # Only `defaults:` is allowed beside `jobs:`.
    beside = [line for line in problems if line.startswith("2.yaml")]
    assert beside[0].startswith("2.yaml:1: task_type: there is no such field beside `jobs:`")
    assert problems[-1] == "3.yaml: there is no such file"


def test_problems_of_later_checks_have_a_line_too(tmp_path: Path) -> None:
    text = """\
        defaults: {runner: {kind: scripted, answers: [a]}}
        jobs:
          - task_type: a
            prompt: p
            verifiers:
              - json.object
              - id: contract.schema
                schema: {}
    """
    found = find_jobs([write(tmp_path, text)])
    odd = Problem("is odd", ("verifiers", 1, "schema"))
    with pytest.raises(BadInput) as caught:
        check_jobs(found, lambda _: [odd, Problem.at("runner.answers", "are few")])
    problems = [str(problem).replace(f"{tmp_path}/", "") for problem in caught.value.problems]
    assert problems == [
        "jobs.yaml:8: jobs[0].verifiers[1].schema: is odd",
        "jobs.yaml:1: defaults.runner.answers: are few",
    ]
