"""Run the command that delivers a completed loop, confined, in the files of its branch."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel, Field, ValidationError

from mulligan.policies.failures.command_output import first_error
from mulligan.policies.jobs.job import Seconds
from mulligan.policies.loops.spec import LoopConfig
from mulligan.tasks.jobs.validation_errors import problems_of
from mulligan.tasks.ports.errors import BadInput, VerifierError
from mulligan.workers.loops.workspace_trees import WorkspaceTrees
from mulligan.workers.sandbox.file_tree import write_tree
from mulligan.workers.sandbox.limits import Limits
from mulligan.workers.sandbox.private import private_directory
from mulligan.workers.sandbox.subprocesses import clean_environment, run
from mulligan.workers.sandbox.worker_paths import WorkerPaths
from mulligan.workers.settings.model import Settings

#: Seconds beyond the timeout of the command, to write its files and to end it.
_SLACK = 60.0


class _Command(BaseModel):
    """A command, as `[commands.NAME]` defines it."""

    argv: tuple[str, ...] = Field(min_length=1)
    timeout: Seconds = Field(default=600.0, gt=0)
    network: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """Delivers by a command. It finds the loop, its branch and its commit in its environment."""

    settings: Settings
    trees: WorkspaceTrees
    limits: Limits

    def run(self, config: LoopConfig, commit: str) -> str:
        """Run the command of a loop. Return what is wrong, if anything."""
        try:
            command = self._command(config)
        except BadInput as error:
            return str(error)
        names = {"LOOP": config.name, "BRANCH": config.target, "COMMIT": commit}
        with private_directory() as work:
            write_tree(self.trees.tree(config.repo or "", commit), work)
            try:
                done = run(
                    list(command.argv),
                    cwd=work,
                    timeout=command.timeout,
                    env=clean_environment(work.parent, names),
                    limits=self.limits.reaching(command.network),
                )
            except VerifierError as error:
                return str(error)
            if done.exit_code == 0:
                return ""
            said = first_error(WorkerPaths(work).clean(done.stderr), done.stdout)
        how = "was killed" if done.exit_code is None else f"exited with code {done.exit_code}"
        return f"{command.argv[0]} {how}: {said}"[:300]

    def longest(self, config: LoopConfig) -> float:
        """Return the seconds after which a delivery has ended, also if its process was lost."""
        try:
            return self._command(config).timeout + _SLACK
        except BadInput:  # which is said when it runs
            return _SLACK

    def _command(self, config: LoopConfig) -> _Command:
        """Return the command of a loop. Raises BadInput."""
        named = config.deliver.command
        if not isinstance(named, str):
            return _Command(argv=named or ())
        if named not in self.settings.commands:
            raise BadInput(
                f"mulligan.toml has no command {named!r}: add it, and restart the control workers"
            )
        try:
            return _Command.model_validate(self.settings.commands[named])
        except ValidationError as error:
            wrong = "; ".join(map(str, problems_of(error, _Command)))
            raise BadInput(f"[commands.{named}] of mulligan.toml: {wrong}") from None
