"""The door of this installation: which runners, commands and workspaces a job may name."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mulligan.policies.jobs.job import Job, VerifierSpec, Workspace
from mulligan.tasks.jobs.submit import Intake
from mulligan.tasks.ports.blobs import BlobStore
from mulligan.tasks.ports.errors import BadInput
from mulligan.tasks.ports.ledger import Ledger, Publication
from mulligan.workers.contract_models import ContractModels, complete_contracts, contract_problems
from mulligan.workers.ledger import job_ids, rows
from mulligan.workers.settings.model import Settings

if TYPE_CHECKING:  # a producer accepts jobs without importing a runner or a verifier
    from mulligan.workers.runners.runner_registry import RunnerRegistry
    from mulligan.workers.verifiers.verifier_registry import VerifierRegistry


def resolve_command(spec: VerifierSpec, settings: Settings) -> VerifierSpec:
    """A verifier that names a command of mulligan.toml, with that command's argv filled in.

    Jobs carry no authority: an argv of a job's own needs allow_inline.
    """
    if spec.id != "command.subprocess":
        return spec
    name = spec.options.get("command")
    if name is None:
        if not settings.allow_inline and spec.options.get("argv"):
            raise BadInput(
                "argv: a job may not define a command here: name one with `command:` from"
                " [commands.NAME] of mulligan.toml, or set allow_inline = true there"
            )
        return spec
    if not isinstance(name, str) or name not in settings.commands:
        raise BadInput(f"command: no command {name!r}{_hint(str(name), settings.commands)}")
    rest = {k: v for k, v in spec.model_dump(mode="json").items() if k != "command"}
    return VerifierSpec.model_validate({**rest, **settings.commands[str(name)]})


def _hint(name: str, known: dict[str, Any]) -> str:
    from rapidfuzz import process  # only for a typo: a producer starts without it

    near = process.extractOne(name, list(known), score_cutoff=65)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; known are {', '.join(sorted(known))}" if known else "; mulligan.toml names none"


def check_job(
    job: Job,
    *,
    settings: Settings,
    runners: RunnerRegistry,
    verifiers: VerifierRegistry,
    local_paths: bool,
) -> list[str]:
    """Every problem of a job's runner, verifiers and workspace; contacts nothing."""
    found = runners.check(job.runner, allow_inline=settings.allow_inline)
    resolved = []
    for index, spec in enumerate(job.verifiers):
        try:
            resolved.append(resolve_command(spec, settings))
        except BadInput as error:
            found += [f"verifiers[{index}].{problem}" for problem in error.problems]
            resolved.append(VerifierSpec(id="json.object"))
    found += verifiers.check(resolved, job.workspace)
    found += contract_problems(job, verifiers.models)
    if not found:
        found += _time_problems(job, resolved, settings, runners, verifiers)
    if job.workspace is not None:
        found += _check_workspace(job.workspace, settings, local_paths=local_paths)
    return found


def _time_problems(
    job: Job,
    specs: Sequence[VerifierSpec],
    settings: Settings,
    runners: RunnerRegistry,
    verifiers: VerifierRegistry,
) -> list[str]:
    """What cannot be done within one claim; asked of a job that is sound otherwise."""
    from mulligan.workers.admission import claim_time

    found: list[str] = []
    answer = 0.0
    try:
        runner = runners.resolve(job.runner, allow_inline=settings.allow_inline)
        answer = claim_time.answer_time(job.runner, runner, runners=runners, settings=settings)
    except BadInput as error:
        found += error.problems
    built = [verifiers.build(spec) for spec in specs]
    for index, verifier in enumerate(built):
        if problem := claim_time.verifier_problem(verifier, settings=settings):
            found.append(f"verifiers[{index}].{problem}")
    whole = claim_time.recheck_problem(job, built, answer=answer, settings=settings)
    return [whole] if whole and not found else found


def _check_workspace(workspace: Workspace, settings: Settings, *, local_paths: bool) -> list[str]:
    if workspace.profile is not None and workspace.profile not in settings.workspaces:
        hint = _hint(workspace.profile, dict(settings.workspaces))
        return [f"workspace.profile: no workspace {workspace.profile!r}{hint}"]
    if workspace.path is not None and not local_paths and not settings.allow_inline:
        return [
            "workspace.path: a job from the queue may not name a path of this host: use"
            " `profile:` with a name from [workspaces] of mulligan.toml"
        ]
    path = workspace_path(workspace, settings)
    if path is None:
        return []
    if not path.is_dir():
        return [f"workspace.path: there is no directory {path}"]
    return _check_output(path, workspace)


def _check_output(path: Path, workspace: Workspace) -> list[str]:
    """What would keep an answer from becoming its file: better told before it is paid for."""
    from mulligan.workers.sandbox.workspace import output_path

    try:
        output_path(path, workspace)
    except BadInput as error:
        return list(error.problems)
    return []


def workspace_path(workspace: Workspace, settings: Settings) -> Path | None:
    """The directory that a workspace names on this host; None for a snapshot."""
    if workspace.profile is not None:
        return settings.workspaces.get(workspace.profile)
    return Path(workspace.path) if workspace.path is not None else None


def build_intake(
    settings: Settings,
    *,
    ledger: Ledger,
    publish: Callable[[Sequence[Publication]], None],
    check: Callable[[Job], list[str]],
    blobs: Callable[[], BlobStore],
    models: ContractModels,
    exempt: Container[str] | None = None,
) -> Intake:
    """``check`` finds a job's problems; ``blobs`` is asked for when there is a path to pack."""

    def snapshot(workspace: Workspace) -> Workspace:
        from mulligan.workers.sandbox.workspace import pack

        path = workspace_path(workspace, settings)
        if path is None:
            return workspace
        address = blobs().put(pack(path, max_bytes=settings.workspace_cap))
        return workspace.model_copy(update={"snapshot": address, "path": None, "profile": None})

    return Intake(
        ledger=ledger,
        publish=publish,
        check=check,
        complete=lambda job: complete_contracts(job, models),
        snapshot=snapshot,
        new_id=lambda job: job_ids.job_id(
            partitions=settings.partitions,
            key=rows.key_of(job, settings),
            scope=rows.scope_of(job, settings),
        ),
        prompt_cap=settings.prompt_cap,
        exempt_task_types=settings.exempt_task_types if exempt is None else exempt,
    )
