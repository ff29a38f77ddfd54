"""Job files, good and bad, that the loader and the JSON Schema must agree on.

They name a profile ``small`` and a command ``lint``, and expect a directory ``exercise`` and
a file ``hello.txt`` that asks for ``{{who}}``.
"""

from __future__ import annotations

import re
from typing import Any

CONTRACT = {"id": "contract.schema", "schema": {"type": "object", "required": ["a"]}}


def is_loop_file(block: str) -> bool:
    """Whether the first line of an example in a document names a loop, a template or a spec."""
    return re.match(r"# (loop\.yaml|templates/|specs/)", block) is not None


def job(**changes: Any) -> dict[str, Any]:
    fields = {
        "task_type": "greet",
        "prompt": "Say hello.",
        "runner": "small",
        "verifiers": ["json.object"],
        **changes,
    }
    return {name: value for name, value in fields.items() if value is not ...}


def runner(**options: Any) -> dict[str, Any]:
    return job(runner={"kind": "openai", "model": "m", **options})


def verifier(**options: Any) -> dict[str, Any]:
    return job(verifiers=[options], workspace={"path": "exercise"})


def with_defaults(defaults: Any, *jobs: Any) -> dict[str, Any]:
    return {"defaults": defaults, "jobs": list(jobs)}


#: Files that both accept, by name.
VALID: dict[str, Any] = {
    "one": job(),
    "list": [job(), job()],
    "jobs": {"jobs": [job()]},
    "jobs and no defaults": with_defaults(None, job()),
    "everything": job(
        name="größe 1",
        system="Be short.",
        policy={"max_attempts": 2, "same_failure_limit": 1, "escalate_on": ["tool_error"]},
        budget={"tokens": 5, "seconds": "10m"},
        labels={"a": "b"},
        idempotency_key="k",
        workspace={"path": "exercise", "output_file": "src/a.py", "protect": ["tests/**"]},
        delayed_verification={"after": "1.5h", "mode": "recheck"},
        memory_scope="input",
        deadline=" 90 ",
        priority=0,
    ),
    "messages": job(prompt=..., messages=[{"role": "user", "content": "Hi"}]),
    "prompt file": job(prompt=..., prompt_file="hello.txt", vars={"who": 3}),
    "prompt and no messages": job(messages=[]),
    "null for optional fields": job(name=None, workspace=None, budget={"tokens": None}),
    "bare verifiers": job(verifiers=["json.object", "command.subprocess"]),
    "verifier with common fields": job(
        verifiers=[{**CONTRACT, "weight": 0.5, "name": "x", "required": False}]
    ),
    "any contract": verifier(id="contract.schema", schema=True),
    "draft-07 contract": verifier(
        id="contract.schema",
        schema={
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": ["array", "null"],
            "items": [{"type": "string"}],
        },
    ),
    "text.match": verifier(id="text.match", contains="a", regex=["b"], max_length=3),
    "pytest.subprocess": verifier(id="pytest.subprocess", args=["-x"], timeout="20s"),
    "command by name": verifier(id="command.subprocess", command="lint"),
    "command inline": verifier(id="command.subprocess", argv=["true"], expect_exit=1),
    "profile": job(runner={"profile": "small", "temperature": 0.2, "stop": "x", "timeout": "1s"}),
    "openai": runner(
        api_key_env="KEY",
        stop=["a"],
        fallbacks=["large", {"model": "larger", "temperature": 1}],
        extra={"top_p": 1},
        constrain="none",
    ),
    "command runner": job(runner={"kind": "command", "argv": ["x"], "limits": {"processes": 3}}),
    "local": job(runner={"kind": "local", "idle_exit": "5m"}),
    "scripted": job(
        runner={
            "kind": "scripted",
            "answers": ["a", {"text": "b", "delay": 1, "fault": {"status": 500}}],
        }
    ),
    "all from the defaults": with_defaults(job(), {}, {"prompt": "Other."}),
    "a part over a part": with_defaults(
        {**runner(temperature=1), "policy": {"max_attempts": 9}, "labels": {"a": "b"}},
        {
            "runner": {"max_tokens": 3},
            "policy": {"same_failure_limit": 1},
            "labels": {"a": None, "c": "d"},
        },
    ),
    "another runner": with_defaults(runner(), {"runner": {"kind": "local"}}, {"runner": "small"}),
    "null removes a default": with_defaults(
        {**runner(timeout=3), "policy": {"max_attempts": 2}, "workspace": {"path": "exercise"}},
        {"policy": None, "workspace": None, "runner": {"timeout": None}},
    ),
    "a path and its file": with_defaults(
        job(workspace={"path": "exercise"}), {"workspace": {"output_file": "a.py"}}
    ),
    "vars from the defaults": with_defaults(
        job(prompt=..., vars={"who": "you"}), {"prompt_file": "hello.txt"}
    ),
}

#: Files that both refuse, by name.
INVALID: dict[str, Any] = {
    "nothing": None,
    "text": "job",
    "an empty list": [],
    "an empty mapping": {},
    "no jobs": {"jobs": []},
    "jobs that is no list": {"jobs": job()},
    "a job that is no mapping": ["job"],
    "defaults alone": {"defaults": job()},
    "a field beside jobs": {"jobs": [job()], "runner": "small"},
    "defaults that are a list": with_defaults([1], job()),
    "a misspelt field": job(promt="x"),
    "no task type": job(task_type=...),
    "a bad name": job(task_type="-x"),
    "no runner": job(runner=...),
    "no verifiers": job(verifiers=...),
    "empty verifiers": job(verifiers=[]),
    "too many verifiers": job(verifiers=["json.object"] * 51),
    "no prompt": job(prompt=...),
    "an empty prompt": job(prompt=""),
    "two prompts": job(messages=[{"role": "user", "content": "Hi"}]),
    "a prompt and a file": job(prompt_file="hello.txt", vars={"who": 1}),
    "vars without a file": job(vars={"a": 1}),
    "vars of lists": job(prompt=..., prompt_file="hello.txt", vars={"who": [1]}),
    "empty messages": job(prompt=..., messages=[]),
    "an unknown role": job(prompt=..., messages=[{"role": "usr", "content": "Hi"}]),
    "a misspelt limit": job(policy={"max_atempts": 3}),
    "no attempts": job(policy={"max_attempts": 0}),
    "an unknown kind of failure": job(policy={"escalate_on": ["odd"]}),
    "half a token": job(budget={"tokens": 0.5}),
    "a bad duration": job(budget={"seconds": "5 minutes"}),
    "a negative duration": job(deadline=-1),
    "labels that are no text": job(labels={"a": 1}),
    "an empty key": job(idempotency_key=""),
    "a workspace without a path": job(workspace={"output_file": "a.py"}),
    "a way out of the workspace": job(workspace={"path": "exercise", "output_file": "a/../../b"}),
    "an absolute output file": job(workspace={"path": "exercise", "output_file": "/a"}),
    "another mode": job(delayed_verification={"mode": "rerun"}),
    "an unknown scope": job(memory_scope="fleet"),
    "a low priority": job(priority=10),
    "an unknown verifier": job(verifiers=["json.objet"]),
    "a mapping with an unknown verifier": verifier(id="json.objet"),
    "a verifier without an id": verifier(weight=2),
    "a verifier without weight": verifier(id="json.object", weight=0),
    "an option of another verifier": verifier(id="json.object", schema={}),
    "a contract without a schema": verifier(id="contract.schema"),
    "a bare contract": job(verifiers=["contract.schema"]),
    "a schema of an unknown type": verifier(id="contract.schema", schema={"type": "strnig"}),
    "a schema that is text": verifier(id="contract.schema", schema="Person"),
    "text.match of nothing": verifier(id="text.match", ignore_case=True),
    "bare text.match": job(verifiers=["text.match"]),
    "a misspelt option": verifier(id="text.match", contain="a"),
    "no time at all": verifier(id="pytest.subprocess", timeout="0s"),
    "too much time": verifier(id="pytest.subprocess", timeout=3601),
    "an impossible exit code": verifier(id="command.subprocess", argv=["a"], expect_exit=256),
    "a shell line": verifier(id="command.subprocess", argv="true"),
    "a runner that is neither": job(runner={"temperature": 1}),
    "a runner that is both": job(runner={"kind": "local", "profile": "small"}),
    "an unknown kind": job(runner={"kind": "opnai", "model": "m"}),
    "a profile with another model": job(runner={"profile": "small", "model": "other"}),
    "a bad override": job(runner={"profile": "small", "temperature": 3}),
    "no model": job(runner={"kind": "openai"}),
    "an option of another kind": job(runner={"kind": "local", "base_url": "http://h"}),
    "a key": runner(api_key="sk-1"),
    "a key for a name": runner(api_key_env="sk-1"),
    "no URL": runner(base_url="127.0.0.1:80"),
    "a password": runner(base_url="http://me:secret@host/v1"),
    "an option that the runner sets": runner(extra={"model": "x"}),
    "a misspelt fallback": runner(fallbacks=[{"modle": "x"}]),
    "no program": job(runner={"kind": "command", "argv": []}),
    "a variable with its value": job(runner={"kind": "command", "argv": ["x"], "env": ["A=b"]}),
    "an unknown limit": job(runner={"kind": "command", "argv": ["x"], "limits": {"disk": 1}}),
    "no answers": job(runner={"kind": "scripted", "answers": []}),
    "an answer that is a number": job(runner={"kind": "scripted", "answers": [3]}),
    "an unknown part of an answer": job(runner={"kind": "scripted", "answers": [{"txt": "a"}]}),
    "no task type anywhere": with_defaults(job(task_type=...), {}),
    "no prompt anywhere": with_defaults(job(prompt=...), {"name": "x"}),
    "no runner anywhere": with_defaults(job(runner=...), {}),
    "no verifiers anywhere": with_defaults(job(verifiers=...), {"task_type": "x"}),
    "a misspelt default": with_defaults({**job(), "polcy": {}}, {}),
    "a misspelt option over a default": with_defaults(runner(), {"runner": {"max_token": 3}}),
    "a misspelt limit over a default": with_defaults(job(), {"policy": {"max": 3}}),
    "two prompts over defaults": with_defaults(job(), {"prompt": "a", "prompt_file": "hello.txt"}),
}

#: Files that only the loader refuses, because that takes mulligan.toml, files or Python.
LOADER_ONLY: dict[str, Any] = {
    "an unknown profile": job(runner="smal"),
    "an unknown command": verifier(id="command.subprocess", command="lnit"),
    "a missing file": job(prompt=..., prompt_file="none.txt"),
    "an unused value": job(prompt=..., prompt_file="hello.txt", vars={"who": 1, "a": 2}),
    "a missing directory": job(workspace={"path": "none"}),
    "a workspace that is needed": job(verifiers=["pytest.subprocess"]),
    "a protected file": job(workspace={"path": "exercise", "output_file": "test_a.py"}),
    "the last message is not the user's": job(
        prompt=..., messages=[{"role": "assistant", "content": "Hi"}]
    ),
    "a broken pattern": verifier(id="text.match", regex="("),
    "limits that exclude each other": verifier(id="text.match", min_length=3, max_length=2),
    "an argument that hides the run": verifier(id="pytest.subprocess", args=["--pdb"]),
    "a reference to nowhere": verifier(id="contract.schema", schema={"$ref": "#/$defs/none"}),
    "too much time as text": verifier(id="pytest.subprocess", timeout="2h"),
}
