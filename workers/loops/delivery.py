"""Run the command that delivers a completed loop, confined, in the files of its branch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mulligan.policies.failures.command_output import first_error
from mulligan.policies.loops.spec import LoopConfig
from mulligan.tasks.ports.errors import VerifierError
from mulligan.workers.loops.workspace_trees import WorkspaceTrees
from mulligan.workers.sandbox.file_tree import write_tree
from mulligan.workers.sandbox.limits import Limits
from mulligan.workers.sandbox.private import private_directory
from mulligan.workers.sandbox.subprocesses import clean_environment, run
from mulligan.workers.sandbox.worker_paths import WorkerPaths
from mulligan.workers.settings.model import Settings

_SECONDS = 600.0


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """Delivers by a command. It finds the loop, its branch and its commit in its environment."""

    settings: Settings
    trees: WorkspaceTrees
    limits: Limits

    def run(self, config: LoopConfig, commit: str) -> str:
        """Run the command of a loop. Return what is wrong, if anything."""
        command = config.deliver.command
        if command is None:
            return ""
        if isinstance(command, str) and command not in self.settings.commands:
            return f"mulligan.toml has no command {command!r}"
        options: dict[str, Any] = (
            self.settings.commands[command] if isinstance(command, str) else {"argv": command}
        )
        names = {"LOOP": config.name, "BRANCH": config.target, "COMMIT": commit}
        with private_directory() as work:
            write_tree(self.trees.tree(config.repo or "", commit), work)
            try:
                done = run(
                    list(options["argv"]),
                    cwd=work,
                    timeout=float(options.get("timeout", _SECONDS)),
                    env=clean_environment(work.parent, names),
                    limits=self.limits.reaching(tuple(options.get("network", ()))),
                )
            except VerifierError as error:
                return str(error)
            if done.exit_code == 0:
                return ""
            said = first_error(WorkerPaths(work).clean(done.stderr), done.stdout)
        how = "was killed" if done.exit_code is None else f"exited with code {done.exit_code}"
        return f"{options['argv'][0]} {how}: {said}"[:300]
