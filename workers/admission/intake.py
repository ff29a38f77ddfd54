"""Admission of jobs: the runners, commands and workspaces that a job may name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mulligan.policies.jobs.job import GIT_MERGE, Job, OnDone, VerifierSpec, Workspace
from mulligan.policies.problem import Problem
from mulligan.policies.suggestions import name_hint
from mulligan.tasks.jobs.read_job import Check
from mulligan.tasks.jobs.submit import Intake, JobRules
from mulligan.tasks.ports.blobs import BlobStore
from mulligan.tasks.ports.errors import BadInput
from mulligan.tasks.ports.ledger import Publication
from mulligan.workers.contract_models import ContractModels, complete_contracts, contract_problems
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.settings.model import Settings

if TYPE_CHECKING:  # a producer accepts jobs without importing a runner or a verifier
    from mulligan.tasks.ports.runners import Runner
    from mulligan.workers.runners.runner_registry import RunnerRegistry
    from mulligan.workers.verifiers.verifier_registry import VerifierRegistry


def resolve_command(spec: VerifierSpec, settings: Settings) -> VerifierSpec:
    """Fill in the argv of a verifier that names a command of mulligan.toml. Raises BadInput.

    Jobs carry no authority: an argv in a job needs allow_inline.
    """
    if spec.id != "command.subprocess":
        return spec
    name = spec.options.get("command")
    if name is None:
        for field in ("argv", "network"):
            if not settings.allow_inline and spec.options.get(field):
                message = (
                    "a job may not define a command here: name one with `command:` from"
                    " [commands.NAME] of mulligan.toml, or set allow_inline = true there"
                )
                raise BadInput.at(field, message, "not_allowed")
        return spec
    if not settings.allow_inline and spec.options.get("network"):
        message = "a job may not open a network; set it in [commands.NAME] of mulligan.toml"
        raise BadInput.at("network", message, "not_allowed")
    if not isinstance(name, str) or name not in settings.commands:
        hint = _hint(str(name), settings.commands)
        raise BadInput.at("command", f"no command {name!r}{hint}", "unknown_name")
    rest = {k: v for k, v in spec.model_dump(mode="json").items() if k != "command"}
    return VerifierSpec.model_validate({**rest, **settings.commands[str(name)]})


def _hint(name: str, known: Mapping[str, Any]) -> str:
    none = "; mulligan.toml names none"
    return name_hint(name, known) if known else none


def check_job(
    job: Job,
    *,
    settings: Settings,
    runners: RunnerRegistry,
    verifiers: VerifierRegistry,
    local_paths: bool,
) -> list[Problem]:
    """Find every problem of a job's runner, verifiers and workspace. Contacts nothing."""
    found = runners.check(job.runner, allow_inline=settings.allow_inline)
    if job.merges and job.verifiers[-1].id == GIT_MERGE and not found:
        runner = runners.resolve(job.runner, allow_inline=settings.allow_inline)
        found += _work_problems(job, runner)
    resolved = []
    for index, spec in enumerate(job.verifiers):
        try:
            resolved.append(resolve_command(spec, settings))
        except BadInput as error:
            found += [problem.below("verifiers", index) for problem in error.problems]
            resolved.append(_with_some_command(spec))
    found += verifiers.check(resolved, job.workspace)
    found += contract_problems(job, verifiers.models)
    wrong = {problem.path[:2] for problem in found if problem.path}
    sound = {i: spec for i, spec in enumerate(resolved) if ("verifiers", i) not in wrong}
    found += _time_problems(
        job, sound, settings, runners, verifiers, runner=not any(p[0] == "runner" for p in wrong)
    )
    found += outcome_problems(job, settings)
    if job.workspace is not None:
        found += _check_workspace(job.workspace, settings, local_paths=local_paths)
    return found


def _work_problems(job: Job, runner: Runner) -> list[Problem]:
    """Find a runner that cannot change the files of a repository as its loop expects it."""
    name, edits = job.runner.profile or job.runner.kind, job.workspace and job.workspace.edits
    if hasattr(runner, "work_in") is not bool(edits):
        return []
    message = (
        f"{name} changes files itself, so that its answer is no plan: leave out `edits`"
        if edits
        else f"{name} only answers with text, which changes no file: set `edits: true` in the loop,"
        ' or name a runner with kind = "command"'
    )
    return [Problem.at("runner", message)]


def _with_some_command(spec: VerifierSpec) -> VerifierSpec:
    """Return a verifier without a usable command with another one, to check its other options."""
    rest = {k: v for k, v in spec.model_dump(mode="json").items() if k != "command"}
    return VerifierSpec.model_validate({**rest, "argv": ["-"]})


def _time_problems(
    job: Job,
    specs: Mapping[int, VerifierSpec],
    settings: Settings,
    runners: RunnerRegistry,
    verifiers: VerifierRegistry,
    *,
    runner: bool,
) -> list[Problem]:
    """Find what takes too long for one claim.

    ``specs``: the verifiers without other problems, by index. ``runner``: whether the runner has
    none.
    """
    from mulligan.workers.admission import claim_time

    found: list[Problem] = []
    answer = 0.0
    if runner:
        try:
            built = runners.resolve(job.runner, allow_inline=settings.allow_inline)
            answer = claim_time.answer_time(job.runner, built, runners=runners, settings=settings)
        except BadInput as error:
            found += error.problems
    checks = {index: verifiers.build(spec) for index, spec in specs.items()}
    for index, verifier in checks.items():
        if problem := claim_time.verifier_problem(verifier, settings=settings):
            found.append(problem.below("verifiers", index))
    if found or not runner or len(checks) < len(job.verifiers):
        return found
    recheck = claim_time.recheck_problem(
        job, list(checks.values()), answer=answer, settings=settings
    )
    return [recheck] if recheck else []


def outcome_problem(on_done: OnDone, settings: Settings) -> str | None:
    """Return why an outcome may not be sent to this task and queue; None if it may."""
    target = f"{on_done.task}@{on_done.queue}"
    if settings.allow_inline or any(fnmatchcase(target, each) for each in settings.on_done):
        return None
    return f"outcomes may not go to {target}: add it to on_done of mulligan.toml"


def outcome_problems(job: Job, settings: Settings) -> list[Problem]:
    """Find whether a job's `on_done` is not allowed."""
    message = job.on_done and outcome_problem(job.on_done, settings)
    return [Problem.at("on_done", message, "not_allowed")] if message else []


def _check_workspace(
    workspace: Workspace, settings: Settings, *, local_paths: bool
) -> list[Problem]:
    if workspace.git is not None:
        return _check_git(workspace, settings, local_paths=local_paths)
    if workspace.profile is not None and workspace.profile not in settings.workspaces:
        message = (
            f"no workspace {workspace.profile!r}{_hint(workspace.profile, settings.workspaces)}"
        )
        return [Problem.at("workspace.profile", message, "unknown_name")]
    if workspace.path is not None and not local_paths and not settings.allow_inline:
        message = (
            "a job from the queue may not name a path of this host: use `profile:` with a name"
            " from [workspaces] of mulligan.toml"
        )
        return [Problem.at("workspace.path", message, "not_allowed")]
    path = workspace_path(workspace, settings)
    if path is None:
        return []
    if not path.is_dir():
        return [Problem.at("workspace.path", f"there is no directory {path}")]
    return _check_output(path, workspace)


def _check_git(workspace: Workspace, settings: Settings, *, local_paths: bool) -> list[Problem]:
    """Find whether a workspace names a repository or a command that only mulligan.toml may name."""
    found, inline = [], local_paths or settings.allow_inline
    name = workspace.git or ""
    if name not in settings.repositories and not inline:
        message = (
            f"no repository {name!r}: add it to [repositories] of mulligan.toml"
            f"{name_hint(name, settings.repositories)}"
        )
        found.append(Problem.at("workspace.git", message, "unknown_name"))
    if hidden := own_ref_problem(workspace.ref):
        found.append(hidden.below("workspace", "ref"))
    for index, command in enumerate(workspace.setup.run if workspace.setup else ()):
        if problem := named_command_problem(command, settings, inline=inline):
            found.append(problem.below("workspace", "setup", "run", index))
    return found


def own_ref_problem(ref: str) -> Problem | None:
    """Return the problem of a reference that is mulligan's own: work of attempts, and fences."""
    if not ref.startswith("refs/mulligan/"):
        return None
    message = f"{ref} is a reference of mulligan: name a branch, a tag or a commit"
    return Problem(message, code="not_allowed")


def named_command_problem(
    command: str | Sequence[str], settings: Settings, *, inline: bool
) -> Problem | None:
    """Return the problem of a command that is named, or defined where only names are allowed."""
    if isinstance(command, str) and command not in settings.commands:
        message = f"no command {command!r}{_hint(command, settings.commands)}"
        return Problem(message, code="unknown_name")
    if not isinstance(command, str) and not inline:
        message = "only mulligan.toml may define a command: name one from [commands.NAME]"
        return Problem(message, code="not_allowed")
    return None


def _check_output(path: Path, workspace: Workspace) -> list[Problem]:
    """Find problems that would prevent writing the answer to a file, before paying for it."""
    from mulligan.workers.sandbox.workspace import output_path

    try:
        output_path(path, workspace)
    except BadInput as error:
        return list(error.problems)
    return []


def workspace_path(workspace: Workspace, settings: Settings) -> Path | None:
    """Return the directory that a workspace names on this host; None for a snapshot."""
    if workspace.profile is not None:
        return settings.workspaces.get(workspace.profile)
    return Path(workspace.path) if workspace.path is not None else None


def offline_rules(settings: Settings) -> JobRules:
    """Return this installation's checks for jobs with paths on this host, without a ledger."""
    from mulligan.workers.runners.runner_registry import RunnerRegistry
    from mulligan.workers.verifiers.verifier_registry import VerifierRegistry

    runners = RunnerRegistry(profiles=settings.runners)
    verifiers = VerifierRegistry(models=ContractModels(settings.model_modules))
    return JobRules(
        check=lambda job: check_job(
            job, settings=settings, runners=runners, verifiers=verifiers, local_paths=True
        ),
        prompt_cap=settings.prompt_cap,
        exempt_task_types=settings.exempt_task_types,
    )


def build_intake(
    settings: Settings,
    *,
    ledger: RedisLedger,
    publish: Callable[[Sequence[Publication]], None],
    check: Check,
    blobs: Callable[[], BlobStore],
    models: ContractModels,
    exempt: Iterable[str] | None = None,
    resolve: Callable[[Workspace], Workspace] = lambda workspace: workspace,
) -> Intake:
    """Build an intake. ``check`` finds a job's problems; ``blobs`` is called to pack a path.

    ``resolve``: finds the commit of a workspace in a git repository.
    """

    def snapshot(workspace: Workspace) -> Workspace:
        from mulligan.workers.sandbox.workspace import pack

        if workspace.git is not None:
            return resolve(workspace)
        path = workspace_path(workspace, settings)
        if path is None:
            return workspace
        address = blobs().put(pack(path, max_bytes=settings.workspace_cap))
        return workspace.model_copy(update={"snapshot": address, "path": None, "profile": None})

    return Intake(
        ledger=ledger,
        publish=publish,
        check=check,
        prompt_cap=settings.prompt_cap,
        exempt_task_types=settings.exempt_task_types if exempt is None else exempt,
        complete=lambda job: complete_contracts(job, models),
        snapshot=snapshot,
        new_id=ledger.new_id,
    )
