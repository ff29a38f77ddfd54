"""Check one answer in this process: run the verifiers, judge, and plan the next attempt."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from mulligan.console.jobfiles.job_file import FoundJob, check_jobs
from mulligan.policies.failures.failure import VerificationResult
from mulligan.policies.failures.memory import RetryMemory
from mulligan.policies.jobs.exemption import is_exempt
from mulligan.policies.jobs.job import AttemptPlan, Decoding, Job, Output, Workspace
from mulligan.policies.repair.retry import Retry
from mulligan.policies.repair.strategy import plan_next
from mulligan.policies.repair.verdict import Verdict, judge
from mulligan.tasks.ports.blobs import BlobStore
from mulligan.tasks.ports.runners import constrains
from mulligan.tasks.ports.verifiers import Candidate
from mulligan.workers.admission.intake import check_job, resolve_command, workspace_path
from mulligan.workers.contract_models import ContractModels
from mulligan.workers.ledger.stores.blobs import DirectoryBlobs
from mulligan.workers.runners.runner_options import defaults_of
from mulligan.workers.runners.runner_registry import RunnerRegistry
from mulligan.workers.sandbox.allowed import program_limits
from mulligan.workers.sandbox.workspace import pack
from mulligan.workers.settings.model import Settings, load_settings
from mulligan.workers.verifiers.verifier_registry import VerifierRegistry


@dataclass(frozen=True, kw_only=True)
class CheckedAnswer:
    verdict: Verdict
    #: The next attempt; None after a success or an escalation.
    next: AttemptPlan | None


def check_answer(found: FoundJob, text: str) -> CheckedAnswer:
    """Judge an answer as if it came from a first attempt."""
    # The user of this command may run these programs anyway.
    settings = load_settings(allow_inline=True)
    with TemporaryDirectory() as folder:
        return _check(
            found, text, settings, DirectoryBlobs(Path(folder), cap=settings.workspace_cap)
        )


def _check(found: FoundJob, text: str, settings: Settings, blobs: BlobStore) -> CheckedAnswer:
    limits = program_limits(settings)
    verifiers = VerifierRegistry(limits=limits, models=ContractModels(settings.model_modules))
    runners = RunnerRegistry(profiles=settings.runners, blobs=blobs)
    check_jobs(
        [found],
        lambda job: check_job(
            job, settings=settings, runners=runners, verifiers=verifiers, local_paths=True
        ),
    )
    job, output = found.job, Output(text=text)
    candidate = Candidate(
        output=output, text=text, workspace=_snapshot(job.workspace, blobs, settings)
    )
    results: list[VerificationResult] = [
        verifiers.build(resolve_command(spec, settings), blobs=blobs).verify(candidate)
        for spec in job.verifiers
    ]
    exempt = is_exempt(job.task_type, settings.exempt_task_types)
    verdict = judge(job, AttemptPlan(), results, RetryMemory(), exempt=exempt)
    return CheckedAnswer(verdict=verdict, next=_next(job, verdict, output, runners))


def _snapshot(
    workspace: Workspace | None, blobs: BlobStore, settings: Settings
) -> Workspace | None:
    path = workspace_path(workspace, settings) if workspace else None
    if workspace is None or path is None:
        return workspace
    address = blobs.put(pack(path, max_bytes=settings.workspace_cap))
    return workspace.model_copy(update={"snapshot": address, "path": None, "profile": None})


def _next(
    job: Job, verdict: Verdict, output: Output, runners: RunnerRegistry
) -> AttemptPlan | None:
    if not isinstance(verdict.decision, Retry):
        return None
    runner = runners.resolve(job.runner, allow_inline=True)
    defaults = defaults_of(runner)
    return plan_next(
        job,
        AttemptPlan(),
        verdict,
        verdict.decision,
        output=output,
        asked_with=Decoding(temperature=defaults.temperature, max_tokens=defaults.max_tokens),
        constrains=partial(constrains, runner),
    )
