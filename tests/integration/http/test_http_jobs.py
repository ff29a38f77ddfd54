"""Jobs over HTTP: submitting, paging, reading, cancelling; tenants and access to texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from starlette.testclient import TestClient
from support.console_server import client_of, new_token
from support.jobs import GOOD, WRONG_TYPE, scripted
from support.ledger_scenario import SettingsMaker

from mulligan.console.http.context import ConsoleContext, open_context
from mulligan.console.http.models.job_models import REDACTED
from mulligan.tasks.jobs.attempt import run_attempt
from mulligan.tasks.ports.ledger import Entry
from mulligan.workers.ledger.job_pages import JobFilter
from mulligan.workers.settings.model import Settings


@pytest.fixture
def context(settings: SettingsMaker) -> ConsoleContext:
    return open_context(settings(allow_inline=True))


@pytest.fixture
def client(context: ConsoleContext) -> TestClient:
    return client_of(context)


def work(context: ConsoleContext, job_id: str) -> None:
    """Run a job's attempts in this process, as a worker would."""
    for number in range(1, 5):
        run_attempt(context.services.context, Entry("attempt", job_id, number))


def submit(client: TestClient, *jobs: dict[str, Any]) -> list[str]:
    answer = client.post("/api/jobs", json=list(jobs))
    assert answer.status_code == 202, answer.text
    return [row["id"] for row in answer.json()["jobs"]]


# -- submitting ------------------------------------------------------------------------------------


def test_one_job_has_a_location(client: TestClient) -> None:
    answer = client.post("/api/jobs", json=scripted(GOOD))
    (row,) = answer.json()["jobs"]
    assert (answer.status_code, row["status"]) == (202, "accepted")
    assert client.get(answer.headers["location"]).json()["id"] == row["id"]


@pytest.mark.parametrize("reformulated", [{}, {"prompt": "in other words"}])
def test_no_messages_are_no_prompt(client: TestClient, reformulated: dict[str, Any]) -> None:
    delayed = {"mode": "reformulate", **reformulated}
    body = {**scripted(GOOD), "messages": [], "delayed_verification": delayed}
    del body["prompt"]
    answer = client.post("/api/jobs", json=body)
    assert answer.status_code == 422
    assert "give either a prompt or messages" in answer.text


@pytest.mark.parametrize("name", ["x" * 300, "é" * 200, "a/" * 2048 + "b", "loop/x", "fits/" * 99])
def test_a_file_that_cannot_be_is_a_problem(client: TestClient, name: str, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    workspace = {"path": str(tmp_path), "output_file": name}
    answer = client.post("/api/jobs", json={**scripted(GOOD), "workspace": workspace})
    if name.startswith("fits"):
        assert answer.status_code == 202
    else:
        assert (answer.status_code, "workspace.output_file" in answer.text) == (422, True)
    elsewhere = {"path": f"/{name}", "output_file": "x"}
    answer = client.post("/api/jobs", json={**scripted(GOOD), "workspace": elsewhere})
    assert (answer.status_code, "workspace.path" in answer.text) == (422, True)


@pytest.mark.parametrize("wrap", [lambda jobs: jobs, lambda jobs: {"jobs": jobs}])
def test_many_jobs_have_no_location(client: TestClient, wrap: Any) -> None:
    answer = client.post("/api/jobs", json=wrap([scripted(GOOD), scripted(GOOD)]))
    assert [row["status"] for row in answer.json()["jobs"]] == ["accepted", "accepted"]
    assert "location" not in answer.headers


def test_an_idempotency_key_names_one_job(client: TestClient) -> None:
    def post(body: Any, key: str = "order-7") -> Any:
        return client.post("/api/jobs", json=body, headers={"Idempotency-Key": key})

    first, again = post(scripted(GOOD)), post(scripted(GOOD))
    assert again.json()["jobs"] == [{"id": first.json()["jobs"][0]["id"], "status": "seen"}]
    other = post(scripted(WRONG_TYPE))
    assert (other.status_code, other.json()["error"]["code"]) == (409, "key_in_use")
    assert "order-7" in other.json()["error"]["details"][0]
    assert post(scripted(GOOD, idempotency_key="order-8")).status_code == 422
    many = post([scripted(GOOD), scripted(GOOD)], "batch").json()["jobs"]
    shown = [client.get(f"/api/jobs/{row['id']}").json()["idempotency_key"] for row in many]
    assert shown == ["batch-0", "batch-1"]


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        (
            {"task_type": "", "promt": "x"},
            ["task_type: ", "runner: is required", "promt: there is"],
        ),
        ([scripted(GOOD), {"prompt": "x"}], ["jobs[1].task_type: is required", "jobs[1].runner"]),
        (scripted(GOOD, verifiers=["json.objet"]), ["did you mean 'json.object'"]),
        ([], ["jobs: 1 to 1,000 at a time, not 0"]),
        ({"jobs": "no"}, ["jobs: must be a list"]),
        ("text", ["a job is a mapping"]),
        (None, ["a job is a mapping"]),
        (scripted("\ud800"), ["runner: contains a value that JSON cannot hold"]),
        (scripted(GOOD, system="\ud800"), ["system: contains half a surrogate pair"]),
        (scripted(GOOD, labels={"a": "\ud800"}), ["labels.a: contains half a surrogate pair"]),
        (
            scripted(GOOD, runner={"kind": "scripted", "answers": [float("nan")]}),
            ["runner.answers[0]: must be a finite number"],
        ),
    ],
)
def test_every_error_is_reported(client: TestClient, body: Any, lines: list[str]) -> None:
    headers = {"Content-Type": "application/json"}
    answer = client.post("/api/jobs", content=json.dumps(body), headers=headers)
    assert answer.status_code == 422
    details = answer.json()["error"]["details"]
    for line in lines:
        assert any(line in detail for detail in details), details
    assert client.get("/api/jobs").json()["jobs"] == [], "one bad job refuses them all"


def test_problems_of_every_stage_are_reported_at_once(client: TestClient) -> None:
    """Given a misspelt field, an unknown profile and an unknown option in separate jobs."""
    body = [
        scripted(GOOD, promt="x"),
        scripted(GOOD, runner="smal"),
        scripted(GOOD),
        scripted(GOOD, verifiers=["json.object", {"id": "json.object", "strict": True}]),
        scripted(GOOD, priority=99, runner={"kind": "scriptd"}),
    ]
    answer = client.post("/api/jobs", json=body)
    assert answer.status_code == 422
    error = answer.json()["error"]
    problems = error.pop("problems")
    assert error == {
        "code": "invalid",
        "message": "the request cannot be accepted",
        "details": [
            "jobs[0].promt: there is no such field; did you mean 'prompt'?",
            "jobs[1].runner.profile: no profile 'smal' (there is no mulligan.toml yet)",
            "jobs[3].verifiers[1].strict: there is no such option; there are: name, weight,"
            " required",
            "jobs[4].priority: must be at most 9",
            "jobs[4].runner.kind: no runner 'scriptd'; did you mean 'scripted'?",
        ],
    }
    assert [(each["index"], each["path"], each["code"]) for each in problems] == [
        (0, ["promt"], "unknown_field"),
        (1, ["runner", "profile"], "unknown_name"),
        (3, ["verifiers", 1, "strict"], "unknown_field"),
        (4, ["priority"], "invalid"),
        (4, ["runner", "kind"], "unknown_name"),
    ]
    assert problems[0]["message"] == "there is no such field; did you mean 'prompt'?"
    assert client.get("/api/jobs").json()["jobs"] == []


def test_a_used_key_is_a_conflict(client: TestClient) -> None:
    assert client.post("/api/jobs", json=scripted(GOOD, idempotency_key="k")).status_code == 202
    answer = client.post("/api/jobs", json=scripted(GOOD, idempotency_key="k", name="other"))
    assert answer.status_code == 409
    assert answer.json() == {
        "error": {
            "code": "key_in_use",
            "message": "an idempotency key belongs to another job",
            "details": ["idempotency_key: 'k' was used for another job"],
            "problems": [
                {
                    "message": "'k' was used for another job",
                    "path": ["idempotency_key"],
                    "code": "key_in_use",
                    "index": None,
                }
            ],
        }
    }


@pytest.mark.parametrize("body", ["{", '{"a": NaN}', "[" * 5000, "\xff", "", '{"a": 1, "a": 2}'])
def test_a_malformed_body_is_refused(client: TestClient, body: str) -> None:
    headers = {"Content-Type": "application/json"}
    answer = client.post("/api/jobs", content=body.encode("latin-1"), headers=headers)
    assert answer.status_code in (400, 422)
    assert answer.json()["error"]["code"] in ("bad_request", "invalid")


@pytest.mark.parametrize(
    "content_type",
    [
        None,
        "text/plain",
        "application/octet-stream",
        "nonsense",
        "application/x-www-form-urlencoded",
    ],
)
@pytest.mark.parametrize("body", [b"{}", b"\xff\x00", b"a=b"])
def test_json_needs_its_content_type(
    client: TestClient, content_type: str | None, body: bytes
) -> None:
    """Every route that takes JSON refuses any other content type instead of failing."""
    headers = {"Content-Type": content_type} if content_type else {}
    paths = client.get("/openapi.json").json()["paths"]
    operations = [
        (method.upper(), path.replace("{", "").replace("}", ""))
        for path, item in paths.items()
        for method, operation in item.items()
        if path.startswith("/api/")
        and "application/json" in operation.get("requestBody", {}).get("content", {})
    ]
    assert ("POST", "/api/jobs") in operations
    for method, path in operations:
        answer = client.request(method, path, content=body, headers=headers)
        assert answer.status_code == 422, (path, answer.text)
        assert "Content-Type: application/json" in answer.json()["error"]["details"][0], path


def test_jobs_carry_no_authority(settings: SettingsMaker) -> None:
    client = client_of(open_context(settings()))
    body = scripted(GOOD, workspace={"path": "/etc"})
    body["verifiers"] = [{"id": "command.subprocess", "argv": ["id"]}]
    answer = client.post("/api/jobs", json=body)
    assert answer.status_code == 422
    details = "\n".join(answer.json()["error"]["details"])
    for field in ("runner", "verifiers[0].argv", "workspace.path"):
        assert field in details


# -- tenants and texts -----------------------------------------------------------------------------


def test_a_tenant_s_token_submits_and_sees_only_its_own_jobs(context: ConsoleContext) -> None:
    admin = client_of(context, new_token(context, role="admin"))
    acme = client_of(context, new_token(context, role="producer", tenant="acme"))
    (mine,) = submit(acme, scripted(GOOD))
    other, unowned = submit(admin, scripted(GOOD, labels={"tenant": "b"}), scripted(GOOD))
    assert admin.get(f"/api/jobs/{mine}").json()["labels"] == {"tenant": "acme"}
    refused = acme.post("/api/jobs", json=scripted(GOOD, labels={"tenant": "b"}))
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "other_tenant")
    assert [row["id"] for row in acme.get("/api/jobs").json()["jobs"]] == [mine]
    for hidden in (other, unowned):
        assert acme.get(f"/api/jobs/{hidden}").status_code == 404
        assert acme.post(f"/api/jobs/{hidden}/cancel").status_code == 404
        assert acme.get(f"/api/jobs/{hidden}/events").status_code == 404
    assert len(admin.get("/api/jobs").json()["jobs"]) == 3


def test_texts_of_attempts_are_redacted_without_access_to_texts(context: ConsoleContext) -> None:
    answer = '{"name": "Rumpelstiltskin", "age": "31"}'
    prompt = "Who is Rumpelstiltskin?"
    (job_id,) = submit(client_of(context), scripted(*[answer] * 4, prompt=prompt))
    work(context, job_id)
    ops = client_of(context, new_token(context, role="ops"))
    reader = client_of(context, new_token(context, role="ops", texts=True))
    shown = reader.get(f"/api/jobs/{job_id}").json()
    assert shown["state"] == "escalated"
    assert shown["attempts"][0]["answer"] == answer
    hidden = ops.get(f"/api/jobs/{job_id}")
    assert "Rumpelstiltskin" not in hidden.text
    attempt = hidden.json()["attempts"][0]
    assert attempt["prompt"] == REDACTED
    assert attempt["failure"]["findings"][0]["path"] == "$.age"
    assert attempt["failure"]["findings"][0]["actual"] in (None, REDACTED)
    assert attempt["score"] == shown["attempts"][0]["score"]
    assert "Rumpelstiltskin" not in ops.get("/api/jobs").text
    assert "Rumpelstiltskin" not in ops.get(f"/api/jobs?ids={job_id}").text


def test_texts_of_a_submitted_job_are_redacted_without_access_to_texts(
    context: ConsoleContext,
) -> None:
    secret = "Rumpelstiltskin"
    other = f"In quite different words, and at some length: who is {secret}?"
    body = scripted(
        secret,
        messages=[{"role": "system", "content": secret}, {"role": "user", "content": secret}],
        verifiers=[{"id": "text.match", "contains": [secret], "min_length": 3, "weight": 2}],
        delayed_verification={"mode": "reformulate", "prompt": other, "after": 9},
    )
    del body["prompt"]
    (job_id,) = submit(client_of(context), body)
    shown = client_of(context).get(f"/api/jobs/{job_id}").json()["job"]
    assert shown["messages"] == body["messages"]
    assert shown["verifiers"] == body["verifiers"]
    assert shown["runner"] == body["runner"]
    hidden = client_of(context, new_token(context, role="ops")).get(f"/api/jobs/{job_id}")
    assert secret not in hidden.text
    job = hidden.json()["job"]
    assert job["verifiers"] == [
        {"id": "text.match", "contains": REDACTED, "min_length": 3, "weight": 2}
    ]
    assert job["runner"] == {"kind": "scripted", "answers": REDACTED}
    assert job["delayed_verification"] == {
        "mode": "reformulate", "prompt": REDACTED, "after": 9,
    }  # fmt: skip


# -- reading and cancelling ------------------------------------------------------------------------


def test_a_job_shows_its_attempts_and_cycles(context: ConsoleContext, client: TestClient) -> None:
    (job_id,) = submit(client, scripted(WRONG_TYPE, GOOD))
    work(context, job_id)
    job = client.get(f"/api/jobs/{job_id}").json()
    assert (job["state"], job["answer"], job["best_attempt"]) == ("succeeded", GOOD, 2)
    first, second = job["attempts"]
    assert (first["answer"], first["success"]) == (WRONG_TYPE, False)
    assert first["failure"]["kind"] == "schema_invalid"
    assert first["instruction"]["action"]
    assert first["results"][1]["errors"][0]["path"] == "$.age"
    assert second["mode"] == "immediate_retry"
    assert second["prompt"] != first["prompt"]
    assert second["technique"]
    assert second["score"] == 100
    assert second["settled_at"] >= second["started_at"]
    assert job["cycles"][0]["status"] == "pending_delayed_verification"


@pytest.mark.parametrize("job_id", ["nope", "p00-", "p00-x:1", "p99-x", "p00-X", "é"])
def test_an_invalid_job_id_is_not_found(client: TestClient, job_id: str) -> None:
    for path in (f"/api/jobs/{job_id}", f"/api/jobs/{job_id}/events"):
        assert client.get(path).status_code == 404
    assert client.post(f"/api/jobs/{job_id}/cancel").status_code == 404


def test_an_attempt_id_is_not_found_as_a_job(client: TestClient) -> None:
    (job_id,) = submit(client, scripted(GOOD))
    assert client.get(f"/api/jobs/{job_id}:1").status_code == 404


def test_only_an_unfinished_job_can_be_cancelled(
    context: ConsoleContext, client: TestClient
) -> None:
    waiting, done = submit(client, scripted(GOOD), scripted(GOOD))
    work(context, done)
    assert client.post(f"/api/jobs/{waiting}/cancel").json()["state"] == "cancelled"
    assert client.get(f"/api/jobs/{waiting}").json()["detail"] == "by loopback, over HTTP"
    late = client.post(f"/api/jobs/{done}/cancel")
    assert (late.status_code, late.json()["error"]["code"]) == (409, "ended")


# -- pages -----------------------------------------------------------------------------------------


def pages(client: TestClient, **query: Any) -> list[list[str]]:
    found, cursor = [], None
    while True:
        params = {**query, "cursor": cursor} if cursor else query
        answer = client.get("/api/jobs", params=params).json()
        found.append([row["id"] for row in answer["jobs"]])
        cursor = answer["cursor"]
        if cursor is None:
            return found


def listed(client: TestClient, **query: Any) -> list[str]:
    return [job_id for page in pages(client, **query) for job_id in page]


def test_pages_are_newest_first(client: TestClient) -> None:
    ids = submit(client, *(scripted(GOOD) for _ in range(7)))[::-1]
    assert pages(client, limit=3)[:3] == [ids[0:3], ids[3:6], ids[6:7]]
    assert listed(client, limit=7) == ids


def test_jobs_are_filtered_by_state_type_label_and_time(
    context: ConsoleContext, client: TestClient
) -> None:
    blue, red, done = submit(
        client,
        scripted(GOOD, labels={"colour": "blue", "size": "1"}),
        scripted(GOOD, labels={"colour": "red:dark"}, task_type="other"),
        scripted(GOOD),
    )
    work(context, done)
    created = client.get(f"/api/jobs/{red}").json()["created_at"]
    table: list[tuple[dict[str, Any], list[str]]] = [
        ({"state": "succeeded"}, [done]),
        ({"state": "queued"}, [red, blue]),
        ({"state": "cancelled"}, []),
        ({"task_type": "other"}, [red]),
        ({"label": "colour:blue"}, [blue]),
        ({"label": ["colour:blue", "size:1"]}, [blue]),
        ({"label": ["colour:blue", "size:2"]}, []),
        ({"label": "colour:red:dark"}, [red]),
        ({"since": created}, [done, red]),
        ({"until": created}, [red, blue]),
        ({"since": created, "until": created}, [red]),
    ]
    for query, expected in table:
        assert listed(client, **query) == expected, query


def test_jobs_named_by_id_come_in_that_order_and_unknown_ones_are_left_out(
    context: ConsoleContext, client: TestClient
) -> None:
    one, two, three = submit(client, *(scripted(GOOD) for _ in range(3)))
    named = f"{three},p00-nowhere,,{one},x:y,p77-1,{one}"
    answer = client.get("/api/jobs", params={"ids": named}).json()
    assert [row["id"] for row in answer["jobs"]] == [three, one]
    assert answer["cursor"] is None
    listed_row = next(row for row in client.get("/api/jobs").json()["jobs"] if row["id"] == one)
    assert answer["jobs"][1] == listed_row
    hundred = ",".join([two] * 100)
    assert [row["id"] for row in client.get(f"/api/jobs?ids={hundred}").json()["jobs"]] == [two]
    too_many = client.get(f"/api/jobs?ids={hundred},{one}")
    assert too_many.json()["error"]["details"] == ["ids: up to 100 at a time, not 101"]
    assert client.get(f"/api/jobs?ids={one}&state=queued").status_code == 422
    acme = client_of(context, new_token(context, role="producer", tenant="acme"))
    (mine,) = submit(acme, scripted(GOOD))
    found = acme.get(f"/api/jobs?ids={one},{mine}").json()["jobs"]
    assert [row["id"] for row in found] == [mine]


@pytest.mark.parametrize(
    "query",
    [{"limit": 0}, {"limit": 501}, {"state": "x"}, {"label": "x"}, {"cursor": "x"},
     {"cursor": "1~;"}, {"since": "nan"}, {"until": "inf"}, {"since": -1}],
)  # fmt: skip
def test_an_invalid_filter_is_refused(client: TestClient, query: dict[str, Any]) -> None:
    answer = client.get("/api/jobs", params=query)
    assert answer.status_code == 422
    assert answer.json()["error"]["details"][0].startswith(next(iter(query)))


def test_a_page_scans_a_bounded_number_of_jobs_and_the_next_continues_there(
    context: ConsoleContext, client: TestClient
) -> None:
    rare = submit(client, scripted(GOOD, task_type="rare"))
    submit(client, *(scripted(GOOD) for _ in range(9)))
    found, cursor, count = [], None, 0
    while count == 0 or cursor:
        page = context.ledger.page_jobs(JobFilter(task_type="rare"), limit=5, cursor=cursor, scan=4)
        found += [row.id for row in page.jobs]
        cursor, count = page.cursor, count + 1
    assert (found, count) == (rare, 3)  # 4 + 4 + 2 jobs


@hypothesis_settings(max_examples=30, deadline=None)
@given(
    scores=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), max_size=25),
    limit=st.integers(1, 6),
    scan=st.integers(1, 6),
)
def test_pages_over_partitions_neither_miss_nor_repeat_jobs(
    partitioned_context: ConsoleContext, scores: list[tuple[int, int]], limit: int, scan: int
) -> None:
    calls = partitioned_context.ledger.calls
    calls.run("FLUSHALL")
    for number, (partition, at) in enumerate(scores):
        prefix, job = f"mulligan:{{p0{partition}}}:", f"p0{partition}-{number:02d}"
        calls.run("ZADD", prefix + "jobs", at, job)
        calls.run("HSET", prefix + f"job:{job}", "state", "queued", "body", "{}")
    found: list[tuple[float, str]] = []
    cursor = None
    for _ in range(100):
        page = partitioned_context.ledger.page_jobs(
            JobFilter(), limit=limit, cursor=cursor, scan=scan
        )
        found += [(scores[int(row.id[4:])][1], row.id) for row in page.jobs]
        cursor = page.cursor
        if cursor is None:
            break
    assert cursor is None
    assert found == sorted(found, reverse=True)
    assert len(set(found)) == len(found) == len(scores)


@pytest.fixture(scope="module")
def partitioned_context(redis_socket: Any) -> ConsoleContext:
    return open_context(Settings(broker_url=f"redis+socket://{redis_socket}", partitions=3))
