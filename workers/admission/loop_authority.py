"""Admission of loops: the commands that may deliver them, and the branches that they may write."""

from __future__ import annotations

from mulligan.policies.loops.spec import LoopConfig, workspace_problems
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


def _is_allowed(branch: str, settings: Settings) -> bool:
    from mulligan.workers.sandbox.protection import path_pattern  # a producer loads no sandbox

    # A leading slash: `main` is that branch alone, not one that ends with it.
    return any(path_pattern(f"/{each}").match(branch) for each in settings.loop_branches)
