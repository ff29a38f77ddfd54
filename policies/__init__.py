"""Pure values and decisions: no broker, no clock, no randomness, no files, no network.

The handbook's names are exported here and imported at first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mulligan.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from mulligan.policies.cycles.cycle import PROTOCOL_VERSION, CycleStatus, SelfRepairCycle
    from mulligan.policies.cycles.guardrail import Guardrail
    from mulligan.policies.edits.edit import (
        AutonomyMode,
        Edit,
        EditOp,
        EditOutcome,
        EditPlan,
        EditRiskTier,
    )
    from mulligan.policies.failures.classify import classify_failure
    from mulligan.policies.failures.failure import (
        ConfigFailure,
        FailureKind,
        FailureRecord,
        Finding,
        ParseFailure,
        SchemaFailure,
        VerificationResult,
        VerificationStatus,
        failure_record_from_dict,
        failure_record_to_dict,
    )
    from mulligan.policies.failures.memory import RetryMemory
    from mulligan.policies.jobs.job import (
        AttemptPlan,
        Budget,
        Decoding,
        Job,
        Output,
        PolicySpec,
        RunnerSpec,
        Usage,
        VerifierSpec,
        Workspace,
    )
    from mulligan.policies.repair.instruction import (
        RepairInstruction,
        reduce_failure_to_repair,
        repair_instruction_from_dict,
        repair_instruction_to_dict,
    )
    from mulligan.policies.repair.prompt import build_corrected_prompt
    from mulligan.policies.repair.retry import (
        PASSING_SCORE,
        ChangeStrategy,
        Decision,
        Escalate,
        Retry,
        RetryPolicy,
    )
    from mulligan.policies.repair.verdict import (
        Verdict,
        judge,
        judge_error,
        verdict_from_dict,
        verdict_to_dict,
    )
    from mulligan.policies.value import Value
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "mulligan.policies.cycles.cycle": "CycleStatus PROTOCOL_VERSION SelfRepairCycle",
            "mulligan.policies.cycles.guardrail": "Guardrail",
            "mulligan.policies.edits.edit": (
                "AutonomyMode Edit EditOp EditOutcome EditPlan EditRiskTier"
            ),
            "mulligan.policies.failures.classify": "classify_failure",
            "mulligan.policies.failures.failure": (
                "ConfigFailure FailureKind FailureRecord Finding ParseFailure SchemaFailure"
                " VerificationResult VerificationStatus failure_record_from_dict"
                " failure_record_to_dict"
            ),
            "mulligan.policies.failures.memory": "RetryMemory",
            "mulligan.policies.jobs.job": (
                "AttemptPlan Budget Decoding Job Output PolicySpec RunnerSpec Usage VerifierSpec"
                " Workspace"
            ),
            "mulligan.policies.repair.instruction": (
                "RepairInstruction reduce_failure_to_repair repair_instruction_from_dict"
                " repair_instruction_to_dict"
            ),
            "mulligan.policies.repair.prompt": "build_corrected_prompt",
            "mulligan.policies.repair.retry": (
                "ChangeStrategy Decision Escalate PASSING_SCORE Retry RetryPolicy"
            ),
            "mulligan.policies.repair.verdict": (
                "Verdict judge judge_error verdict_from_dict verdict_to_dict"
            ),
            "mulligan.policies.value": "Value",
        },
    )

__all__ = [
    "PASSING_SCORE",
    "PROTOCOL_VERSION",
    "AttemptPlan",
    "AutonomyMode",
    "Budget",
    "ChangeStrategy",
    "ConfigFailure",
    "CycleStatus",
    "Decision",
    "Decoding",
    "Edit",
    "EditOp",
    "EditOutcome",
    "EditPlan",
    "EditRiskTier",
    "Escalate",
    "FailureKind",
    "FailureRecord",
    "Finding",
    "Guardrail",
    "Job",
    "Output",
    "ParseFailure",
    "PolicySpec",
    "RepairInstruction",
    "Retry",
    "RetryMemory",
    "RetryPolicy",
    "RunnerSpec",
    "SchemaFailure",
    "SelfRepairCycle",
    "Usage",
    "Value",
    "Verdict",
    "VerificationResult",
    "VerificationStatus",
    "VerifierSpec",
    "Workspace",
    "build_corrected_prompt",
    "classify_failure",
    "failure_record_from_dict",
    "failure_record_to_dict",
    "judge",
    "judge_error",
    "reduce_failure_to_repair",
    "repair_instruction_from_dict",
    "repair_instruction_to_dict",
    "verdict_from_dict",
    "verdict_to_dict",
]
