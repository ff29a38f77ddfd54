"""The story of a job: each attempt's prompt, answer, errors, changes and decision.

One value, which the page, the terminal and the client render.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mulligan.policies.failures.describe import (
    describe_failure,
    errors_beyond_summary,
    place_without_texts,
)
from mulligan.policies.failures.failure import Finding, VerificationResult, VerificationStatus
from mulligan.policies.failures.redaction import is_name
from mulligan.policies.figures.format import UNKNOWN, score, words
from mulligan.policies.figures.waiting_words import waiting_words
from mulligan.policies.jobs.breaker import Breaker
from mulligan.policies.jobs.job import Decoding
from mulligan.policies.one_hunk import one_hunk
from mulligan.policies.repair.retry import ChangeStrategy, Decision, Escalate, Retry
from mulligan.policies.repair.verdict import Verdict
from mulligan.tasks.ports.ledger import AttemptView, JobView

IN_PROCESS = "judged in its own process"
NOT_CONFINED = "not confined"
#: Maximum errors, and warnings, listed for one verifier.
_ERRORS = 10
#: Lines of two prompts that are matched, which takes a few hundredths of a second at worst. A page
#: may compare the prompts of a hundred attempts.
_MOST_MATCHED = 1000


@dataclass(frozen=True, kw_only=True)
class CheckError:
    """One verified error: its place and its message, or its code for a reader without texts."""

    path: str | None
    text: str | None

    def __str__(self) -> str:
        return f"{self.path}: {self.text}" if self.path else self.text or ""


@dataclass(frozen=True, kw_only=True)
class CheckStory:
    """The result of one verifier."""

    status: VerificationStatus
    verifier: str
    summary: str
    score: float | None
    errors: Sequence[CheckError]
    #: The number of errors that are not listed.
    more: int
    #: Whether the answer ran in the process that reached this verdict.
    in_process: bool
    #: What confined the programs that the verifier ran; None if it says nothing about it.
    isolation: Sequence[str] | None
    #: Without those about free repairs, which the attempt lists.
    warnings: Sequence[str]

    @property
    def not_confined(self) -> bool:
        """Whether the answer was run with the rights of the worker (``unsafe_sandbox``)."""
        confining = ("bubblewrap", "landlock")
        return self.isolation is not None and not any(
            layer.startswith(confining) for layer in self.isolation
        )

    @property
    def reservations(self) -> list[str]:
        """What limits the trust in this verdict, in words."""
        found = {IN_PROCESS: self.in_process, NOT_CONFINED: self.not_confined}
        return [said for said, applies in found.items() if applies]


@dataclass(frozen=True, kw_only=True)
class AttemptStory:
    """One attempt. Texts are None for a reader who may not see them."""

    number: int
    mode: str
    state: str
    #: None until the attempt is settled.
    success: bool | None
    score: float | None
    prompt: str | None
    #: The prompt of the previous attempt.
    previous_prompt: str | None
    answer: str | None
    checks: Sequence[CheckStory]
    #: Free repairs of the answer.
    coercions: Sequence[str]
    #: The failure in words, its message and its signature; empty after a success.
    failure: str
    failure_message: str
    failure_signature: str
    #: What this attempt changed, and how its decoding differs from the job's.
    technique: str
    decoding: str
    #: The repair instruction for the next attempt.
    instruction: str | None
    #: What was decided; empty after a success.
    decision: str
    escalated: bool
    #: Transport faults, if there were any.
    faults: str
    #: How an agent ended that did not end well.
    ended: str

    @property
    def outcome(self) -> str:
        """``score 40``, or the state of an attempt that is not settled."""
        return self.state if self.success is None else f"score {score(self.score)}"

    def prompt_diff(self) -> Iterator[str]:
        """Yield the changes from the previous prompt; nothing for the first attempt."""
        if self.prompt is None or self.previous_prompt is None:
            return iter(())
        names = (f"attempt {self.number - 1}", f"attempt {self.number}")
        return diff_lines(self.previous_prompt, self.prompt, names=names)


@dataclass(frozen=True, kw_only=True)
class JobStory:
    #: ``escalated: repeated_failure``, ``waiting for the quota of acme``.
    status: str
    #: What a waiting job waits for, in words.
    waits_for: str | None
    attempts: Sequence[AttemptStory]
    #: One line per cycle.
    cycles: Sequence[str]
    #: The best answer, and its title.
    answer: str | None
    answer_title: str


def tell_story(
    view: JobView,
    *,
    texts: bool = True,
    provider: Breaker | None = None,
    now: float = 0.0,
) -> JobStory:
    """Return everything that happened to a job. ``texts``: whether the reader may see its texts.

    ``provider``: the state of the provider that it waits for, if the reader may see it.
    """
    waits_for = view.waits_for
    if provider is not None:
        behind = view.waiting_behind
        waits_for = waiting_words(view.waiting_for, behind, provider=provider, now=now)
    waiting = f" for {waits_for}" if waits_for else ""
    reason = f": {view.reason}" if view.reason else ""
    best = view.best
    title = "The answer" if view.state == "succeeded" else "The best answer, which did not pass"
    return JobStory(
        status=f"{view.state}{waiting}{reason}",
        waits_for=waits_for,
        attempts=tuple(_attempt(view, attempt, texts=texts) for attempt in view.attempts),
        cycles=tuple(
            f"cycle {each.loop_index}, after attempt {each.source_attempt}:"
            f" {words(each.status.value)}{f' ({each.reason})' if each.reason else ''}"
            for each in view.cycles
        ),
        answer=best.output.text if texts and best and best.output else None,
        answer_title=f"{title} (attempt {view.best_attempt})",
    )


def _attempt(view: JobView, attempt: AttemptView, *, texts: bool) -> AttemptStory:
    verdict, plan = attempt.verdict or Verdict(), attempt.plan
    failure, before = verdict.failure, _previous(view, attempt)
    given_up = view.state in ("escalated", "cancelled")
    last_fault = f", the last: {attempt.last_fault}" if texts else ""
    return AttemptStory(
        number=plan.number,
        mode=plan.mode,
        # A job that ended outside a verdict leaves its last attempt as it was: queued or running.
        state=view.state if given_up and not attempt.verdict else attempt.state,
        success=attempt.verdict.success if attempt.verdict else None,
        score=verdict.score,
        prompt=prompt_of(view, attempt) if texts else None,
        previous_prompt=prompt_of(view, before) if texts and before else None,
        answer=attempt.output.text if texts and attempt.output else None,
        checks=check_stories(verdict.results, texts=texts),
        coercions=verdict.coercions,
        failure=describe_failure(failure, texts=texts) if failure else "",
        failure_message=failure.message if failure and texts else "",
        failure_signature=failure.coarse_signature if failure else "",
        technique=technique(view, attempt) if plan.technique else "",
        decoding=_decoding(plan.decoding),
        instruction=verdict.instruction.prompt_suffix if verdict.instruction and texts else None,
        decision=describe_decision(verdict.decision),
        escalated=isinstance(verdict.decision, Escalate),
        faults=f"{attempt.faults} transport faults{last_fault}" if attempt.last_fault else "",
        ended=attempt.output.ended or "" if texts and attempt.output else "",
    )


def check_stories(results: Sequence[VerificationResult], *, texts: bool = True) -> list[CheckStory]:
    """Return what each verifier found. Summaries may quote the answer, so they are texts, too."""
    found = []
    for result in results:
        errors = errors_beyond_summary(result)
        found.append(
            CheckStory(
                status=result.status,
                verifier=result.verifier_id,
                summary=result.summary if texts else "",
                score=result.score,
                errors=[_error(each, result, texts=texts) for each in errors[:_ERRORS]],
                more=max(0, len(errors) - _ERRORS),
                in_process=result.in_process,
                isolation=_isolation(result),
                warnings=_warnings(result) if texts else (),
            )
        )
    return found


def _isolation(result: VerificationResult) -> list[str] | None:
    layers = result.evidence.get("isolation")
    return [str(layer) for layer in layers] if isinstance(layers, list) else None


def _warnings(result: VerificationResult) -> list[str]:
    found = [each for each in result.warnings if not each.startswith("coerced: ")]
    more = len(found) - _ERRORS
    return [*found[:_ERRORS], *([f"… {more} more"] if more > 0 else [])]


def _error(finding: Finding, result: VerificationResult, *, texts: bool) -> CheckError:
    if texts:
        places = f" ({finding.count} places)" if finding.count > 1 else ""
        return CheckError(path=finding.path, text=finding.message + places)
    return CheckError(
        path=place_without_texts(finding, result.verifier_id),
        text=finding.code if is_name(finding.code) else None,
    )


def describe_decision(decision: Decision | None) -> str:
    """Say what follows an attempt: ``escalate: max_attempts``; empty after a success."""
    match decision:
        case None:
            return ""
        case Escalate(reason=reason):
            return f"escalate: {reason}"
        case ChangeStrategy(reason=reason, mode=mode):
            return f"{words(mode)} with another strategy: {reason}"
        case Retry(reason=reason, mode=mode):
            return f"{words(mode)}: {reason}"


def _decoding(changed: Decoding) -> str:
    """Say what a decoding changes: ``constrained, temperature 0.21``."""
    found = changed.model_dump(mode="json", exclude_defaults=True)
    return ", ".join(
        words(name) if value is True else f"{words(name)} {value}" for name, value in found.items()
    )


# -- prompts ---------------------------------------------------------------------------------------


def prompt_of(view: JobView, attempt: AttemptView) -> str:
    """Return the prompt of an attempt."""
    return attempt.plan.prompt if attempt.plan.prompt is not None else view.job.task_text


def diff_lines(before: str, after: str, *, names: tuple[str, str]) -> Iterator[str]:
    """Yield the unified diff of two prompts. Long ones are not matched line by line."""
    lines = before.splitlines(), after.splitlines()
    if sum(map(len, lines)) > _MOST_MATCHED:
        return one_hunk(*lines, *names, lineterm="")
    return difflib.unified_diff(*lines, *names, lineterm="", n=2)


# -- short texts for tables ------------------------------------------------------------------------


def score_path(view: JobView) -> str:
    """Return the scores of the first and the best attempt: ``40 → 100``."""
    if not view.attempts:
        return UNKNOWN
    first, best = view.attempts[0].score, view.best
    if len(view.attempts) == 1 or (best and best.plan.number == 1):
        return f"{score(first):>3}"
    return f"{score(first):>3} → {score(best.score if best else None)}"


def failed_with(view: JobView) -> str:
    """Describe the first failure of a repaired job, or the last one of an escalated job."""
    verdicts = [attempt.verdict for attempt in view.attempts if attempt.verdict is not None]
    failures = [verdict.failure for verdict in verdicts if verdict.failure is not None]
    if not failures:
        coercions = verdicts[0].coercions if verdicts else ()
        return ", ".join(coercions) or view.reason or UNKNOWN
    return describe_failure(failures[-1] if view.state == "escalated" else failures[0])


def repaired_by(view: JobView) -> str:
    """Return the technique that repaired a job, or how else it ended."""
    if view.state == "escalated":
        return f"ESCALATED {view.reason or ''}".strip()
    if view.state != "succeeded":
        return view.state.upper()
    if first_try(view):
        verdict = view.attempts[0].verdict
        return "free repair" if verdict and verdict.coercions else UNKNOWN
    return technique(view, view.best) if view.best else UNKNOWN


def first_try(view: JobView) -> bool:
    """Whether the first attempt succeeded."""
    verdict = view.attempts[0].verdict if view.attempts else None
    return verdict is not None and verdict.success


def technique(view: JobView, attempt: AttemptView) -> str:
    """Say what an attempt changed: ``"integer" + constrained``, ``token cap 120 → 300``."""
    before = _previous(view, attempt)
    parts = (attempt.plan.technique or "corrected prompt").split("+")
    names = [_change(part, view, attempt, before) for part in parts]
    if "token_cap" in parts and parts[0] == "raise_token_cap":
        names = names[1:]
    return " + ".join(dict.fromkeys(names))


def _change(part: str, view: JobView, attempt: AttemptView, before: AttemptView | None) -> str:
    if part == "token_cap":
        planned = before.plan.decoding.max_tokens if before else None
        old = planned or view.job.runner.options.get("max_tokens")
        new = attempt.plan.decoding.max_tokens
        return f"token cap {old} → {new}" if old else f"token cap {new}"
    failure = before.verdict.failure if before and before.verdict else None
    if part == "fix_type" and failure and failure.findings:
        expected = failure.findings[0].expected
        if isinstance(expected, str):
            return f'"{expected}"'
    return words(part)


def _previous(view: JobView, attempt: AttemptView) -> AttemptView | None:
    number = attempt.plan.number - 1
    return next((each for each in view.attempts if each.plan.number == number), None)
