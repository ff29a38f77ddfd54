"""`mulligan verify`: check an answer without Redis, workers or a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from mulligan.console.cli.exit_codes import ExitCode
from mulligan.console.cli.options import Json
from mulligan.console.cli.output import screen
from mulligan.console.cli.output.job_story import print_checks
from mulligan.console.cli.output.prompt_diff import print_diff
from mulligan.console.jobfiles.check_answer import CheckedAnswer, check_answer
from mulligan.console.jobfiles.job_file import FoundJob, find_jobs
from mulligan.console.jobfiles.source_document import read_text
from mulligan.policies.figures.format import score
from mulligan.policies.jobs.job import AttemptPlan, Job
from mulligan.policies.repair.verdict import Verdict, verdict_to_dict
from mulligan.tasks.jobs.job_story import check_stories, describe_decision, diff_lines
from mulligan.tasks.ports.errors import BadInput


def verify(
    jobfile: Annotated[str, typer.Argument(metavar="JOBFILE", help="A job file; - is stdin.")],
    answer: Annotated[str, typer.Option(metavar="FILE", help="File with the answer; - is stdin.")],
    next_prompt: Annotated[
        bool, typer.Option("--next-prompt", help="Print the corrected prompt as a diff.")
    ] = False,
    job: Annotated[str | None, typer.Option(help="Job to check, by name or task type.")] = None,
    json: Json = False,
) -> None:
    """Check an answer as a worker would, without running a job.

    Shows the score, the errors and what would follow. Needs no Redis, worker or model.
    """
    found = _choose(find_jobs([jobfile]), job, jobfile)
    checked: CheckedAnswer = check_answer(found, read_text(answer, answer))
    if json:
        screen.emit(_document(found.job, checked.verdict, checked.next))
    else:
        _print(found.job, checked.verdict, checked.next, next_prompt=next_prompt)
    raise typer.Exit(int(ExitCode.OK if checked.verdict.success else ExitCode.SOME_FAILED))


def _choose(found: Sequence[FoundJob], name: str | None, file: str) -> FoundJob:
    names = ", ".join(dict.fromkeys(each.job.label for each in found))
    if name is None:
        if len(found) > 1:
            raise BadInput(f"{file} has {len(found)} jobs; choose one with --job: {names}")
        return found[0]
    chosen = [each for each in found if name in (each.job.name, each.job.task_type)]
    if len(chosen) != 1:
        how = "no job" if not chosen else f"{len(chosen)} jobs"
        raise BadInput.at("--job", f"{file} has {how} called {name!r}; it has: {names}")
    return chosen[0]


def _document(job: Job, verdict: Verdict, following: AttemptPlan | None) -> dict[str, Any]:
    return {
        "task_type": job.task_type,
        "name": job.label,
        **verdict_to_dict(verdict),
        "next_prompt": following.prompt if following else None,
        "next_attempt": following.model_dump(mode="json") if following else None,
    }


def _print(job: Job, verdict: Verdict, following: AttemptPlan | None, *, next_prompt: bool) -> None:
    screen.say(f"{job.label}  score {score(verdict.score)}", style="bold")
    print_checks(check_stories(verdict.results))
    if verdict.coercions:
        screen.say(f"  free repairs: {', '.join(verdict.coercions)}")
    if verdict.success:
        screen.say("passed", style="green")
    else:
        then = describe_decision(verdict.decision)
        screen.say(f"next: {then}", style="yellow" if following is None else None)
        if following is not None and verdict.instruction is not None:
            screen.say(f"instruction: {verdict.instruction.prompt_suffix}")
    if next_prompt and following is not None and following.prompt is not None:
        screen.say()
        if following.prompt == job.task_text:
            screen.say("the prompt stays the same: only the decoding changes")
        names = ("first prompt", "corrected prompt")
        print_diff(diff_lines(job.task_text, following.prompt, names=names))
