"""Another release on the same ledger."""

from __future__ import annotations

from dataclasses import replace

from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.ledger.stored.schema import StoredSchema
from support.ledger_scenario import Scenario

#: The next release: jobs with labels, corrected prompts, answers of a named model and results with
#: a summary need its schema.
NEXT = StoredSchema(
    number=2,
    release="9.1.0",
    added={
        "Job.labels": 2,
        "AttemptPlan.prompt": 2,
        "Output.model": 2,
        "VerificationResult.summary": 2,
        "PolicySpec.escalate_on=tool_error": 2,
        "DelayedVerification.mode=reformulate": 2,
    },
)
#: What a job that needs it waits for.
NEXT_WORKER = "a worker of version 9.1.0 or later (schema 2)"


def of_release(scenario: Scenario, schema: StoredSchema) -> Scenario:
    """The same ledger, as a worker of another release uses it."""
    ledger = RedisLedger(
        scenario.ledger.calls._client,
        scenario.settings,
        patience=5.0,
        test_clock=scenario.clock,
        schema=schema,
    )
    return replace(scenario, ledger=ledger)
