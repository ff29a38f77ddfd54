"""External work over HTTP: the subject's mandatory retry comes first, leased, settled once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient
from support.console_server import client_of, error_of, new_token, post_json

from mulligan.console.http.context import ConsoleContext, open_context
from mulligan.policies.cycles.cycle import PROTOCOL_VERSION
from mulligan.workers.settings.model import Settings

PROMPT = "Write the past tense of 'to go' in one short sentence about yesterday."
OTHER = "Yesterday, how did you travel to school? Answer with one full sentence."

LONG = " ".join(f"word{n}" for n in range(600))


@pytest.fixture
def context(settings: Callable[..., Settings]) -> ConsoleContext:
    return open_context(settings())


@pytest.fixture
def api(context: ConsoleContext) -> TestClient:
    return client_of(context)


def attempt(**fields: Any) -> dict[str, Any]:
    defaults = {"subject": "mia", "task_type": "past_tense", "prompt": PROMPT, "score": 40,
                "answer": "I goed to school.", "feedback": "'goed' is not a word"}  # fmt: skip
    return {**defaults, **fields}


def record(api: TestClient, **fields: Any) -> dict[str, Any]:
    return post_json(api, "/api/attempts", 201, **attempt(**fields))


def next_task(api: TestClient, subject: str = "mia") -> dict[str, Any]:
    return post_json(api, f"/api/task/next?subject={subject}")


def test_a_good_attempt_ends_the_job(api: TestClient) -> None:
    result = record(api, score=85)
    assert (result["state"], result["success"], result["next_attempt"]) == ("succeeded", True, None)
    assert api.post("/api/task/next?subject=mia").status_code == 204


def test_a_low_score_is_the_subject_s_next_task_with_a_corrected_prompt(api: TestClient) -> None:
    result = record(api)
    assert (result["next_mode"], result["cycle_status"]) == (
        "immediate_retry",
        "pending_immediate_retry",
    )
    task = next_task(api)
    assert task["jobId"] == result["job_id"]
    assert task["selfRepair"] == {
        "mode": "immediate_retry",
        "cycleId": result["cycle_id"],
        "protocolVersion": PROTOCOL_VERSION,
    }
    assert task["prompt"].startswith(PROMPT)
    assert "'goed' is not a word" in task["prompt"]


def test_the_retry_comes_before_the_subject_s_other_tasks(api: TestClient) -> None:
    for number in range(3):
        new = {"task_type": "past_tense", "prompt": f"Task {number}", "subject": "mia",
               "runner": {"kind": "external"}, "verifiers": ["json.object"]}  # fmt: skip
        assert api.post("/api/jobs", json=new).status_code == 202
    result = record(api)
    assert next_task(api)["jobId"] == result["job_id"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},  # an image on their page
        {"Sec-Fetch-Site": "same-site"},  # another port of this host
        {"Origin": "http://evil.example"},
    ],
)
def test_a_page_of_another_site_cannot_claim_a_task(
    context: ConsoleContext, api: TestClient, headers: dict[str, str]
) -> None:
    result = record(api)
    refused = api.get("/api/task/next", params={"subject": "mia"}, headers=headers)
    assert error_of(refused) == (403, "cross_site")
    view = context.ledger.job(result["job_id"])
    assert view is not None
    assert view.attempts[1].state == "queued"
    response = api.get("/api/task/next", params={"subject": "mia"})
    assert (response.status_code, response.headers["cache-control"]) == (200, "no-store")


def test_the_retry_is_leased_to_its_subject(api: TestClient) -> None:
    record(api)
    first = next_task(api)
    assert next_task(api) == first
    got = api.get("/api/task/next?subject=mia")
    assert (got.json(), got.headers["Cache-Control"]) == (first, "no-store")
    assert api.post("/api/task/next?subject=tom").status_code == 204


def test_the_token_settles_the_retry_once(api: TestClient) -> None:
    result = record(api)
    task = next_task(api)
    report = {"token": task["token"], "score": 90, "answer": "I went to school."}
    done = api.post("/api/attempts", json=report).json()
    assert (done["state"], done["attempt"], done["success"]) == ("succeeded", 2, True)
    assert (done["cycle_id"], done["cycle_status"]) == (
        result["cycle_id"],
        "pending_delayed_verification",
    )
    again = api.post("/api/attempts", json=report)
    assert (again.status_code, again.json()) == (201, done)
    other = api.post("/api/attempts", json={**report, "score": 10})
    assert error_of(other) == (409, "other_report")
    assert api.post("/api/task/next?subject=mia").status_code == 204


def test_a_forged_or_malformed_token_settles_nothing(api: TestClient) -> None:
    record(api)
    token = next_task(api)["token"]
    forged = token[:-4] + "beef"
    assert error_of(api.post("/api/attempts", json={"token": forged, "score": 90})) == (409, "held")
    for wrong in ("nonsense", "a:p00-gone/2.abcd", "v:p00-x/1/0.aa", "a:../../x/1.aa"):
        response = api.post("/api/attempts", json={"token": wrong, "score": 90})
        assert response.status_code in (404, 422), response.text


def test_the_same_attempt_reported_twice_is_one_job(api: TestClient) -> None:
    first = record(api, idempotency_key="mia-1")
    assert record(api, idempotency_key="mia-1") == first
    for other in (attempt(prompt="Another"), attempt(score=90), attempt(answer="I went.")):
        response = api.post("/api/attempts", json={**other, "idempotency_key": "mia-1"})
        assert response.status_code == 409, response.text
    assert record(api, idempotency_key="mia-1") == first


def test_the_key_of_a_report_may_be_a_header(api: TestClient) -> None:
    key = {"Idempotency-Key": "mia-2"}
    first = api.post("/api/attempts", json=attempt(), headers=key)
    assert api.post("/api/attempts", json=attempt(), headers=key).json() == first.json()
    assert record(api, idempotency_key="mia-2") == first.json()
    both = {**attempt(), "idempotency_key": "another"}
    assert api.post("/api/attempts", json=both, headers=key).status_code == 422


def test_a_report_on_a_task_that_is_held_is_refused(api: TestClient) -> None:
    new = {"task_type": "past_tense", "prompt": PROMPT, "subject": "mia", "idempotency_key": "k",
           "runner": {"kind": "external"}, "verifiers": ["external.score"],
           "delayed_verification": {"mode": "reformulate"}}  # fmt: skip
    assert api.post("/api/jobs", json=new).status_code == 202
    task = next_task(api)
    response = api.post("/api/attempts", json=attempt(idempotency_key="k"))
    assert error_of(response) == (409, "held")
    done = api.post("/api/attempts", json={"token": task["token"], "score": 90})
    assert done.status_code == 201, done.text


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"subject": "mia", "score": 50}, "without a token, give task_type, prompt"),
        (attempt(score=101), "score"),
        (attempt(score=None), "without a token, give score"),
        ({"token": "a:p00-x/2.aa", "score": 1, "subject": "mia"}, "leave out subject"),
        (attempt(nonsense=1), "nonsense"),
        (attempt(policy={"max_attempts": 1}), "max_attempts"),
    ],
)
def test_an_invalid_report_is_refused_with_the_reason(
    api: TestClient, body: dict[str, Any], expected: str
) -> None:
    response = api.post("/api/attempts", json=body)
    assert response.status_code == 422
    assert expected in " ".join(response.json()["error"]["details"])


def test_an_external_job_with_verifiers_ignores_the_reported_score(api: TestClient) -> None:
    new = {"task_type": "extract", "prompt": "JSON, please.", "subject": "mia",
           "runner": {"kind": "external"}, "verifiers": ["json.object"]}  # fmt: skip
    assert api.post("/api/jobs", json=new).status_code == 202
    task = next_task(api)
    assert task["selfRepair"] is None
    report = {"token": task["token"], "answer": "no JSON", "score": 100}
    result = api.post("/api/attempts", json=report).json()
    assert (result["success"], result["next_mode"]) == (False, "immediate_retry")
    again = next_task(api)
    report = {"token": again["token"], "answer": '{"a": 1}'}
    assert api.post("/api/attempts", json=report).json()["state"] == "succeeded"


def test_a_delayed_verification_in_other_words_completes_the_cycle(
    context: ConsoleContext, api: TestClient
) -> None:
    delayed = {"after": 0, "mode": "reformulate"}
    result = record(api, delayed_verification=delayed)
    retry = next_task(api)
    api.post("/api/attempts", json={"token": retry["token"], "score": 90})
    task = next_task(api)
    assert task["selfRepair"]["mode"] == "delayed_verification"
    assert task["otherWords"]["maxSimilarity"] == 0.88
    same = api.post("/api/attempts", json={"token": task["token"], "score": 95, "prompt": PROMPT})
    assert error_of(same) == (422, "duplicate_prompt_formulation")
    none = api.post("/api/attempts", json={"token": task["token"], "score": 95})
    assert error_of(none) == (422, "missing_prompt_context")
    good = api.post("/api/attempts", json={"token": task["token"], "score": 95, "prompt": OTHER})
    assert good.status_code == 201, good.text
    verified = good.json()
    assert (verified["mode"], verified["score"]) == ("delayed_verification", 95)
    assert (verified["success"], verified["cycle_status"]) == (True, "completed")
    repeated = {"token": task["token"], "score": 95, "prompt": OTHER}
    again = api.post("/api/attempts", json=repeated)
    assert (again.status_code, again.json()) == (201, verified)
    other = api.post("/api/attempts", json={**repeated, "score": 10})
    assert error_of(other) == (409, "other_report")
    forged = api.post("/api/attempts", json={"token": task["token"] + "0", "score": 95})
    assert error_of(forged) == (409, "finished")
    cycle = context.ledger.job(result["job_id"]).cycles[0]  # type: ignore[union-attr] # it exists
    assert cycle.status == "completed"
    report = api.get("/api/quality/self-repair-delayed-verification").json()
    assert report["validCount"] == 1
    assert report["invalidReasons"]["duplicate_prompt_formulation"] == 1


def test_a_suggested_prompt_counts_as_reformulated(api: TestClient) -> None:
    for subject, prompt, available in (("mia", PROMPT, True), ("noa", LONG, False)):
        record(
            api,
            subject=subject,
            prompt=prompt,
            delayed_verification={"after": 0, "mode": "reformulate"},
        )
        retry = next_task(api, subject)
        api.post("/api/attempts", json={"token": retry["token"], "score": 90})
        task = next_task(api, subject)
        suggestion = task["otherWords"]["suggestion"]
        assert (suggestion is not None) is available
        verification = {"token": task["token"], "score": 90, "prompt": suggestion or OTHER}
        assert api.post("/api/attempts", json=verification).status_code == 201


def test_a_low_delayed_verification_escalates_the_cycle_and_leaves_the_job(
    context: ConsoleContext, api: TestClient
) -> None:
    result = record(api, delayed_verification={"after": 0, "mode": "reformulate"})
    api.post("/api/attempts", json={"token": next_task(api)["token"], "score": 90})
    task = next_task(api)
    api.post("/api/attempts", json={"token": task["token"], "score": 30, "prompt": OTHER})
    view = context.ledger.job(result["job_id"])
    assert view is not None
    assert (view.state, view.cycles[0].status) == ("succeeded", "escalated")
    assert [group.reason for group in context.ledger.groups()] == ["delayed_verification"]


def test_the_guardrail_stops_the_third_loop_of_a_skill(
    settings: Callable[..., Settings],
) -> None:
    api = client_of(open_context(settings(guard_subjects=True)))
    for _ in range(2):
        record(api, seconds=600)
        api.post("/api/attempts", json={"token": next_task(api)["token"], "score": 90})
    result = record(api, seconds=600)
    assert (result["state"], result["reason"]) == ("escalated", "per_skill_loop_cap")
    assert result["cycle_status"] == "escalated"
    budget = api.get("/api/quality/self-repair-budget").json()
    assert budget["exhaustionReasons"]["per_skill_loop_cap"] == budget["exhaustedCount"] == 1


def test_tenants_do_not_share_subjects(context: ConsoleContext) -> None:
    acme, rival = (
        client_of(context, new_token(context, role="producer", tenant=tenant))
        for tenant in ("acme", "rival")
    )
    record(acme)
    assert rival.post("/api/task/next?subject=mia").status_code == 204
    token = next_task(acme)["token"]
    assert rival.post("/api/attempts", json={"token": token, "score": 90}).status_code == 404
    assert rival.post("/api/task/next?subject=mia&tenant=acme").status_code in (204, 404)
    ops = client_of(context, new_token(context, role="ops"))
    assert ops.post("/api/task/next?subject=mia").status_code == 403
