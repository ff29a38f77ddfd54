"""The client's contract: on an embedded stack, and on a fleet through its broker or console."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pydantic import BaseModel, field_validator
from support.cli_process import Shell, new_shell
from support.client_models import Person
from support.console_server import RunningConsole, new_token, running_console
from support.fleet import Fleet, running_fleet
from support.jobs import GOOD, SCHEMA, WRONG_TYPE, failure_of

from mulligan import AsyncClient, BadValue, Client, Job, JobFailed, NotAllStored, WaitTimeout
from mulligan.client import http_backend
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.settings.model import Settings

LOUD = '{"name": "ALICE", "age": 31}'
CHECKED: dict[str, Any] = {
    "verifiers": ["json.object", {"id": "contract.schema", "schema": SCHEMA}]
}


def scripted(*answers: Any) -> dict[str, Any]:
    return {"kind": "scripted", "answers": list(answers)}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    # Workers import client_models like a package of the user's.
    path = {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    folder = tmp_path_factory.mktemp("fleet")
    modules = {"MULLIGAN_MODEL_MODULES": '["support.client_models"]'}
    with running_fleet(folder, environment={**path, **modules}) as running:
        yield running


@pytest.fixture(scope="module")
def console(fleet: Fleet) -> Iterator[RunningConsole]:
    fields = {
        "allow_inline": True,
        "model_modules": ["support.client_models"],
        "rate_limit": 100_000,
    }
    with running_console(
        Settings(broker_url=fleet.server.url, home=fleet.folder, **fields)
    ) as running:
        yield running


@pytest.fixture(scope="module", params=["embedded", "broker", "http"])
def settings(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """The arguments of a client."""
    if request.param == "broker":
        fleet: Fleet = request.getfixturevalue("fleet")
        return {"broker_url": fleet.server.url, "model_modules": ["support.client_models"]}
    if request.param == "http":
        console: RunningConsole = request.getfixturevalue("console")
        token = new_token(console.context, role="producer")
        return {"url": console.url, "token": token, "model_modules": ["support.client_models"]}
    home = tmp_path_factory.mktemp("home")
    return {"home": home, "lease": 5, "sweep_interval": 0.2, "outbox_grace": 0.5}


@pytest.fixture(scope="module")
def client(settings: dict[str, Any]) -> Iterator[Client]:
    with Client(**settings) as client:
        yield client


@pytest.fixture
def key() -> str:
    """An unused idempotency key: broker and console share one ledger."""
    return uuid4().hex


# -- one job ---------------------------------------------------------------------------------------


def test_a_value_is_the_model_and_its_validators_correct_the_prompt(
    client: Client,
) -> None:
    result = client.run("Extract: 'Alice is 31.'", returns=Person, runner=scripted(GOOD, LOUD))
    assert result.value == Person(name="ALICE", age=31)
    assert (result.ok, result.state, result.score, result.reason) == (True, "succeeded", 100, None)
    first, second = result.attempts
    assert failure_of(first).kind == "schema_invalid"
    (finding,) = failure_of(first).findings
    assert (finding.path, finding.code) == ("$.name", "value_error")
    assert "$.name does not fit the schema: write the name in capital letters" in (
        second.plan.prompt or ""
    )
    assert second.plan.decoding.constrained
    story = result.story()
    assert "write the name in capital letters" in story
    assert "attempt 2  immediate retry  score 100" in story


def test_the_first_prompt_describes_the_answer_s_form(client: Client) -> None:
    result = client.run("Extract: 'Alice is 31.'", returns=Person, runner=scripted(LOUD))
    assert result.view.job.task_type == "Person"
    assert result.view.job.prompt == (
        "Extract: 'Alice is 31.'\n\n"
        'Answer with JSON and nothing else, of this form: {"name": string, "age": integer}'
    )


def test_json_is_parsed_and_text_is_text(client: Client) -> None:
    fenced = client.run("x", runner=scripted(f"```json\n{GOOD}\n```"), **CHECKED)
    assert fenced.value == {"name": "Alice", "age": 31}
    by_schema = client.run("x", returns={**SCHEMA, "title": "Human"}, runner=scripted(GOOD))
    assert by_schema.value == {"name": "Alice", "age": 31}
    assert by_schema.view.job.task_type == "Human"
    words = {"id": "text.match", "contains": "hello"}
    assert client.run("x", runner=scripted("hello you"), verifiers=[words]).value == "hello you"


def test_a_failed_job_raises_for_its_value_and_has_a_story(client: Client) -> None:
    result = client.run("x", task_type="stubborn", runner=scripted(WRONG_TYPE), **CHECKED)
    assert (result.ok, result.state, result.reason) == (False, "escalated", "repeated_failure")
    assert result.text == WRONG_TYPE
    with pytest.raises(JobFailed) as caught:
        _ = result.value
    message = str(caught.value)
    assert "stubborn" in message
    assert "escalated: repeated_failure" in message
    assert "attempt 1 of 3 was the best, with a score of 50" in message
    assert caught.value.result is result
    assert "escalate" in result.story()


def test_unknown_tokens_are_none(client: Client) -> None:
    answer = {"text": GOOD, "usage": {"total_tokens": 80}}
    assert client.run("x", runner=scripted(answer), **CHECKED).tokens == 80
    assert client.run("x", runner=scripted(GOOD), **CHECKED).tokens is None


def test_a_job_or_its_fields_can_be_submitted(client: Client) -> None:
    fields = {"task_type": "t", "prompt": "x", "runner": scripted(GOOD), **CHECKED}
    job = Job.model_validate(fields)
    assert client.run(job, labels={"suite": "a"}).view.job.labels == {"suite": "a"}
    assert client.run(fields, task_type="u").view.job.task_type == "u"


def test_the_result_has_the_submitted_job(client: Client) -> None:
    named = [{"id": "json.object", "name": "is JSON", "weight": 2}]
    job = client.run("x", runner=scripted("{}"), verifiers=named, budget={"tokens": 9}).view.job
    assert job.budget.tokens == 9
    assert [(spec.id, spec.name, spec.weight) for spec in job.verifiers] == [
        ("json.object", "is JSON", 2)
    ]


@dataclass
class Pet:
    name: str
    born: date


@pytest.mark.parametrize(
    ("returns", "answer", "value"),
    [
        (list[Person], f"[{LOUD}]", [Person(name="ALICE", age=31)]),
        (dict[str, int], '{"a": 1}', {"a": 1}),
        (Pet, '{"name": "Rex", "born": "2020-02-01"}', Pet("Rex", date(2020, 2, 1))),
        (Person | None, "null", None),
        (int, "31", 31),
    ],
)
def test_a_value_has_any_type_that_pydantic_reads(
    client: Client, returns: Any, answer: str, value: Any
) -> None:
    result = client.run("x", returns=returns, runner=scripted("what?", answer))
    assert (result.value, len(result.attempts)) == (value, 2)


# -- submitting ------------------------------------------------------------------------------------


def test_an_idempotency_key_finds_the_same_job(client: Client, key: str) -> None:
    first = client.submit("x", runner=scripted(GOOD), idempotency_key=key, **CHECKED)
    again = client.submit("x", runner=scripted(GOOD), idempotency_key=key, **CHECKED)
    assert (first.id, first.seen, again.seen) == (again.id, False, True)
    assert client.wait(again).ok
    with pytest.raises(BadInput, match="was used for another job"):
        client.submit("y", runner=scripted(GOOD), idempotency_key=key, **CHECKED)


def test_two_hundred_jobs_are_submitted_and_awaited_in_order(client: Client, key: str) -> None:
    prompts = [f"Extract number {i}." for i in range(200)]
    handles = client.submit_many(
        prompts, returns=Person, runner=scripted(LOUD), idempotency_key=key
    )
    assert len({handle.id for handle in handles}) == 200
    results = client.wait(handles, timeout=60)
    assert [result.id for result in results] == [handle.id for handle in handles]
    assert {result.value.name for result in results} == {"ALICE"}
    assert results[7].view.job.idempotency_key == f"{key}-7"


def test_one_invalid_job_refuses_the_whole_batch(client: Client, key: str) -> None:
    good = {"prompt": "x", "idempotency_key": key}
    bad = {"prompt": "y", "policy": {"max_attempts": 1}}
    with pytest.raises(BadInput, match=r"\[1\]\.policy.max_attempts"):
        client.submit_many([good, bad], runner=scripted(GOOD), **CHECKED)
    handle = client.submit({**good, "prompt": "z"}, runner=scripted(GOOD), **CHECKED)
    assert not handle.seen
    client.cancel(handle)


def test_a_used_key_refuses_the_whole_batch(client: Client, key: str) -> None:
    taken = client.submit("other", runner=scripted(GOOD), idempotency_key=f"{key}-1", **CHECKED)
    many = {"runner": scripted(GOOD), "idempotency_key": key, **CHECKED}
    with pytest.raises(
        BadInput, match=rf"^jobs\[1\]\.idempotency_key: '{key}-1' was used"
    ) as refused:
        client.submit_many(["a", "b", "c"], **many)
    assert not isinstance(refused.value, NotAllStored)
    for index in (0, 2):  # a used key would be refused
        fields = {"runner": scripted(GOOD), "idempotency_key": f"{key}-{index}", **CHECKED}
        client.cancel(client.submit("free", **fields))
    client.cancel(taken)


def test_two_different_jobs_of_one_call_cannot_share_a_key(client: Client, key: str) -> None:
    same = {"prompt": "a", "idempotency_key": key}
    with pytest.raises(BadInput, match=r"^jobs\[2\]\.idempotency_key"):
        client.submit_many([same, same, {**same, "prompt": "b"}], runner=scripted(GOOD), **CHECKED)
    assert not client.submit(same, runner=scripted(GOOD), **CHECKED).seen


def test_every_problem_of_a_batch_has_its_index(client: Client) -> None:
    wrong = {"prompt": "x", "budjet": {}}
    with pytest.raises(BadInput) as refused:
        client.submit_many([wrong, "good", {"prompt": 7}], runner=scripted(GOOD), **CHECKED)
    assert [(problem.index, problem.path) for problem in refused.value.problems] == [
        (0, ("budjet",)),
        (2, ("prompt",)),
    ]


def test_problems_of_every_stage_are_reported_at_once(
    client: Client, request: pytest.FixtureRequest
) -> None:
    jobs: list[Any] = [
        {"prompt": "x", "budjet": {}},
        {"prompt": "x", "policy": {"max_attempts": 1}},
        "good",
        {"prompt": "x", "verifiers": ["json.objet"]},
        7,
    ]
    with pytest.raises(BadInput) as refused:
        client.submit_many(
            [{**CHECKED, **job} if isinstance(job, dict) else job for job in jobs],
            runner=scripted(GOOD),
        )
    paths = [str(problem).partition(": ")[0] for problem in refused.value.problems]
    expected = ["jobs[0].budjet", "jobs[1].policy.max_attempts", "jobs[2].verifiers", "jobs[4]"]
    if "broker" not in request.node.name:  # the workers of a fleet check what jobs name
        expected.insert(3, "jobs[3].verifiers[0].id")
    assert paths == expected
    assert [problem.index for problem in refused.value.problems] == [
        int(path[5]) for path in expected
    ]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"runner": scripted(GOOD)}, "give returns=Model or verifiers"),
        ({"runner": scripted(GOOD), "budjet": {}, **CHECKED}, "did you mean 'budget'"),
        ({"runner": {}, **CHECKED}, "give either a profile of mulligan.toml or a kind"),
        ({"runner": scripted(GOOD), "verifiers": "json.object"}, "^verifiers: must be a list"),
        ({"returns": str}, "^returns: text is what comes back without it"),
        ({"returns": Person(name="A", age=1)}, "^returns: give the class Person"),
        ({"returns": "Person"}, r"^returns: must be a pydantic model, a type such as list\[Person"),
        ({"returns": 31}, "^returns: must be a pydantic model"),
        ({"returns": threading.Event}, "^returns: .*Event"),
    ],
)
def test_an_invalid_job_is_refused_with_the_field(
    client: Client, fields: Any, expected: str
) -> None:
    with pytest.raises(BadInput, match=expected):
        client.submit("x", **fields)


def test_a_handle_finds_a_job_of_another_client(client: Client, settings: dict[str, Any]) -> None:
    submitted = client.submit("x", returns=Person, runner=scripted(LOUD))
    with Client(**settings) as other:
        found = other.wait(other.handle(submitted.id, returns=Person))
    assert found.value == Person(name="ALICE", age=31)


# -- waiting, watching, cancelling -----------------------------------------------------------------


def test_waiting_may_time_out_before_the_job_ends(client: Client) -> None:
    slow = client.submit("x", runner=scripted({"text": GOOD, "delay": 1.5}), **CHECKED)
    with pytest.raises(WaitTimeout, match=f"job {slow.id} has not ended within 0.1 s"):
        client.wait(slow, timeout=0.1)
    with pytest.raises(TimeoutError):
        client.wait([slow], timeout=0.1)
    assert client.wait(slow.id).ok


def test_an_unknown_job_is_refused(client: Client) -> None:
    for call in (client.wait, client.cancel, lambda job: list(client.watch(job))):
        with pytest.raises(BadInput, match="there is no job 'p00-nowhere'"):
            call("p00-nowhere")


def test_watching_yields_every_event_even_afterwards(client: Client) -> None:
    handle = client.submit("x", runner=scripted(WRONG_TYPE, GOOD), **CHECKED)
    events = list(client.watch(handle))
    assert {event.job_id for event in events} == {handle.id}
    assert [e.data["state"] for e in events if e.type == "job"] == ["queued", "succeeded"]
    settled = [e.data["score"] for e in events if e.data.get("state") == "settled"]
    assert settled == [50, 100]
    assert [event.id for event in client.watch(handle.id)] == [event.id for event in events]


def test_only_an_unfinished_job_is_cancelled(client: Client) -> None:
    slow = scripted({"fault": {"status": 503, "retry_after": 30}})
    handle = client.submit("x", runner=slow, **CHECKED)
    assert client.cancel(handle) == "cancelled"
    result = client.wait(handle)
    assert (result.state, result.ok) == ("cancelled", False)
    with pytest.raises(JobFailed, match="no attempt has an answer"):
        _ = result.value
    done = client.run("x", runner=scripted(GOOD), **CHECKED)
    assert client.cancel(done.id) == "succeeded"


# -- asyncio ---------------------------------------------------------------------------------------


def test_the_async_client_does_not_block_the_loop(settings: dict[str, Any]) -> None:
    """Given fifty jobs at once, a watched one and a late one, while the loop ticks."""
    gaps: list[float] = []

    async def tick() -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.005)
            gaps.append(time.perf_counter() - before)

    async def run_jobs() -> None:
        async with AsyncClient(**settings) as client:
            opened = await client.run("x", returns=Person, runner=scripted(LOUD))
            assert opened.value.age == 31
            ticking = asyncio.create_task(tick())
            slow = scripted({"text": LOUD, "delay": 0.05})
            runs = (client.run(f"{i}", returns=Person, runner=slow) for i in range(50))
            results = await asyncio.gather(*runs)
            assert [result.value.name for result in results] == ["ALICE"] * 50
            watched = await client.submit("x", runner=scripted(WRONG_TYPE, GOOD), **CHECKED)
            states = [event.data.get("state") async for event in client.watch(watched)]
            assert states[-1] == "succeeded"
            many = await client.submit_many(["a", "b"], runner=scripted(GOOD), **CHECKED)
            assert all(result.ok for result in await client.wait(many))
            again = await client.handle(opened.id, returns=Person)
            assert (await client.wait(again)).value.age == 31
            late = await client.submit("x", runner=scripted({"text": GOOD, "delay": 5}), **CHECKED)
            with pytest.raises(WaitTimeout):
                await client.wait(late, timeout=0.05)
            assert await client.cancel(late) == "cancelled"
            with pytest.raises(BadInput, match="there is no job"):
                await client.wait("p00-nowhere")
            ticking.cancel()

    asyncio.run(run_jobs())
    assert sorted(gaps)[len(gaps) // 2] < 0.05
    assert len(gaps) > 20


# -- differences between backends ------------------------------------------------------------------


def test_a_redefined_model_does_not_verify_earlier_jobs(tmp_path: Path) -> None:
    """As in a notebook whose cell is run again while jobs are running."""

    def person(limit: int) -> type[BaseModel]:
        class Aged(BaseModel):
            age: int

            @field_validator("age")
            @classmethod
            def _young(cls, age: int) -> int:
                if age > limit:
                    raise ValueError(f"must be at most {limit}")
                return age

        return Aged

    slow = scripted({"text": '{"age": 31}', "delay": 0.5})
    with Client(home=tmp_path, lease=5) as client:
        former = client.submit("x", returns=person(130), runner=slow)
        latter = client.submit("x", returns=person(30), runner=slow)
        assert [result.state for result in client.wait([former, latter], timeout=60)] == [
            "succeeded",
            "escalated",
        ]


def test_a_problem_late_in_the_batch_is_found_before_anything_is_stored(tmp_path: Path) -> None:
    """Given batches of a hundred jobs, and a problem in `on_done` of job 110."""
    jobs: list[dict[str, Any]] = [{"prompt": f"{i}"} for i in range(120)]
    jobs[110]["on_done"] = {"task": "shop.done", "queue": "shop"}
    with Client(home=tmp_path, lease=5) as client:
        fields = {"runner": scripted(GOOD), **CHECKED}
        with pytest.raises(BadInput, match=r"^jobs\[110\]\.on_done: there is no broker"):
            client.submit_many(jobs, idempotency_key="n", **fields)
        first = client.submit("0", idempotency_key="n-0", **fields)
        assert (first.seen, client.wait(first).ok) == (False, True)


def test_a_key_taken_meanwhile_leaves_the_handles_of_the_other_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RedisLedger, "conflicts", lambda *_: set())
    with Client(home=tmp_path, lease=5) as client:
        fields = {"runner": scripted(GOOD), **CHECKED}
        client.submit("other", idempotency_key="z-1", **fields)
        with pytest.raises(NotAllStored, match="2 jobs are stored all the same") as refused:
            client.submit_many(["a", "b", "c"], idempotency_key="z", **fields)
        (problem,) = refused.value.problems
        assert (problem.index, problem.code) == (1, "key_in_use")
        assert str(problem) == "jobs[1].idempotency_key: 'z-1' was used for another job"
        stored = refused.value.handles
        assert sorted(stored) == [0, 2]
        assert all(result.ok for result in client.wait(stored.values(), timeout=60))


def test_jobs_stored_by_earlier_requests_are_reported_over_http(
    console: RunningConsole, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_backend, "_JOBS", 2)
    token = new_token(console.context, role="producer")
    with Client(console.url, token=token) as client:
        fields = {"runner": scripted(GOOD), **CHECKED}
        client.submit("other", idempotency_key=f"{key}-2", **fields)
        with pytest.raises(NotAllStored, match=rf"\[2\]\.idempotency_key: '{key}-2'") as refused:
            client.submit_many(["a", "b", "c", "d"], idempotency_key=key, **fields)
        assert sorted(refused.value.handles) == [0, 1]
        assert not client.submit("d", idempotency_key=f"{key}-3", **fields).seen


def test_workers_refuse_a_model_from_a_module_that_is_not_allowed(fleet: Fleet) -> None:
    """The client's setting does not matter; the workers decide."""
    with Client(fleet.server.url, model_modules=["json"]) as client:
        spec = {"id": "contract.schema", "model": "json:JSONDecoder"}
        with pytest.raises(BadInput, match="json:JSONDecoder is not a pydantic model"):
            client.submit("x", runner=scripted(GOOD), verifiers=[spec])
    with Client(fleet.server.url, model_modules=["fleet"]) as client:
        both: dict[str, Any] = {"schema": SCHEMA, "model": "cli_process:Shell"}
        both["id"] = "contract.schema"
        result = client.run("x", runner=scripted(GOOD), verifiers=[both])
    assert (result.state, result.reason) == ("escalated", "unsafe_request")
    assert "'cli_process' is not allow-listed" in str(result.view.detail)


def test_a_model_that_only_the_client_knows_still_validates_the_value(fleet: Fleet) -> None:
    with Client(fleet.server.url) as client:
        result = client.run("x", returns=Person, runner=scripted(GOOD))
        assert result.ok  # by its JSON Schema, which is all the workers have
        with pytest.raises(BadValue, match="write the name in capital letters"):
            _ = result.value


def test_a_client_of_a_broker_imports_no_worker_and_celery_last(fleet: Fleet) -> None:
    code = f"""
import sys
from mulligan import Client
client = Client({fleet.server.url!r}, home="home")
def loaded(*names):
    return sorted(m for m in sys.modules if m.startswith(names))
try:
    client.wait("p00-nowhere")
except Exception as error:
    print(error)
print(loaded("celery", "kombu"))
job = dict(runner={{"kind": "scripted", "answers": ["{{}}"]}}, verifiers=["json.object"])
print(client.run("x", **job).value)
print(bool(loaded("celery")), loaded("mulligan.workers.app", "mulligan.workers.runners",
                                     "mulligan.workers.verifiers", "openai"))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["there is no job 'p00-nowhere'", "[]", "{}", "True []"]


_START_JOBS = """
from mulligan import Client
client = Client(workers=1)
job = dict(verifiers=["json.object"])
def say(text, delay=0.0):
    return {"kind": "scripted", "answers": [{"text": text, "delay": delay}]}
done = client.run("a", runner=say("{}"), **job)
slow = client.submit("b", runner=say('{"b": 1}', 1.5), **job)
event = next(e for e in client.watch(slow) if e.data.get("state") == "running")
late = client.submit("c", runner=say('{"c": 1}'), **job)
print(done.id, slow.id, late.id, flush=True)
"""
_WAIT_FOR_JOBS = """
import sys
from mulligan import Client
client = Client()
print(*(client.wait(job, timeout=60).state for job in sys.argv[1:]))
"""


@pytest.mark.parametrize("end", ["", "import os; os.kill(os.getpid(), 9)"], ids=["exit", "kill"])
def test_a_process_that_ends_without_closing_leaves_no_process_and_loses_no_job(end: str) -> None:
    """Given a finished, a running and a waiting job, then the next process finishes them."""
    with new_shell(MULLIGAN_REPUBLISH_AFTER="1", MULLIGAN_LEASE="1") as shell:
        ids = run_python(shell, _START_JOBS + end).split()
        assert len(ids) == 3
        assert shell.all_ended()
        assert run_python(shell, _WAIT_FOR_JOBS, *ids).split() == ["succeeded"] * 3
        assert shell.all_ended()
        assert ids[1] in shell.invoke("jobs", "show", ids[1]).stdout


def run_python(shell: Shell, code: str, *argv: str) -> str:
    """Run a script in the shell's directory and return its output."""
    done = subprocess.run(
        [sys.executable, "-c", code, *argv],
        cwd=shell.folder,
        env={**os.environ, **shell.environment, "MULLIGAN_TEST_MARK": shell.mark},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.stdout
