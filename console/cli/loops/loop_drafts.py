"""`mulligan loops draft` and `check`: specs from goals, and specs compared with a code base."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path as FilePath
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from mulligan.console.cli.backend import CliBackend, open_ledger_backend
from mulligan.console.cli.exit_codes import ExitCode
from mulligan.console.cli.follow_jobs import FollowedJob, FollowedJobs
from mulligan.console.cli.loops.loop_options import Parameters, Path, read_pairs
from mulligan.console.cli.loops.unknown_waits import look_up_waits
from mulligan.console.cli.options import Json, Timeout
from mulligan.console.cli.output import screen
from mulligan.console.cli.submission import wait_for_jobs
from mulligan.console.http.models.draft_models import draft_detail
from mulligan.console.loopfiles.inspect_loop import loop_rules
from mulligan.console.loopfiles.loop_file import LOOP_FILE, inspect_file
from mulligan.console.loopfiles.migrations import escaped
from mulligan.console.loopfiles.yaml_files import SPECS, refuse_existing, write_files, yaml_text
from mulligan.policies.figures.format import counted, score
from mulligan.policies.jobs.job import TERMINAL, RunnerSpec
from mulligan.policies.loops.draft import slug
from mulligan.policies.loops.spec import LoopConfig, LoopDocument
from mulligan.policies.problem import Problem, first_problems
from mulligan.tasks.loops import draft as drafts
from mulligan.tasks.loops.spec_check import SpecCheck, SpecFinding
from mulligan.tasks.ports.errors import (
    BadInput,
    LedgerUnavailable,
    RepositoryUnavailable,
    VerifierError,
    refuse,
)
from mulligan.tasks.ports.ledger import Accepted, Event
from mulligan.workers.backends.follow import LedgerFeed
from mulligan.workers.loops.code_base import LocalCodeBase
from mulligan.workers.settings.model import Settings, load_settings

#: What a draft may run where jobs may define commands, unless --allow says otherwise.
_PROGRAMS = ("python", "python3", "pytest")
_CHECK_SECONDS = 3600.0


def draft(
    goal: Annotated[str | None, typer.Argument(metavar="GOAL", help="What is to be done.")] = None,
    repo: Annotated[
        str | None, typer.Option(metavar="DIR", help="Git repository: a folder, a name or a URL.")
    ] = None,
    base: Annotated[
        str | None, typer.Option(help="Branch, tag or commit to begin with; by default HEAD.")
    ] = None,
    runner: Annotated[
        str | None, typer.Option(help="Runner that writes the draft; by default loop_drafter.")
    ] = None,
    agent: Annotated[
        str | None, typer.Option(help="Runner of the items; by default that of the draft.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the loop; by default made of the goal.")
    ] = None,
    output: Annotated[
        FilePath | None, typer.Option(metavar="FOLDER", help="Folder to write to; default: NAME.")
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(metavar="PROGRAM", help="A program that the checks of the draft may run."),
    ] = None,
    auto_start: Annotated[
        bool, typer.Option("--auto-start", help="Create and start the loop when a draft passes.")
    ] = False,
    new: Annotated[
        bool, typer.Option("--new", help="Ask anew, though the same was asked for before.")
    ] = False,
    resume: Annotated[
        str | None, typer.Option(metavar="JOB", help="Go on with a draft that was asked for.")
    ] = None,
    timeout: Timeout = None,
    json: Json = False,
) -> None:
    """Let a model write the items of a loop for a goal."""
    with open_ledger_backend() as backend:
        loops = backend.services.loops
        if resume is not None:
            if any((goal, repo, base, runner, agent, name, allow, auto_start, new)):
                raise BadInput("with --resume, only --output, --timeout and --json may be given")
            called = drafts.read_draft(loops, resume).rules.loop.name
            ask = partial(Accepted, id=resume, status="seen")
        else:
            asked = _request(backend, goal, repo, base, name, runner, agent)
            programs = allow or (_PROGRAMS if backend.settings.allow_inline else ())
            asked = replace(asked, programs=programs, auto_start=auto_start)
            called = asked.loop.name
            ask = partial(drafts.join_draft, loops, asked, anew=new)
        _follow_and_write(backend, ask, called, output, timeout=timeout, json=json)


def _request(
    backend: CliBackend,
    goal: str | None,
    repo: str | None,
    base: str | None,
    name: str | None,
    runner: str | None,
    agent: str | None,
) -> drafts.DraftRequest:
    settings = backend.settings
    drafter = runner or settings.loop_drafter
    needed = {
        "say what is to be done: GOAL": goal,
        "name the git repository with --repo": repo,
        "name a runner with --runner, or set loop_drafter in mulligan.toml": drafter,
    }
    refuse(Problem(words) for words, given in needed.items() if not given)
    assert goal and repo and drafter  # noqa: S101, PT018 - nothing is missing
    config = _loop_config(
        backend, name=name or slug(goal), repo=_repository(repo, settings), base=base or "HEAD",
        runner=agent or drafter,
    )  # fmt: skip
    # A draft has the runner of its items, unless they have another one.
    own = RunnerSpec(profile=drafter) if agent not in (None, drafter) else None
    return drafts.DraftRequest(goal=goal, loop=config, runner=own)


def _follow_and_write(
    backend: CliBackend,
    ask: Callable[[], Accepted],
    name: str,
    output: FilePath | None,
    *,
    timeout: float | None,
    json: bool,
) -> None:
    """Wait for a draft and write its files; exit with 1 if there is none, or none yet."""
    folder = output or FilePath(name)
    refuse_existing([folder / LOOP_FILE, folder / SPECS / f"{name}.yaml"])
    to = ["--output", str(output)] if output else []
    view = _follow(backend, ask, name, to, quiet=json, timeout=timeout)
    written = [] if view.document is None else _write(folder, view.document)
    if json:
        detail = draft_detail(view, texts=True).model_dump(mode="json")
        screen.emit({**detail, "written": [str(path) for path in written]})
    elif view.job.state in TERMINAL:
        _say_end(view, written, folder)
    else:
        screen.say(f"not ready after {timeout:g} s; {_later(view.job.id, to)}", style="bold")
    failed = view.document is None or bool(view.problem)
    raise typer.Exit(int(ExitCode.SOME_FAILED if failed else ExitCode.OK))


def _later(job_id: str, to: Sequence[str]) -> str:
    """Say how to get a draft that is not waited for any more."""
    command = shlex.join(["mulligan", "loops", "draft", "--resume", job_id, *to])
    return f"the draft goes on; to get it: `{command}`"


def _repository(repo: str, settings: Settings) -> str:
    """Return a repository as workers find it: a folder by its whole path."""
    path = FilePath(repo).expanduser()
    return str(path.resolve()) if repo not in settings.repositories and path.is_dir() else repo


def _loop_config(
    backend: CliBackend, *, name: str, repo: str, base: str, runner: str
) -> LoopConfig:
    fields = {"name": name, "repo": repo, "base": base, "runner": runner}
    with suppress(BadInput):  # the request is refused with this problem and all others
        resolved = backend.services.runners.resolve(
            RunnerSpec(profile=runner), allow_inline=backend.settings.allow_inline
        )
        # A runner that only answers with text changes files by edits.
        if not hasattr(resolved, "work_in"):
            fields["edits"] = True  # type: ignore[assignment]
    return LoopConfig.model_validate(fields)


def _follow(
    backend: CliBackend,
    ask: Callable[[], Accepted],
    name: str,
    to: Sequence[str],
    *,
    quiet: bool,
    timeout: float | None,
) -> drafts.DraftView:
    loops, feed = backend.services.loops, LedgerFeed(backend.ledger)
    accepted = ask()
    if not quiet:
        before = ", which was asked for before" if accepted.status == "seen" else ""
        screen.say(f"{accepted.id}  drafting {name}{before}")
    shown: set[int] = set()

    def show(_job: FollowedJob, event: Event) -> None:
        if not quiet and event.data.get("state") == "settled":
            _say_attempts(drafts.read_draft(loops, accepted.id), shown)

    wait_for_jobs(
        backend,
        FollowedJobs.of({accepted.id: name}),
        feed,
        seen=accepted.status == "seen",
        show=show,
        deadline=None if timeout is None else time.monotonic() + timeout,
        later=_later(accepted.id, to),
    )
    view = drafts.read_draft(loops, accepted.id)
    if not quiet:
        _say_attempts(view, shown)
    return view


def _say_attempts(view: drafts.DraftView, shown: set[int]) -> None:
    """Say what was found in the attempts that were not shown yet."""
    for each in view.attempts:
        if each.number in shown:
            continue
        shown.add(each.number)
        found = counted(len(each.problems), "problem") if each.problems else "no problems"
        screen.say(f"attempt {each.number}  score {score(each.score)}  {found}", style="bold")
        for problem in each.problems:
            screen.say(f"  {problem}")


def _write(folder: FilePath, document: LoopDocument) -> list[FilePath]:
    """Write a drafted loop as people would."""
    loop = document.loop.model_dump(mode="json", exclude_unset=True, exclude={"specs"})
    runner = document.loop.runner
    if runner is not None and runner.profile is not None:
        loop["runner"] = runner.profile
    items = [each.model_dump(mode="json", exclude_unset=True) for each in document.items]
    name = document.loop.name
    head = {"version": 1, **loop, "specs": [f"{SPECS}/*.yaml"]}
    return write_files(
        {
            folder / LOOP_FILE: yaml_text(escaped(head)),
            folder / SPECS / f"{name}.yaml": yaml_text(escaped({"version": 1, "items": items})),
        }
    )


def _say_end(view: drafts.DraftView, written: Sequence[FilePath], folder: FilePath) -> None:
    for path in written:
        screen.say(str(path))
    name = view.rules.loop.name
    if view.document is None:
        reason = f" ({view.job.reason})" if view.job.reason else ""
        screen.say(f"no draft passed: its job is {view.job.state}{reason}", style="bold")
        screen.say(f"to see its attempts: `mulligan jobs show {view.job.id}`")
        return
    for item in view.document.items:
        after = f"  after {', '.join(item.depends_on)}" if item.depends_on else ""
        screen.say(f"  {item.id}  {item.label}{after}")
    if view.is_created:
        screen.say(f"{name} created and started", style="green")
    elif view.problem:
        screen.say(f"{name} was not created: {view.problem}", style="yellow")
    else:
        screen.say(f"to create and start it: `mulligan loops create {folder} --start`")


# -- check -----------------------------------------------------------------------------------------


def check(
    path: Path,
    repo: Annotated[
        str | None, typer.Option(metavar="DIR", help="Git repository instead of the loop's.")
    ] = None,
    param: Parameters = None,
    json: Json = False,
) -> None:
    """Compare a spec with the code base: run its verifiers.

    Exit code 1 if a verifier passes already or cannot run, a guard fails, or the spec is wrong.
    """
    # The user of this command may run these programs anyway.
    settings = load_settings(allow_inline=True)
    document, problems = inspect_file(
        path,
        parameters=read_pairs(param, "--param"),
        environment=os.environ,
        rules=loop_rules(settings),
    )
    found: list[SpecFinding] = []
    if document is not None and not problems:
        found = _compare(settings, document, repo, on_run=_say_nothing if json else screen.note)
        found += look_up_waits(settings, document.items)
    lines = [str(each) for each in first_problems(problems)]
    failed = bool(lines) or any(not each.is_warning for each in found)
    if json:
        rows = [
            {"item": each.item, "code": each.code, "place": each.place, "message": each.message,
             "warning": each.is_warning}
            for each in found
        ]  # fmt: skip
        screen.emit({"ok": not failed, "problems": lines, "findings": rows})
    else:
        _say_findings(lines, found)
    raise typer.Exit(int(ExitCode.SOME_FAILED if failed else ExitCode.OK))


def _say_nothing(_label: str) -> None:
    pass


def _compare(
    settings: Settings, document: LoopDocument, repo: str | None, *, on_run: Callable[[str], None]
) -> list[SpecFinding]:
    config = document.loop
    if repo is not None:
        changes = {"repo": _repository(repo, settings), "workspace": None}
        config = config.model_copy(update=changes)
    with TemporaryDirectory() as folder:
        local = LocalCodeBase(
            settings=settings, folder=FilePath(folder), seconds=_CHECK_SECONDS, on_run=on_run
        )
        try:
            base = local.of(config)
            return [*SpecCheck(base).find(document.items, done=document.states)]
        except LedgerUnavailable:
            raise
        except (RepositoryUnavailable, VerifierError) as error:
            raise BadInput(f"the code base cannot be checked: {error}") from None


def _say_findings(lines: Sequence[str], found: Sequence[SpecFinding]) -> None:
    for line in lines:
        screen.say(line)
    for each in found:
        screen.say(f"{'warning: ' if each.is_warning else ''}{each}")
    problems = len(lines) + sum(not each.is_warning for each in found)
    warnings = sum(each.is_warning for each in found)
    more = f", {counted(warnings, 'warning')}" if warnings else ""
    word = counted(problems, "problem") if problems else "no problems"
    screen.say(f"{word}{more}", style="bold" if problems else "green")
