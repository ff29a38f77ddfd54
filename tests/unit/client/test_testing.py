"""The pytest plug-in, as users use it."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from support.client_models import Person

from mulligan import Client, RepairingTask, Result, install
from mulligan.policies.edits.edit import Edit
from mulligan.policies.failures.failure import VerificationResult, VerificationStatus
from mulligan.policies.jobs.job import Output, RunnerSpec
from mulligan.tasks.ports.appliers import ApplyContext, FileChange, Validation
from mulligan.tasks.ports.errors import RunnerError
from mulligan.tasks.ports.runners import Request
from mulligan.tasks.ports.verifiers import Candidate
from mulligan.testing import (
    NO_MODELS,
    InMemoryStack,
    assert_repaired,
    check_applier,
    check_runner,
    check_verifier,
)
from mulligan.workers.edits.applier_registry import default_registry
from mulligan.workers.runners.blocking import blocked
from mulligan.workers.runners.runner_registry import RunnerRegistry
from mulligan.workers.runners.scripted import ScriptedRunner
from mulligan.workers.verifiers.json_object import JsonObject

QUIET, LOUD = '{"name": "Alice", "age": 31}', '{"name": "ALICE", "age": 31}'
SCHEMA = {"type": "object", "required": ["age"], "properties": {"age": {"type": "integer"}}}


def users_tests(folder: Path, text: str) -> str:
    """Run a user's tests with only the plug-in loaded, and return pytest's output."""
    (folder / "test_users.py").write_text(text, "utf-8")
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_users.py"]
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "MULLIGAN_"))}
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_the_page_about_testing_works(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "testing.md").read_text("utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    output = users_tests(tmp_path, "\n".join(blocks))
    assert "6 passed" in output, output


def test_a_wrong_answer_is_repaired_in_memory(mulligan_stack: InMemoryStack) -> None:
    verifiers = ["json.object", {"id": "contract.schema", "schema": SCHEMA}]
    job = mulligan_stack.run(
        {"prompt": "Extract the age.", "verifiers": verifiers},
        answers=['{"age": "31"}', '{"age": 31}'],
    )
    assert_repaired(job, by="constrained", attempts=2)


def test_assert_repaired_refuses_jobs_without_a_repair(
    mulligan_stack: InMemoryStack,
) -> None:
    with pytest.raises(AssertionError, match="needed no repair"):
        assert_repaired(mulligan_stack.run("Say {}", answers=["{}"]))
    with pytest.raises(AssertionError, match="escalated"):
        assert_repaired(mulligan_stack.run("Say {}", answers=["nonsense"]))


def test_a_model_is_the_contract_of_a_job(mulligan_stack: InMemoryStack) -> None:
    result = mulligan_stack.run("Extract: 'Alice is 31.'", returns=Person, answers=[QUIET, LOUD])
    assert result.value == Person(name="ALICE", age=31)
    assert_repaired(result, attempts=2)
    assert result.view.job.task_type == "Person"


def oldest(client: Client, texts: list[str]) -> str:
    """A user's code that takes a client and names a profile that tests do not have."""
    handles = client.submit_many(texts, returns=Person, runner="production", progress=False)
    return max((result.value for result in client.wait(handles)), key=lambda who: who.age).name


def test_code_that_takes_a_client_can_be_tested(mulligan_stack: InMemoryStack) -> None:
    def answers(prompt: str) -> list[str]:
        age = 31 if "Alice" in prompt else 4
        return [f'{{"name": "{prompt.split()[0].upper()}", "age": {age}}}']

    with mulligan_stack.client(answers=answers) as client:
        assert oldest(client, ["Bob is 4.", "Alice is 31."]) == "ALICE"
    with mulligan_stack.client(answers=[QUIET, LOUD]) as client:
        assert oldest(client, ["Alice is 31."]) == "ALICE"
    assert [len(job.attempts) for job in mulligan_stack.jobs()] == [1, 1, 2]


def test_coroutines_that_take_a_client_can_be_tested(mulligan_stack: InMemoryStack) -> None:
    async def run() -> Result[Person]:
        async with mulligan_stack.async_client(answers=[QUIET, LOUD]) as client:
            return await client.run("Alice is 31.", returns=Person)

    assert_repaired(asyncio.run(run()), attempts=2)


def test_a_job_that_does_not_end_in_time_fails_the_test(mulligan_stack: InMemoryStack) -> None:
    unavailable = [{"fault": {"status": 503, "retry_after": 600}}]
    with pytest.raises(AssertionError, match=r"has not ended within 0\.1 s"):
        mulligan_stack.run("Say {}", answers=unavailable, timeout=0.1)


def test_a_users_task_is_tested_without_a_broker(mulligan_stack: InMemoryStack) -> None:
    """Given an app without a broker, its repairing task runs through all its attempts."""
    app = Celery("mine", broker="memory://", set_as_current=False)
    install(app)
    answers = iter([QUIET, LOUD])

    @app.task(base=RepairingTask, verifiers=[Person], task_type="extract")  # type: ignore[untyped-decorator] # Celery has no types
    def extract(self: Any, text: str) -> str:
        prompts.append(self.correct(f"Extract: {text}"))
        return next(answers)

    prompts: list[str] = []
    before = app.conf.task_always_eager
    mulligan_stack.install(app)
    assert extract.delay("Alice is 31.").get() == LOUD
    (job,) = mulligan_stack.jobs()
    assert_repaired(job, attempts=2)
    assert prompts[0] == "Extract: Alice is 31."
    assert "write the name in capital letters" in prompts[1]
    mulligan_stack.close()
    assert app.conf.task_always_eager == before


def test_a_test_calls_no_model_by_default(mulligan_stack: InMemoryStack) -> None:
    assert os.environ[NO_MODELS]
    runner = {"kind": "openai", "base_url": "http://127.0.0.1:9/v1", "model": "m"}
    job = mulligan_stack.run({"prompt": "Say {}", "runner": runner})
    assert job.state == "escalated"
    assert "real_models" in (job.detail or "")


ECHO = {"kind": "command", "argv": ["sh", "-c", "cat >/dev/null; echo {}"]}


def test_a_command_runner_is_blocked_by_default(mulligan_stack: InMemoryStack) -> None:
    job = mulligan_stack.run({"prompt": "Say {}", "runner": ECHO})
    assert job.state == "escalated"
    assert 'real_models("command")' in (job.detail or "")


@pytest.mark.real_models("command")
def test_a_kind_named_by_the_marker_is_allowed(mulligan_stack: InMemoryStack) -> None:
    assert mulligan_stack.run({"prompt": "Say {}", "runner": ECHO}).ok
    assert [blocked(kind) for kind in ("command", "local", "plug-in")] == [False, True, True]


@pytest.mark.real_models
def test_the_marker_without_a_kind_allows_every_model() -> None:
    assert NO_MODELS not in os.environ
    assert not blocked("openai")


def test_a_profile_is_blocked_by_its_kind() -> None:
    registry = RunnerRegistry(profiles={"agent": ECHO, "script": {"kind": "scripted"}})
    runner = registry.for_job(RunnerSpec(profile="agent"), allow_inline=False)
    with pytest.raises(RunnerError, match="runners of kind command refuse"):
        runner.answer(Request(messages=(), timeout=1.0))
    assert not blocked("scripted")
    assert not blocked("external")


WIDE_FIXTURES = """
import os
import pytest
from mulligan.testing import NO_MODELS, real_models

@pytest.fixture(scope="session")
def seen():
    before = os.environ.get(NO_MODELS)
    with real_models("command"):
        inside = os.environ.get(NO_MODELS)
    return before, inside

@pytest.mark.real_models
def test_it(seen):
    assert seen == ("1", "except:command")
    assert NO_MODELS not in os.environ

def test_afterwards():
    assert os.environ[NO_MODELS] == "1"
"""


def test_fixtures_of_every_scope_are_covered(tmp_path: Path) -> None:
    assert "2 passed" in users_tests(tmp_path, WIDE_FIXTURES)


class Fickle:
    """A verifier that fails differently each time, so that no failure ever repeats."""

    slow = False
    count = 0

    def verify(self, candidate: Candidate) -> VerificationResult:
        self.count += 1
        good = candidate.text == "good"
        return VerificationResult(
            status=VerificationStatus.PASS if good else VerificationStatus.FAIL,
            verifier_id="fickle",
            summary="no",
            evidence={"kind": "test_failed", "failed": [{"nodeid": f"test_{self.count}"}]},
        )


def test_the_contract_of_a_verifier() -> None:
    check_verifier(JsonObject(), good="{}", bad="nonsense")
    with pytest.raises(AssertionError, match="refuses the good answer"):
        check_verifier(JsonObject(), good="nonsense", bad="nonsense")
    with pytest.raises(AssertionError, match="same signature"):
        check_verifier(Fickle(), good="good", bad="bad")


class Nameless:
    provider = ""

    def answer(self, request: Request) -> Output:
        return Output(text="hello")


def test_the_contract_of_a_runner() -> None:
    runner = ScriptedRunner.from_options({"answers": ["hello"]})
    assert check_runner(runner).text == "hello"
    with pytest.raises(AssertionError, match="provider"):
        check_runner(Nameless())


class Greedy:
    """An applier that may write files itself, and appends again each time."""

    op = "greedy"

    def __init__(self, *, writes: bool) -> None:
        self.writes = writes

    def validate(self, edit: Edit, ctx: ApplyContext) -> Validation:
        return Validation(ok=True)

    def changes(self, edit: Edit, ctx: ApplyContext) -> list[FileChange]:
        path = ctx.root / edit.target
        before = path.read_bytes()
        if self.writes:
            path.write_bytes(before + b"!")
        return [FileChange(path=edit.target, before=before, after=before + b"!")]


def test_the_contract_of_an_applier(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    edit = Edit(
        id="e", op="search_replace", target="a.txt", payload={"search": "one", "replace": "two"}
    )
    applier = default_registry().get("search_replace")
    check_applier(applier, edit, root=tmp_path, expect={"a.txt": b"two\n"})
    greedy = edit.model_copy(update={"op": "greedy"})
    expect = {"a.txt": b"two\n!"}
    with pytest.raises(AssertionError, match="must only read"):
        check_applier(Greedy(writes=True), greedy, root=tmp_path, expect=expect)
    (tmp_path / "a.txt").write_text("two\n")
    with pytest.raises(AssertionError, match="done twice"):
        check_applier(Greedy(writes=False), greedy, root=tmp_path, expect=expect)
