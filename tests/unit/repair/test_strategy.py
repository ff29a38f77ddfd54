"""From a verdict to the next attempt: its prompt and its decoding."""

from __future__ import annotations

from typing import Any

import pytest

from mulligan.policies.failures.failure import Finding, VerificationResult, VerificationStatus
from mulligan.policies.failures.memory import RetryMemory
from mulligan.policies.jobs.job import AttemptPlan, Decoding, Job, Output
from mulligan.policies.repair.retry import ChangeStrategy, Escalate, Retry
from mulligan.policies.repair.strategy import best_techniques, contract_of, plan_next, preferred
from mulligan.policies.repair.verdict import Verdict, judge, judge_error, verdict_to_dict
from mulligan.tasks.ports.runners import constrains as runner_constrains
from mulligan.workers.runners.openai import OpenAIRunner, response_format
from mulligan.workers.runners.scripted import ScriptedRunner

SCHEMA = {"type": "object", "required": ["age"], "properties": {"age": {"type": "integer"}}}


def job(**changes: Any) -> Job:
    fields: dict[str, Any] = {
        "task_type": "extract",
        "prompt": "Extract the age.",
        "runner": "small",
        "verifiers": [{"id": "contract.schema", "schema": SCHEMA}],
        **changes,
    }
    return Job.model_validate(fields)


WRONG_TYPE = VerificationResult(
    status=VerificationStatus.FAIL,
    verifier_id="contract.schema",
    errors=(
        Finding(
            message="must be integer",
            code="type",
            path="$.age",
            schema_path="/properties/age/type",
            expected="integer",
            actual="31",
        ),
    ),
)
TRUNCATED = VerificationResult(
    status=VerificationStatus.FAIL,
    verifier_id="json.object",
    evidence={"shape": "truncated", "truncated": True},
    errors=(Finding(message="cut off", code="truncated"),),
)


def next_plan(
    verdict: Verdict, *, asked_with: Decoding | None = None, of: Job | None = None
) -> AttemptPlan:
    assert isinstance(verdict.decision, Retry)
    return plan_next(
        of or job(),
        AttemptPlan(),
        verdict,
        verdict.decision,
        output=Output(text='{"age": "31"}'),
        asked_with=asked_with or Decoding(temperature=0.8, max_tokens=120),
        cycle_id="j:1:1",
    )


def test_a_low_score_is_corrected_at_once() -> None:
    verdict = judge(job(), AttemptPlan(), [WRONG_TYPE], RetryMemory())
    plan = next_plan(verdict)
    assert (plan.number, plan.mode, plan.cycle_id) == (2, "immediate_retry", "j:1:1")
    assert plan.prompt is not None
    assert "Extract the age." in plan.prompt
    assert "$.age" in plan.prompt
    assert '{"age": "31"}' in plan.prompt
    assert plan.decoding.constrained
    assert plan.decoding.temperature is not None
    assert plan.decoding.temperature < 0.8
    assert plan.technique is not None
    assert plan.technique.endswith("+constrained")
    assert verdict.failure is not None
    assert plan.cures == verdict.failure.coarse_signature


def test_a_truncated_answer_gets_a_larger_cap_and_is_not_shown_again() -> None:
    of = job(verifiers=["json.object"])
    plan = next_plan(judge(of, AttemptPlan(), [TRUNCATED], RetryMemory()), of=of)
    assert plan.decoding.max_tokens is not None
    assert plan.decoding.max_tokens > 120
    assert plan.prompt is not None
    assert '{"age": "31"}' not in plan.prompt


TOO_LONG = VerificationResult(
    status=VerificationStatus.FAIL,
    verifier_id="text.match",
    errors=(Finding(message="too many", code="too_long", expected=100, actual=900),),
)


@pytest.mark.parametrize("results", [[TOO_LONG], [TRUNCATED, TOO_LONG], [TOO_LONG, TRUNCATED]])
def test_an_answer_over_a_maximum_gets_no_larger_cap_although_it_was_cut_off(
    results: list[VerificationResult],
) -> None:
    checked = job(verifiers=[{"id": result.verifier_id} for result in results])
    verdict = judge(checked, AttemptPlan(), results, RetryMemory(), truncated=True)
    plan = next_plan(verdict, of=checked)
    assert verdict.instruction is not None
    assert verdict.instruction.action == "shorten_answer"
    assert plan.decoding.max_tokens == 120
    assert "at most 100 characters" in (plan.prompt or "")


def test_a_changed_strategy_has_a_fresh_context_and_the_next_model() -> None:
    first = judge(job(), AttemptPlan(), [WRONG_TYPE], RetryMemory())
    assert first.failure is not None
    memory = RetryMemory().record(first.failure)
    plan = AttemptPlan(number=2, mode="immediate_retry")
    verdict = judge(job(), plan, [WRONG_TYPE], memory)
    assert isinstance(verdict.decision, ChangeStrategy)
    after = next_plan(verdict)
    assert after.prompt is not None
    assert "31" not in after.prompt
    assert after.prompt.startswith("Extract the age.")
    assert after.decoding.fallback == 1
    assert after.technique is not None
    assert "fresh_context" in after.technique


def test_an_unverified_attempt_is_escalated() -> None:
    skipped = VerificationResult(status=VerificationStatus.SKIPPED, verifier_id="contract.schema")
    verdict = judge(job(), AttemptPlan(), [skipped], RetryMemory())
    assert not verdict.success
    assert verdict.decision == Escalate(reason="not_verified")


def test_the_first_failed_required_verifier_decides() -> None:
    of = job(
        verifiers=[
            {"id": "json.object", "required": False},
            {"id": "contract.schema", "schema": SCHEMA},
        ]
    )
    verdict = judge(of, AttemptPlan(), [TRUNCATED, WRONG_TYPE], RetryMemory())
    assert verdict.failure is not None
    assert verdict.failure.verifier_id == "contract.schema"
    assert len(verdict.signatures) == 2


def test_a_low_score_is_a_failure_even_if_every_verifier_passes() -> None:
    poor = VerificationResult(
        status=VerificationStatus.PASS, verifier_id="contract.schema", score=40
    )
    verdict = judge(job(), AttemptPlan(), [poor], RetryMemory())
    assert verdict.failure is not None
    assert verdict.failure.kind == "reasoning_error"
    assert isinstance(verdict.decision, Retry)


def test_an_attempt_without_an_answer_opens_no_cycle() -> None:
    verdict = judge_error(job(), AttemptPlan(), TimeoutError("slow"), RetryMemory())
    assert isinstance(verdict.decision, Retry)
    assert verdict.decision.mode == "policy_retry"


def test_a_final_error_is_not_retried() -> None:
    error = PermissionError("key refused")
    verdict = judge_error(job(), AttemptPlan(), error, RetryMemory(), final=True)
    assert isinstance(verdict.decision, Escalate)


def test_a_verdict_is_plain_json() -> None:
    verdict = judge(job(), AttemptPlan(), [WRONG_TYPE], RetryMemory())
    plain = verdict_to_dict(verdict)
    assert plain["decision"]["action"] == "retry"
    assert plain["failure"]["kind"] == "schema_invalid"


@pytest.mark.parametrize(
    ("remedies", "best"),
    [
        ({}, []),
        ({"a": (0, 4)}, []),  # never worked
        ({"a": (1, 4)}, []),  # worked less than half of the time
        ({"a": (2, 4), "b": (3, 3), "c": (9, 10)}, ["b", "c"]),  # 100 %, 90 %, then 50 %
    ],
)
def test_only_techniques_that_mostly_worked_are_passed_on(
    remedies: dict[str, tuple[int, int]], best: list[str]
) -> None:
    assert best_techniques(remedies) == best


@pytest.mark.parametrize(
    ("remedies", "changes"),
    [
        ({}, False),
        ({"plain": (0, 2)}, False),  # too few tries to tell
        ({"plain": (0, 3)}, True),
        ({"plain": (1, 30)}, False),  # it worked once
        ({"plain": (0, 3), "plain+fresh_context": (0, 3)}, False),
        ({"plain": (0, 3), "plain+fresh_context": (1, 3)}, True),
    ],
)
def test_what_never_helped_anywhere_is_not_tried_first(
    remedies: dict[str, tuple[int, int]], changes: bool
) -> None:
    verdict = judge(job(), AttemptPlan(), [WRONG_TYPE], RetryMemory())
    assert isinstance(verdict.decision, Retry)
    technique = next_plan(verdict).technique or ""
    named = {name.replace("plain", technique): each for name, each in remedies.items()}
    found = preferred(job(), verdict, verdict.decision, Decoding(), named)
    assert isinstance(found, ChangeStrategy) is changes
    assert found.mode == verdict.decision.mode


def test_a_job_without_a_contract_has_none() -> None:
    assert contract_of(job(verifiers=["json.object"])) is None
    assert contract_of(job()) == SCHEMA


def test_a_fence_around_a_file_is_mentioned_in_the_prompt() -> None:
    failed = VerificationResult(
        status=VerificationStatus.FAIL,
        verifier_id="pytest.subprocess",
        evidence={"coercions": ["fence", "prose"]},
        errors=(Finding(message="1 != 2", code="assertion", path="t.py::test_it"),),
    )
    exercise = job(
        verifiers=["pytest.subprocess"], workspace={"snapshot": "-", "output_file": "a.py"}
    )
    plan = next_plan(judge(exercise, AttemptPlan(), [failed], RetryMemory()), of=exercise)
    assert plan.prompt is not None
    assert "Do not put ``` around the file." in plan.prompt
    assert "JSON" not in plan.prompt


PROSE = VerificationResult(
    status=VerificationStatus.FAIL,
    verifier_id="json.object",
    evidence={"shape": "prose"},
    errors=(Finding(message="prose", code="prose"),),
)


@pytest.mark.parametrize(
    ("verifiers", "expected"),
    [
        (["json.object"], "json_object"),
        (["json.object", {"id": "contract.schema", "schema": SCHEMA}], "json_schema"),
        (["text.match"], None),  # the answer need not be JSON
    ],
)
def test_an_answer_that_should_be_json_is_constrained(
    verifiers: list[Any], expected: str | None
) -> None:
    of = job(verifiers=verifiers)
    failed = [PROSE.model_copy(update={"verifier_id": spec.id}) for spec in of.verifiers]
    plan = next_plan(judge(of, AttemptPlan(), failed, RetryMemory()), of=of)
    requested = response_format("json_schema", plan.decoding, contract_of(of))
    assert (requested and requested["type"]) == expected
    assert plan.technique is not None
    assert plan.technique.endswith("+constrained") is (expected is not None)


def test_a_changed_strategy_constrains_even_without_a_schema() -> None:
    of = job(verifiers=["json.object"])
    first = judge(of, AttemptPlan(), [TRUNCATED], RetryMemory())
    assert first.failure is not None
    memory = RetryMemory().record(first.failure)
    plan = AttemptPlan(number=2, mode="immediate_retry")
    after = next_plan(judge(of, plan, [TRUNCATED], memory), of=of)
    assert (after.decoding.fallback, after.decoding.constrained) == (1, True)


# -- constrained to the contract ------------------------------------------------------------------


def plan_for(
    result: VerificationResult,
    *,
    asked_with: Decoding,
    constrains: bool,
    text: str = '{"age": "31"}',
) -> str:
    verdict = judge(job(), AttemptPlan(), [result], RetryMemory())
    assert isinstance(verdict.decision, Retry)
    plan = plan_next(
        job(),
        AttemptPlan(),
        verdict,
        verdict.decision,
        output=Output(text=text),
        asked_with=asked_with,
        constrains=lambda decoding, _: decoding.constrained and constrains,
    )
    return plan.prompt or ""


def test_a_constrained_attempt_is_asked_only_for_what_constraining_cannot_give() -> None:
    prompt = plan_for(WRONG_TYPE, asked_with=Decoding(), constrains=True)
    assert prompt == "Extract the age."


def test_a_runner_that_cannot_constrain_gets_the_contract_and_the_answer() -> None:
    prompt = plan_for(WRONG_TYPE, asked_with=Decoding(), constrains=False)
    assert "JSON Schema" in prompt
    assert '{"age": "31"}' in prompt
    assert "Write the value without quotes." in prompt


def test_an_attempt_that_was_not_constrained_after_all_gets_the_contract() -> None:
    """A server may ignore the schema: a constrained answer with a wrong type proves it."""
    prompt = plan_for(WRONG_TYPE, asked_with=Decoding(constrained=True), constrains=True)
    assert "JSON Schema" in prompt
    assert "Write the value without quotes." in prompt


@pytest.mark.parametrize(
    ("options", "fallback", "constrains"),
    [
        ({}, 0, True),
        ({"constrain": "json_object"}, 0, False),
        ({"constrain": "none"}, 0, False),
        ({"fallbacks": [{"model": "b", "constrain": "none"}]}, 0, True),
        ({"fallbacks": [{"model": "b", "constrain": "none"}]}, 1, False),
    ],
)
def test_a_runner_says_whether_it_constrains_to_a_schema(
    options: dict[str, Any], fallback: int, constrains: bool
) -> None:
    runner = OpenAIRunner.from_options({"model": "a", "base_url": "http://127.0.0.1:1"} | options)
    asked = Decoding(constrained=True, fallback=fallback)
    closed = {**SCHEMA, "additionalProperties": False}
    assert runner_constrains(runner, asked, closed) is constrains
    assert not runner_constrains(runner, asked, SCHEMA), "OpenAI does not enforce an open schema"
    assert not runner_constrains(runner, Decoding(fallback=fallback), closed)
    scripted = ScriptedRunner.from_options({"answers": ["x"]})
    assert not runner_constrains(scripted, asked, closed)
