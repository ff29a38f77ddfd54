"""`mulligan loops lint`, `create`, `add` and `import`: loops from files."""

from __future__ import annotations

import os
from pathlib import Path as FilePath
from typing import Annotated

import typer

from mulligan.console.cli.exit_codes import ExitCode, NoBroker
from mulligan.console.cli.loops.loop_options import (
    Name,
    Parameters,
    Path,
    open_loops,
    read_pairs,
    requester,
)
from mulligan.console.cli.loops.loop_transfer import import_archive
from mulligan.console.cli.loops.unknown_waits import look_up_waits
from mulligan.console.cli.options import By, Json
from mulligan.console.cli.output import screen
from mulligan.console.http.models import loop_models
from mulligan.console.loopfiles.import_markdown import SUFFIXES as MARKDOWN_SUFFIXES
from mulligan.console.loopfiles.import_markdown import import_markdown
from mulligan.console.loopfiles.import_seed import check_seed, import_seed
from mulligan.console.loopfiles.inspect_loop import loop_rules
from mulligan.console.loopfiles.loop_file import lint_loop, read_loop, read_specs
from mulligan.console.loopfiles.repository_rules import local_repository_problems
from mulligan.console.loopfiles.write_markdown import write_markdown
from mulligan.policies.figures.format import counted
from mulligan.policies.loops.spec import is_loop_name
from mulligan.tasks.coordination.find_unknown_waits import find_unknown_waits
from mulligan.tasks.loops import change, view
from mulligan.tasks.loops.change import NoSuchLoop
from mulligan.tasks.loops.registry import preview_loop
from mulligan.tasks.loops.transfer import Destination
from mulligan.tasks.ports.errors import BadInput, refuse
from mulligan.workers.loops.loop_archive import is_archive
from mulligan.workers.settings.model import load_settings

#: What ends like this is a file, though a loop might be called so.
_SPEC_SUFFIXES = (".yaml", ".yml", ".json")


def lint(path: Path, param: Parameters = None, json: Json = False) -> None:
    """Check a loop and its spec files without running them."""
    settings = load_settings()
    document, problems = lint_loop(
        path,
        parameters=read_pairs(param, "--param"),
        environment=os.environ,
        rules=loop_rules(
            settings, repository=lambda loop: local_repository_problems(settings, loop)
        ),
    )
    warnings = [str(each) for each in look_up_waits(settings, document.items if document else ())]
    if json:
        lines = [str(each) for each in problems]
        screen.emit({"ok": not problems, "problems": lines, "warnings": warnings})
    else:
        for each in (*problems, *(f"warning: {each}" for each in warnings)):
            screen.say(str(each))
        word = counted(len(problems), "problem") if problems else "no problems"
        word += f", {counted(len(warnings), 'warning')}" if warnings else ""
        screen.say(word, style="bold" if problems else "green")
    raise typer.Exit(int(ExitCode.BAD_INPUT if problems else ExitCode.OK))


def create(
    path: Path,
    param: Parameters = None,
    start: Annotated[bool, typer.Option("--start", help="Start it at once.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what it would do first.")
    ] = False,
    tenant: Annotated[str, typer.Option(help="The tenant that owns it.")] = "",
    by: By = None,
    json: Json = False,
) -> None:
    """Create a loop from its files."""
    settings = load_settings()
    with open_loops() as context:
        document = read_loop(
            path,
            parameters=read_pairs(param, "--param"),
            environment=os.environ,
            rules=loop_rules(
                settings,
                context.intake.problems,
                lambda loop: (
                    [*local_repository_problems(settings, loop)]
                    or change.repository_problems(context, loop)
                ),
            ),
        )
        for each in find_unknown_waits(context.ledger, document.items, tenant=tenant):
            screen.note(f"warning: {each}", style="yellow")
        if dry_run:
            _print_plan(loop_models.plan_document(preview_loop(context, document)), json)
            return
        name, who = document.loop.name, requester(by)
        written = change.create_loop(context, document, tenant=tenant, by=who.by)
        if start:
            change.start_new(context, name, who)
        made = view.view_loop(context, name)
        seen = written.status == "seen"
        found = loop_models.created(made, view.why_of(context, made), texts=True, seen=seen)
    if json:
        screen.emit(found.model_dump(mode="json"))
        return
    made_it = "created and started" if start else "created"
    screen.say(f"{name} {f'exists already; it is {found.status}' if seen else made_it}")
    if found.status == "created":
        screen.say(f"to start it: `mulligan loops start {name}`")


def _print_plan(plan: loop_models.LoopPlan, json: bool) -> None:
    if json:
        screen.emit(plan.model_dump(mode="json"))
        return
    screen.say(f"{plan.id}: {counted(len(plan.order), 'item')}, nothing was created")
    screen.say(f"first: {', '.join(plan.ready)}")
    if plan.name_in_use:
        screen.note(f"there is a loop {plan.id} already", style="yellow")


def add(
    name: Name,
    spec: Annotated[str, typer.Argument(metavar="SPEC", help="A spec file; - is stdin.")],
    by: By = None,
    json: Json = False,
) -> None:
    """Add the items of a spec file to a loop."""
    found = read_specs(spec, environment=os.environ)
    with open_loops() as context:
        try:
            change.inject(context, name, found.items, requester(by))
        except BadInput as error:
            if type(error) is BadInput:  # the items are wrong, not the loop
                refuse(found.place(error.problems))
            raise
    ids = [item.id for item in found.items]
    if json:
        screen.emit({"loop": name, "added": ids})
    else:
        screen.say(f"{name}: added {', '.join(ids)}")


def import_loop(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="An exported loop, a Markdown checklist, a loop_config, or a test-state.json.",
        ),
    ],
    to: Annotated[
        FilePath | None, typer.Option("--to", metavar="DIR", help="Folder to write to.")
    ] = None,
    repo: Annotated[str | None, typer.Option(help="Its repository here.")] = None,
    name: Annotated[str | None, typer.Option(help="Its name here.")] = None,
    start: Annotated[bool, typer.Option("--start", help="Go on at once.")] = False,
    tenant: Annotated[str, typer.Option(help="The tenant that owns it.")] = "",
    by: By = None,
    json: Json = False,
) -> None:
    """Go on with an exported loop; or write a checklist as a loop.

    An exported loop goes into the ledger. A Markdown checklist, or a loop_config with its
    test-state.json, becomes files in a folder (--to).
    """
    if is_archive(FilePath(file)):
        if to is not None:
            raise BadInput("--to is for other files: an exported loop goes into the ledger")
        destination = Destination(name=name, repo=repo, tenant=tenant)
        import_archive(FilePath(file), destination, requester(by), start=start, json=json)
        return
    if not FilePath(file).is_file():
        raise BadInput(f"{file}: there is no such file")
    is_markdown = FilePath(file).suffix.lower() in MARKDOWN_SUFFIXES
    if not is_markdown:
        check_seed(file)  # what is wrong with the file comes before what is wrong with the options
    if to is None:
        raise BadInput("name the folder to write to: --to DIR")
    if repo is not None or name is not None or start or tenant:
        raise BadInput("--repo, --name, --start and --tenant are for an exported loop")
    if is_markdown:
        written, notes = import_markdown(file, to)
    else:
        written, notes = import_seed(file, to), []
    if json:
        screen.emit({"written": [str(path) for path in written], "notes": notes})
        return
    for path in written:
        screen.say(str(path))
    for note in notes:
        screen.note(note, style="yellow")
    screen.say(f"to see what is missing: `mulligan loops lint {to}`")


def markdown(
    loop: Annotated[
        str,
        typer.Argument(
            metavar="LOOP_OR_PATH", help="Name of a loop; or a loop.yaml or folder: ./NAME."
        ),
    ],
    param: Parameters = None,
    json: Json = False,
) -> None:
    """Print the items of a loop as a Markdown checklist."""
    if is_loop_name(loop) and FilePath(loop).suffix not in _SPEC_SUFFIXES:
        name, text = loop, _checklist_of_loop(loop)
    else:
        name, text = _checklist_of_files(loop, param)
    if json:
        screen.emit({"loop": name, "markdown": text})
    else:
        screen.say(text.rstrip())


def _checklist_of_loop(name: str) -> str:
    """Return the checklist of a loop in the ledger; say so if files have its name, too."""
    other = f"for the files in {name} here: `mulligan loops markdown ./{name}`"
    has_files = FilePath(name).exists()
    try:
        with open_loops() as context:
            snapshot = view.view_loop(context, name).snapshot
    except (NoBroker, NoSuchLoop):
        if has_files:
            screen.note(other, style="yellow")
        raise
    if has_files:
        screen.note(f"this is the loop in the ledger; {other}", style="yellow")
    states = {item: str(record.state) for item, record in snapshot.items.items()}
    return write_markdown(name, snapshot.specs, states)


def _checklist_of_files(path: str, param: Parameters) -> tuple[str, str]:
    document = read_loop(
        path,
        parameters=read_pairs(param, "--param"),
        environment=os.environ,
        # What a loop names need not exist to be written down.
        rules=loop_rules(load_settings(), lambda _job: [], config=lambda _config: ()),
    )
    name = document.loop.name
    return name, write_markdown(name, document.items, document.states)
