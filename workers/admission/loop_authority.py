"""Admission of loops: the commands that may deliver them, and the branches that they may write."""

from __future__ import annotations

from pydantic import ValidationError

from mulligan.policies.jobs.job import Job, VerifierSpec
from mulligan.policies.loops.draft import (
    DRAFT_TASK,
    LOOP_DRAFT,
    DraftRules,
    draft_verifiers,
    draft_workspace,
)
from mulligan.policies.loops.spec import LoopConfig, workspace_problems
from mulligan.policies.path_patterns import path_pattern
from mulligan.policies.problem import Problem
from mulligan.workers.admission.intake import named_command_problem, own_ref_problem
from mulligan.workers.settings.model import Settings


def config_problems(config: LoopConfig, *, settings: Settings, local_paths: bool) -> list[Problem]:
    """Find what a loop may not name. Contacts nothing.

    ``local_paths``: whether a person on a host of the workers makes it, who may name anything.
    """
    inline = local_paths or settings.allow_inline
    found = [*workspace_problems(config.workspace)]
    if config.sync is not None and (hidden := own_ref_problem(config.sync)):
        found.append(hidden.below("sync"))
    command = config.deliver.command
    if command is not None and (problem := named_command_problem(command, settings, inline=inline)):
        found.append(problem.below("deliver", "command"))
    written = {("branch",): config.target, ("deliver", "fast_forward"): config.deliver.fast_forward}
    for path, branch in written.items() if config.repo is not None and not inline else ():
        if branch is not None and not _is_allowed(branch, settings):
            message = (
                f"a loop that does not come from the command line may not write {branch}: name a"
                f" branch that loop_branches of mulligan.toml allows"
                f" ({', '.join(settings.loop_branches) or 'it allows none'}), or add it there"
            )
            found.append(Problem(message, path, "not_allowed"))
    return found


def draft_problems(job: Job, *, settings: Settings, local_paths: bool) -> list[Problem]:
    """Find what the loop of a draft may not name: it may be created without another check."""
    found: list[Problem] = []
    for index, each in enumerate(job.verifiers):
        if each.id != LOOP_DRAFT:
            continue
        try:
            rules = DraftRules.model_validate(each.options)
        except ValidationError:
            continue  # the verifier says what is wrong
        if not _is_draft(job, rules):
            message = (
                "belongs to drafts of loops alone, which come from `mulligan loops draft` or"
                " POST /api/loops/drafts"
            )
            found.append(Problem(message, ("verifiers", index, "id"), "not_allowed"))
        wrong = config_problems(rules.loop, settings=settings, local_paths=local_paths)
        found += [problem.below("verifiers", index, "loop") for problem in wrong]
    return found


def _is_draft(job: Job, rules: DraftRules) -> bool:
    """Whether a job is what asking for a draft makes of these rules.

    So its answer fits the contract, and what prepares its checkout was admitted with the job.
    """
    wanted, space = draft_workspace(rules.loop), job.workspace
    if wanted is None or space is None:
        return False
    found = space.model_copy(update={"commit": None})
    return (
        job.task_type == DRAFT_TASK
        and found == wanted
        and [_shape(each) for each in job.verifiers]
        == [_shape(each) for each in draft_verifiers(rules)]
    )


def _shape(verifier: VerifierSpec) -> tuple[str, bool, float, object]:
    contract = verifier.options.get("schema")
    return (verifier.id, verifier.required, verifier.weight, contract)


def _is_allowed(branch: str, settings: Settings) -> bool:
    # A leading slash: `main` is that branch alone, not one that ends with it.
    return any(path_pattern(f"/{each}").match(branch) for each in settings.loop_branches)
