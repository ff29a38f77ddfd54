"""Job declares a job's fields; everything that repeats them is compared with it here."""

from __future__ import annotations

from typing import get_args

from support.jobs import make_job

from mulligan.client.build_jobs import JobOptions
from mulligan.client.http_rows import view_of
from mulligan.console.http.models.job_models import JobDocument, JobSummary, document
from mulligan.console.http.routes.external_routes import AttemptReport
from mulligan.console.http.routes.job_routes import JobsBody
from mulligan.console.jobfiles.job_schema import job_schema
from mulligan.console.reports.job_document import job_summary
from mulligan.policies.cycles.cycle import SelfRepairCycle
from mulligan.policies.jobs.job import AttemptPlan, Decoding, Job, Output, Usage
from mulligan.policies.repair.verdict import Verdict
from mulligan.tasks.ports.ledger import AttemptView, JobView

FIELDS = Job.model_fields.keys()
#: The prompt is an argument of the client; external work has separate routes.
NOT_OPTIONS = {"prompt", "messages", "subject"}
#: The fields of an external attempt; the others belong to its job.
OF_THE_ATTEMPT = {"token", "answer", "score", "feedback", "findings", "task_family", "seconds",
                  "usage", "model"}  # fmt: skip


def test_every_field_is_an_option_of_the_client() -> None:
    # Not get_type_hints: only type checkers import the types.
    assert JobOptions.__annotations__.keys() == FIELDS - NOT_OPTIONS


def test_every_field_is_in_the_schema_of_job_files() -> None:
    properties = job_schema()["$defs"]["job"]["properties"]
    assert properties.keys() == FIELDS | {"prompt_file", "vars"}


def test_every_field_is_in_the_schema_of_the_api() -> None:
    _, body = get_args(JobsBody)
    one, many, wrapped = body.json_schema_extra["anyOf"]
    assert one["properties"].keys() == FIELDS
    assert many["items"] == wrapped["properties"]["jobs"]["items"] == one


def test_an_external_attempt_names_fields_of_a_job() -> None:
    assert AttemptReport.model_fields.keys() - OF_THE_ATTEMPT < FIELDS


def example() -> JobView:
    """Return a job with one attempt, with a value for every field of both."""
    plan = AttemptPlan(
        number=1, prompt="Another prompt.", decoding=Decoding(temperature=0.5), technique="t",
        cures="c", cycle_id="j:1:1", since=0,
    )  # fmt: skip
    output = Output(text="{}", finish_reason="stop", usage=Usage(total_tokens=3), model="small",
                    elapsed_seconds=1.5, diff="sha256:0")  # fmt: skip
    attempt = AttemptView(
        plan=plan, state="settled", output=output, verdict=Verdict(score=40.0), queued_at=1.0,
        started_at=2.0, settled_at=3.0, worker="w", claims=1, faults=2, last_fault="f",
    )  # fmt: skip
    cycle = SelfRepairCycle(id="j:1:1", job_id="j", source_attempt=1, loop_index=1, created_at=3.0)
    return JobView(
        id="j", job=make_job(), state="running", waiting_for=None, reason="r", detail="d",
        created_at=1.0, finished_at=None, best_attempt=1, tokens=3, seconds=1.5, tenant="acme",
        attempts=(attempt,), cycles=(cycle,),
    )  # fmt: skip


def test_a_client_reads_every_field_that_the_api_returns() -> None:
    view = example()
    body = document(view, texts=True).model_dump(mode="json")
    assert view_of(body) == view
    assert body["attempts"][0]["decoding"] == {"temperature": 0.5}
    assert "job_id" not in body["cycles"][0]


def test_the_command_line_and_the_api_have_the_same_summary() -> None:
    assert job_summary(example()).keys() | {"tenant"} == JobSummary.model_fields.keys()
    assert JobSummary.model_fields.keys() < JobDocument.model_fields.keys()
