"""Generated requests find no 5xx and no response that the OpenAPI document does not describe."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from support.console_server import RunningConsole, running_console
from support.jobs import GOOD, scripted
from support.loops import item
from support.redis_server import RedisServer

from mulligan.tasks.jobs.attempt import run_attempt
from mulligan.tasks.ports.ledger import Entry
from mulligan.workers.settings.model import Settings

#: Examples per operation; there are about sixty operations.
EXAMPLES = 8
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningConsole]:
    folder: Path = tmp_path_factory.mktemp("schema")
    server = RedisServer(folder)
    server.start()
    settings = Settings(
        broker_url=server.url, home=folder, allow_inline=True, rate_limit=10_000_000
    )
    try:
        with running_console(settings) as console, console.client() as client:
            ids = _some_jobs(client)
            _work(console, ids["hopeless"])
            console.context.ledger.sweep(empty_queues=[])
            _a_loop(client)
            yield console
    finally:
        server.kill()


def _some_jobs(client: httpx2.Client) -> dict[str, str]:
    jobs = [scripted(GOOD, name="good"), scripted("no", "no", "no", "no", name="hopeless")]
    taken = client.post("/api/jobs", json=jobs).raise_for_status().json()["jobs"]
    return {str(job["name"]): row["id"] for job, row in zip(jobs, taken, strict=True)}


def _a_loop(client: httpx2.Client) -> None:
    runner = {"kind": "scripted", "answers": [GOOD]}
    loop = {"loop": {"name": "alpha", "runner": runner}, "items": [item("one")], "start": True}
    client.post("/api/loops", json=loop).raise_for_status()


def _work(console: RunningConsole, job_id: str) -> None:
    for number in range(1, 5):
        run_attempt(console.context.services.context, Entry("attempt", job_id, number))


@pytest.fixture(scope="module")
def known(console: RunningConsole) -> dict[str, str]:
    """Path parameters that exist: a generated one hardly ever does."""
    (group,) = console.context.ledger.groups()
    return {
        "job_id": group.example,
        "loop_id": "alpha",
        "test_id": "one",
        "commit": "0123abcd",
        "signature": group.signature,
        "target": group.signature,
        "pool": "attempt",
        "what": "queue:attempt",
    }


@pytest.fixture(scope="module")
def description(console: RunningConsole) -> schemathesis.BaseSchema:
    # Streams never end; pages are for people.
    found = schemathesis.openapi.from_url(f"{console.url}/openapi.json")
    return found.exclude(path_regex="/(events|stream)$").include(
        path_regex="^/(api/|healthz|livez|readyz|metrics)"
    )


def test_every_response_is_described(
    description: schemathesis.BaseSchema, known: dict[str, str]
) -> None:
    """Given valid and invalid requests to every operation."""
    found = {}
    for result in description.get_all_operations():
        assert isinstance(result, Ok), result
        operation = result.ok()
        try:
            _try_out(operation, known)
        except (Exception, BaseExceptionGroup) as error:  # one report for all operations
            found[operation.label] = str(error) or repr(error)
    assert not found, "\n\n".join(f"== {label}\n{text}" for label, text in found.items())


def _try_out(operation: Any, known: dict[str, str]) -> None:
    cases = st.one_of(
        operation.as_strategy(generation_mode=GenerationMode.POSITIVE),
        operation.as_strategy(generation_mode=GenerationMode.NEGATIVE),
    )

    @hypothesis_settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases, named=st.booleans())
    def check(case: Any, named: bool) -> None:
        if named and case.path_parameters:
            case.path_parameters.update(
                {name: known[name] for name in case.path_parameters if name in known}
            )
        case.call_and_validate(checks=CHECKS)

    check()


def test_every_route_is_described(console: RunningConsole) -> None:
    """The document, and so the test above, covers everything under /api."""
    with console.client() as client:
        document = client.get("/openapi.json").json()
    described = {
        (path, method.upper()) for path, item in document["paths"].items() for method in item
    }
    for path, method in described:
        statuses = document["paths"][path][method.lower()]["responses"]
        if path.startswith("/api/"):
            assert {"401", "403", "422", "429", "503"} <= set(statuses), path
    assert ("/api/jobs", "POST") in described
    assert ("/api/events", "GET") in described
