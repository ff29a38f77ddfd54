"""Nothing in a job, an answer or a file stops, stalls or ends a process.

Given an input that once did, when it is sent through a real surface, then it is refused or judged
with a clear message, and everything else goes on.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from support.cli_process import Shell, invoke, new_shell, write_file
from support.console_server import client_of
from support.hostile_inputs import (
    BRANCH,
    DOUBLING,
    LOOKAROUND,
    REFUSED_BODIES,
    REFUSED_FILES,
    SPACED,
    TREE,
    contract,
    tree,
)
from support.jobs import GOOD, scripted
from support.ledger_scenario import SettingsMaker
from support.waiting import wait_for

from mulligan.console.http.context import ConsoleContext, open_context
from mulligan.tasks.jobs import verify
from mulligan.tasks.jobs.attempt import run_attempt
from mulligan.tasks.ports.ledger import Entry, JobView
from mulligan.workers.user_tasks.usage import read_usage
from mulligan.workers.verifiers import contract_schema, json_text, text_match

# -- the console -----------------------------------------------------------------------------------


@pytest.fixture
def shell(redis_url: str) -> Iterator[Shell]:
    with new_shell(MULLIGAN_BROKER_URL=redis_url, MULLIGAN_ALLOW_INLINE="true") as shell:
        yield shell


class HealthWatch:
    """Asks /healthz all the time, and keeps the longest time to an answer."""

    def __init__(self, url: str) -> None:
        self.longest = 0.0
        self.answers = 0
        self._url = f"{url}/healthz"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def _ask(self) -> None:
        with httpx2.Client(timeout=60) as client:
            while not self._stop.is_set():
                started = time.monotonic()
                assert client.get(self._url).status_code == 200
                self.longest = max(self.longest, time.monotonic() - started)
                self.answers += 1
                time.sleep(0.01)

    def __enter__(self) -> HealthWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def test_no_job_stops_a_real_console(shell: Shell) -> None:
    process = shell.start("console", "--port", "0")
    assert process.stderr is not None
    assert process.stdout is not None
    url = _address(process.stdout)
    accepted = [scripted(GOOD, verifiers=[contract(schema)]) for schema in (DOUBLING, TREE)]
    headers = {"Content-Type": "application/json"}
    with (
        httpx2.Client(base_url=url, timeout=60, headers=headers) as client,
        HealthWatch(url) as watch,
    ):
        for name, body in REFUSED_BODIES.items():
            answer = client.post("/api/jobs", content=body)
            assert answer.status_code in (400, 422), f"{name}: {answer.status_code} {answer.text}"
            assert answer.json()["error"]["message"], name
        for job in accepted:
            assert client.post("/api/jobs", json=job).status_code in (202, 422)
        assert client.post("/api/jobs", json=scripted(GOOD)).status_code == 202
    assert watch.answers > 10
    assert watch.longest < 5  # it was for ever; alone on a machine it is milliseconds
    assert process.poll() is None
    process.terminate()
    assert "Traceback" not in process.communicate(timeout=30)[1]
    assert shell.all_ended()


def _address(output: Any) -> str:
    for line in output:
        for word in line.split():
            if word.startswith("http://"):
                return str(word.rstrip("/.,;"))
    raise AssertionError("the console did not start")


# -- a worker --------------------------------------------------------------------------------------


@pytest.fixture
def context(settings: SettingsMaker, monkeypatch: pytest.MonkeyPatch) -> ConsoleContext:
    """A worker that waits half a second for what takes for ever."""
    monkeypatch.setattr(contract_schema, "_CHECK_SECONDS", 0.5)
    monkeypatch.setattr(text_match, "_SEARCH_SECONDS", 0.5)
    monkeypatch.setattr(json_text, "_REPAIR_SECONDS", 0.5)
    monkeypatch.setattr(verify, "_RETRY_DELAY", 0.05)
    return open_context(settings(allow_inline=True))


def worked_on(context: ConsoleContext, answer: str, *verifiers: Any) -> JobView:
    """Return a job after its first attempt has a verdict, or the job has ended without one."""
    job = scripted(answer, verifiers=list(verifiers))
    submitted = client_of(context).post("/api/jobs", json=job)
    assert submitted.status_code == 202, submitted.text
    job_id = submitted.json()["jobs"][0]["id"]

    def finished() -> JobView | None:
        run_attempt(context.services.context, Entry("attempt", job_id, 1))
        view = context.ledger.job(job_id)
        assert view is not None
        judged = bool(view.attempts and view.attempts[0].verdict)
        return view if judged or view.state == "escalated" else None

    found: JobView = wait_for(finished, "a verdict")
    return found


TOO_COSTLY = {
    "a doubling schema": ('"x"', contract(DOUBLING), "checking the answer against the schema"),
    "lookaround": ("a" * 500_000, {"id": "text.match", "regex": LOOKAROUND}, "takes longer than"),
    "a possessive repetition": (
        "a" * 110_000,
        {"id": "text.match", "regex": SPACED},
        "takes longer than",
    ),
    "many words": (
        "a" * 500_000,
        {"id": "text.match", "contains": ["a" * 50 + str(n) for n in range(5_000)]},
        "takes longer than 0.5 s",
    ),
}


@pytest.mark.parametrize("name", TOO_COSTLY)
def test_a_verification_that_is_too_costly_is_escalated(name: str, context: ConsoleContext) -> None:
    answer, verifier, message = TOO_COSTLY[name]
    view = worked_on(context, answer, verifier)
    assert (view.state, view.reason) == ("escalated", "tool_error")
    assert message in (view.detail or "")


FAILING = {
    "an error in a doubling schema": ("1", contract(DOUBLING), "does not fit the schema"),
    "one typo in a tree": (json.dumps(tree(9)), contract(TREE), "does not fit the schema"),
    "every item an error of a branch": (
        json.dumps([1] * 200_000),
        contract(BRANCH),
        "does not fit the schema",
    ),
    "JSON that takes for ever to repair": ('{"a":"' + '\\"' * 25_000, "json.object", "JSON"),
    "100,000 levels": ("[" * 100_000, "json.object", "200 levels"),
    "a number of 5,000 digits": ("[" + "1" * 5_000 + "]", "json.object", "out of range"),
    "one key, many times": (
        "{" + ",".join(f'"a":{n}' for n in range(50_000)) + "}",
        "json.object",
        "two different values",
    ),
    "half a surrogate pair": ('"\\ud800"', contract({"type": "string"}), "not a JSON value"),
}


@pytest.mark.parametrize("name", FAILING)
def test_an_answer_that_explodes_fails(name: str, context: ConsoleContext) -> None:
    answer, verifier, message = FAILING[name]
    verdict = worked_on(context, answer, verifier).attempts[0].verdict
    assert verdict is not None
    assert not verdict.success
    assert message in verdict.results[0].summary


def test_the_page_shows_what_would_reorder_it(context: ConsoleContext) -> None:
    view = worked_on(context, '{"a": "<b>\u202eevil\u200b"}', "json.object")
    page = client_of(context).get(f"/jobs/{view.id}").text
    assert "&lt;b&gt;⟨U+202E⟩evil⟨U+200B⟩" in page
    assert not {"\u202e", "\u200b"} & set(page)


# -- the command line ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REFUSED_FILES)
def test_a_file_that_explodes_is_refused(name: str) -> None:
    text, message = REFUSED_FILES[name]
    result = invoke("jobs", "lint", write_file("job.yaml", text), code=2)
    assert message in result.stderr + result.stdout
    assert "Traceback" not in result.stderr


def test_verify_says_what_is_too_costly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract_schema, "_CHECK_SECONDS", 0.5)
    file = write_file("job.json", scripted(GOOD, verifiers=[contract(DOUBLING)]))
    result = invoke("verify", file, "--answer", "-", stdin='"x"', code=1)
    assert "checking the answer against the schema" in result.stderr + result.stdout
    assert "Traceback" not in result.stderr


# -- a task ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [-1, 10**30, float("nan"), float("inf"), "12"])
def test_impossible_tokens_are_named(number: Any) -> None:
    with pytest.raises(TypeError, match=r"total_tokens is .*, not a whole number from 0 to"):
        read_usage({"total_tokens": number})
