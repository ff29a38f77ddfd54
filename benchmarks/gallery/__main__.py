"""`make gallery`: check the wrong answers and write `docs/corrected-prompts.md`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.gallery.cases import SECTIONS, Case
from mulligan.policies.failures.failure import VerificationResult
from mulligan.policies.failures.memory import RetryMemory
from mulligan.policies.jobs.job import AttemptPlan, Decoding, Job, Output, VerifierSpec, Workspace
from mulligan.policies.repair.prompt import fenced
from mulligan.policies.repair.retry import Retry
from mulligan.policies.repair.strategy import plan_next
from mulligan.policies.repair.verdict import Verdict, judge, judge_error
from mulligan.tasks.ports.blobs import BlobStore
from mulligan.tasks.ports.verifiers import Candidate
from mulligan.tasks.user_tasks.user_task import Repair
from mulligan.workers.ledger.stores.blobs import DirectoryBlobs
from mulligan.workers.sandbox.workspace import pack
from mulligan.workers.verifiers.verifier_registry import VerifierRegistry

PAGE = Path(__file__).resolve().parents[2] / "docs" / "corrected-prompts.md"
#: Longer answers are shortened on the page, not in the prompt.
SHOWN = 400
HEAD = """\
# Corrected prompts

What a model sees after a failure: {count} wrong answers, checked by the real verifiers, each with
the prompt of its retry. `make gallery` writes this page, and a test compares it with what the
command writes. The sentences are in `policies/repair/recipes.py`, the frame in
`policies/repair/wording.py`.
"""


def page() -> str:
    """Return the whole page."""
    count = sum(len(section.cases) for section in SECTIONS)
    parts, number = [HEAD.format(count=count)], 0
    with TemporaryDirectory() as folder:
        blobs = DirectoryBlobs(Path(folder) / "blobs", cap=1 << 20)
        for section in SECTIONS:
            parts.append(f"## {section.title}\n\n{section.about}\n")
            for case in section.cases:
                number += 1
                verdict, plan = correct(case, blobs, Path(folder) / f"workspace-{number}")
                parts.append(f"### {number}. {case.title}\n")
                parts += [f"{part}\n" for part in _shown(case, verdict, plan)]
    return "\n".join(parts).rstrip("\n") + "\n"


def correct(case: Case, blobs: BlobStore, folder: Path) -> tuple[Verdict, AttemptPlan]:
    """Check a case's answer and plan its retry."""
    job, results = _checked(case, blobs, folder)
    output = None if case.text is None else _output(case, case.text)
    plan, memory = AttemptPlan(), RetryMemory()
    verdict = _judged(case, job, plan, results, memory)
    if case.again:
        if verdict.failure is None:
            raise ValueError(f"{case.title}: not a failure")
        plan, memory = AttemptPlan(number=2, mode="immediate_retry"), memory.record(verdict.failure)
        verdict = _judged(case, job, plan, results, memory)
    if not isinstance(verdict.decision, Retry):
        raise TypeError(f"{case.title}: {verdict.decision}")
    following = plan_next(
        job,
        plan,
        verdict,
        verdict.decision,
        output=output,
        asked_with=Decoding(temperature=0.7, max_tokens=120, constrained=case.was_constrained),
        worked_before=case.worked_before,
        constrains=lambda decoding, _: case.constrains and decoding.constrained,
    )
    return verdict, following


def _checked(case: Case, blobs: BlobStore, folder: Path) -> tuple[Job, list[VerificationResult]]:
    """Return the job, and the results of its verifiers or the ones that came with the case."""
    workspace = None
    if case.files:
        folder.mkdir()
        for name, text in case.files.items():
            (folder / name).write_text(text)
        snapshot = blobs.put(pack(folder, max_bytes=1 << 20))
        workspace = Workspace(snapshot=snapshot, output_file=case.output_file)
    given = [case.reported.result()] if case.reported else []
    if isinstance(case.raised, Repair):
        given = [case.raised.result]
    specs = [VerifierSpec.model_validate(spec) for spec in case.verifiers]
    specs = specs or [VerifierSpec(id=result.verifier_id) for result in given]
    job = Job.model_validate({
        "task_type": "gallery", "prompt": case.prompt, "runner": "small", "workspace": workspace,
        "verifiers": specs or ["json.object"],
    })  # fmt: skip
    if given or case.answer is None:
        return job, given
    output = _output(case, case.answer)
    candidate = Candidate(output=output, text=case.answer, workspace=workspace)
    registry = VerifierRegistry()
    results = [registry.build(spec, blobs=blobs).verify(candidate) for spec in specs]
    if case.score is not None:
        results = [result.model_copy(update={"score": case.score}) for result in results]
    return job, results


def _output(case: Case, text: str) -> Output:
    return Output(text=text, finish_reason="length" if case.truncated else "stop")


def _judged(
    case: Case, job: Job, plan: AttemptPlan, results: list[VerificationResult], memory: RetryMemory
) -> Verdict:
    if results:
        return judge(job, plan, results, memory, truncated=case.truncated)
    if case.raised is None:
        raise ValueError(f"{case.title}: nothing is wrong")
    return judge_error(job, plan, case.raised, memory)


def _shown(case: Case, verdict: Verdict, plan: AttemptPlan) -> Iterator[str]:
    answer = case.text
    checks = [_brief(spec) for spec in case.verifiers]
    if checks:
        yield "Checked by " + ", ".join(checks) + "."
    if isinstance(case.raised, Exception):
        yield f"The task raised `{type(case.raised).__name__}`."
    if answer is not None:
        cut = " (cut off)" if case.truncated else ""
        shown = answer.rstrip("\n") if len(answer) <= SHOWN else answer[:SHOWN] + " …"
        yield f"The answer{cut}:\n\n{fenced(shown, 'text')}"
    failure = verdict.failure
    label = failure.label if failure is not None else ""
    yield f"The prompt of the retry, after `{label}` ({_changes(plan)}):\n\n" + fenced(
        plan.prompt or "", "text"
    )


def _brief(spec: Any) -> str:
    if isinstance(spec, str):
        return f"`{spec}`"
    options = {k: v for k, v in spec.items() if k not in ("id", "weight", "schema")}
    return f"`{spec['id']}`" + (f" `{json.dumps(options)}`" if options else "")


def _changes(plan: AttemptPlan) -> str:
    decoding = plan.decoding
    changes = [
        "constrained" if decoding.constrained else "",
        f"temperature {decoding.temperature:g}" if decoding.temperature != 0.7 else "",
        f"at most {decoding.max_tokens} tokens" if decoding.max_tokens != 120 else "",
        "the next fallback" if decoding.fallback else "",
    ]
    return ", ".join(filter(None, changes)) or "asked as before"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(PAGE.parents[1])}")
