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
#: Seconds beyond the timeout of the command, to write its files and to end it.
_SLACK = 60.0


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """Delivers by a command. It finds the loop, its branch and its commit in its environment."""

    settings: Settings
    trees: WorkspaceTrees
    limits: Limits

    def run(self, config: LoopConfig, commit: str) -> str:
        """Run the command of a loop. Return what is wrong, if anything."""
        options = self._options(config)
        if options is None:
            return f"mulligan.toml has no command {config.deliver.command!r}"
        names = {"LOOP": config.name, "BRANCH": config.target, "COMMIT": commit}
        with private_directory() as work:
            write_tree(self.trees.tree(config.repo or "", commit), work)
            try:
                done = run(
                    list(options["argv"]),
                    cwd=work,
                    timeout=_timeout(options),
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

    def longest(self, config: LoopConfig) -> float:
        """Return the seconds after which a delivery has ended, also if its process was lost."""
        return _timeout(self._options(config) or {}) + _SLACK

    def _options(self, config: LoopConfig) -> dict[str, Any] | None:
        command = config.deliver.command
        if isinstance(command, str):
            return self.settings.commands.get(command)
        return {"argv": command}


def _timeout(options: dict[str, Any]) -> float:
    return float(options.get("timeout", _SECONDS))
