"""Another release on the same ledger."""

from __future__ import annotations

from dataclasses import replace

from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.ledger.stored.schema import CURRENT, StoredSchema
from support.ledger_scenario import Scenario

#: The next release: jobs with labels, corrected prompts, answers of a named model and results with
#: a summary need its schema.
NEXT = StoredSchema(
    number=CURRENT.number + 1,
    release="9.1.0",
    added=dict.fromkeys(
        (
            "Job.labels",
            "AttemptPlan.prompt",
            "Output.model",
            "VerificationResult.summary",
            "PolicySpec.escalate_on=tool_error",
            "DelayedVerification.mode=reformulate",
        ),
        CURRENT.number + 1,
    ),
)
#: What a job that needs it waits for.
NEXT_WORKER = f"a worker of version 9.1.0 or later (schema {NEXT.number})"


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
