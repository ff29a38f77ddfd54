"""`mulligan escalations`: list, show, end and mute escalations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from mulligan.console.cli.end_escalations import EndRequest, end, shares, who
from mulligan.console.cli.open_ledgers import open_located_ledger
from mulligan.console.cli.options import By, Json, Yes
from mulligan.console.cli.output import screen
from mulligan.console.reports.escalation_document import escalation_document, group_document
from mulligan.policies.escalations.alerts import runbook_link
from mulligan.policies.figures.format import duration
from mulligan.policies.jobs.job import Decoding, parse_duration
from mulligan.tasks.escalations.end_escalations import (
    EndAction,
    EscalationFilter,
    find_group,
    list_groups,
)
from mulligan.tasks.ports.errors import BadInput
from mulligan.tasks.ports.ledger import Escalation, EscalationGroup
from mulligan.workers.alerts.webhooks import alert_links
from mulligan.workers.settings.model import load_settings

#: Characters of a group's detail in the list.
_DETAIL = 100
Signature = Annotated[
    str, typer.Argument(metavar="SIGNATURE", help="Signature, as shown by `list`.")
]
Tenant = Annotated[str | None, typer.Option("--tenant", help="Only this tenant.")]
OfSignature = Annotated[
    str | None,
    typer.Option("--signature", metavar="SIGNATURE", help="All open escalations of a group."),
]
Ids = Annotated[
    list[str] | None, typer.Option("--id", metavar="ID", help="One escalation; repeatable.")
]
TaskType = Annotated[str | None, typer.Option("--task-type", help="Only this task type.")]
Reason = Annotated[str | None, typer.Option("--reason", help="Only this reason.")]
Older = Annotated[
    str | None, typer.Option("--older-than", metavar="AGE", help="Minimum age: 20s, 10m, 1h.")
]
Newer = Annotated[str | None, typer.Option("--newer-than", metavar="AGE", help="Maximum age.")]
Note = Annotated[str, typer.Option("--note", help="Note for the record: cause and remedy.")]
PerSecond = Annotated[
    float, typer.Option("--per-second", help="Maximum per second.", min=0.1, max=1000)
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done; change nothing.")]


# -- listing ---------------------------------------------------------------------------------------


def list_escalations(
    all_: Annotated[
        bool, typer.Option("--all", help="Include groups without open escalations.")
    ] = False,
    tenant: Tenant = None,
    limit: Annotated[int, typer.Option(help="Maximum rows.", min=1, max=5000)] = 50,
    json: Json = False,
) -> None:
    """List escalations, grouped by signature, newest first."""
    settings = load_settings()
    with open_located_ledger(settings) as ledger:
        groups = list_groups(ledger, only_open=not all_, tenant=tenant, limit=limit)
        now = ledger.now()
    if json:
        url = runbook_link("escalated", alert_links(settings))
        screen.emit({"groups": [group_document(group, runbook_url=url) for group in groups]})
    elif groups:
        _print_groups(groups, now)
        screen.say("for details: `mulligan escalations show SIGNATURE`", style="dim")
    else:
        screen.say("no escalations" if all_ else "no open escalations")


def _print_groups(groups: Sequence[EscalationGroup], now: float) -> None:
    """Print two lines each: a table would cut the signature, which people copy."""
    counts = [f"{group.open:,} open" for group in groups]
    wide = max(len(count) for count in counts)
    longest = max(len(group.signature) for group in groups)
    for group, count in zip(groups, counts, strict=True):
        muted = group.muted_until is not None and group.muted_until > now
        facts = [_why(group), f"{duration(now - group.last_at)} ago"]
        facts += [f"{group.total:,} in total"] if group.total != group.open else []
        facts += ["muted"] if muted else []
        screen.say(f"{count:>{wide}}  {group.signature:<{longest}}  {', '.join(facts)}")
        detail = " ".join(group.detail.split())[:_DETAIL]
        about = " · ".join(text for text in (shares(group.task_types), detail) if text)
        if about:
            screen.say(f"{'':>{wide}}  {about}", style="dim")


def show(
    signature: Signature,
    limit: Annotated[int, typer.Option(help="Maximum rows.", min=1, max=10_000)] = 20,
    only_open: Annotated[bool, typer.Option("--open", help="Only open escalations.")] = False,
    tenant: Tenant = None,
    json: Json = False,
) -> None:
    """Show a group and its newest escalations."""
    settings = load_settings()
    with open_located_ledger(settings) as ledger:
        group = find_group(ledger, signature, tenant=tenant)
        if group is None:
            raise _unknown(signature)
        rows = ledger.escalations(
            signature=signature, only_open=only_open, tenant=tenant, limit=limit
        )
        now = ledger.now()
    url = runbook_link("escalated", alert_links(settings))
    if json:
        found = [escalation_document(row) for row in rows]
        screen.emit({"group": group_document(group, runbook_url=url), "escalations": found})
        return
    _print_group(group, now, url)
    for row in rows:
        _print_row(row, now)
    if group.open:
        screen.say(f"mulligan escalations requeue --signature {signature} --dry-run", style="dim")


def _print_group(group: EscalationGroup, now: float, runbook: str) -> None:
    screen.say(f"{group.signature}  {_why(group)}", style="bold")
    screen.say(
        f"{group.open:,} open of {group.total:,}, the newest {duration(now - group.last_at)} ago"
    )
    if group.detail:
        screen.say(group.detail)
    if group.muted_until is not None and group.muted_until > now:
        screen.say(f"muted for another {duration(group.muted_until - now)}")
    screen.say(f"example  mulligan jobs show {group.example}")
    screen.say(f"runbook  {runbook}")


def _print_row(row: Escalation, now: float) -> None:
    line = f"{row.id}  {row.task_type}  {duration(now - row.at)} ago  {row.state}"
    if row.state != "open":
        line += f" by {row.ended_by}, {duration(now - (row.ended_at or now))} ago"
        line += f": {row.note}" if row.note else ""
    screen.say(line, style=None if row.state == "open" else "dim")


def _why(group: EscalationGroup) -> str:
    return group.reason if group.kind in (None, group.reason) else f"{group.kind}: {group.reason}"


def _unknown(signature: str) -> Exception:
    return BadInput(
        f"{signature}: no escalation has this signature; see `mulligan escalations list --all`"
    )


# -- ending ----------------------------------------------------------------------------------------


def _ending(how: Literal["resolved", "cancelled"], help_text: str) -> Callable[..., None]:
    """Return a command that ends escalations without running their jobs again."""

    def command(
        signature: OfSignature = None,
        ids: Ids = None,
        task_type: TaskType = None,
        reason: Reason = None,
        tenant: Tenant = None,
        older_than: Older = None,
        newer_than: Newer = None,
        note: Note = "",
        by: By = None,
        per_second: PerSecond = 50,
        dry_run: DryRun = False,
        yes: Yes = False,
        json: Json = False,
    ) -> None:
        which = _which(signature, ids, task_type, reason, tenant, older_than, newer_than)
        action = EndAction(how=how, by=by or who(), note=note)
        end(
            EndRequest(
                which=which,
                action=action,
                per_second=per_second,
                dry_run=dry_run,
                yes=yes,
                json=json,
            )
        )

    command.__doc__ = help_text
    return command


resolve = _ending("resolved", "Resolve escalations; their jobs stay as they are.")
cancel = _ending("cancelled", "Cancel escalated jobs.")


def requeue(
    signature: OfSignature = None,
    ids: Ids = None,
    task_type: TaskType = None,
    reason: Reason = None,
    tenant: Tenant = None,
    older_than: Older = None,
    newer_than: Newer = None,
    prompt_file: Annotated[
        Path | None,
        typer.Option("--prompt-file", metavar="FILE", help="File with a new prompt."),
    ] = None,
    fallback: Annotated[
        int, typer.Option("--fallback", help="Use the runner's Nth fallback.", min=0, max=100)
    ] = 0,
    temperature: Annotated[
        float | None, typer.Option("--temperature", help="Use this temperature.", min=0, max=2)
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", help="Use this limit for the answer.", min=1)
    ] = None,
    constrained: Annotated[
        bool, typer.Option("--constrained", help="Constrain the answer to the job's schema.")
    ] = False,
    note: Note = "",
    by: By = None,
    per_second: PerSecond = 50,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Requeue escalated jobs; earlier failures no longer count."""
    which = _which(signature, ids, task_type, reason, tenant, older_than, newer_than)
    decoding = Decoding(
        fallback=fallback, temperature=temperature, max_tokens=max_tokens, constrained=constrained
    )
    action = EndAction(
        how="requeued",
        by=by or who(),
        note=note,
        prompt=_prompt(prompt_file),
        decoding=None if decoding == Decoding() else decoding,
    )
    end(
        EndRequest(
            which=which, action=action, per_second=per_second, dry_run=dry_run, yes=yes, json=json
        )
    )


def _which(
    signature: str | None,
    ids: Sequence[str] | None,
    task_type: str | None,
    reason: str | None,
    tenant: str | None,
    older_than: str | None,
    newer_than: str | None,
) -> EscalationFilter:
    which = EscalationFilter(
        signature=signature,
        ids=tuple(ids or ()),
        task_type=task_type,
        reason=reason,
        tenant=tenant,
        older_than=_age("--older-than", older_than),
        newer_than=_age("--newer-than", newer_than),
    )
    if which.is_everything:
        raise BadInput(
            "choose escalations with --signature, --id, or a filter such as --task-type, --reason"
            " or --older-than"
        )
    return which


def _age(option: str, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return float(parse_duration(text))
    except ValueError as error:
        raise BadInput(f"{option}: {error}") from None


def _prompt(file: Path | None) -> str | None:
    if file is None:
        return None
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "is not UTF-8"
        raise BadInput(f"--prompt-file: {file}: {why}") from None
    if not text.strip():
        raise BadInput(
            f"--prompt-file: {file} is empty; leave the option out to use the job's own prompt"
        )
    return text


# -- muting ----------------------------------------------------------------------------------------


def mute(
    signature: Signature,
    for_: Annotated[
        str, typer.Option("--for", metavar="DURATION", help="Duration: 30m, 4h.")
    ] = "4h",
    off: Annotated[bool, typer.Option("--off", help="Unmute.")] = False,
    json: Json = False,
) -> None:
    """Mute the alerts of a group for a while.

    The group is still counted and listed.
    """
    seconds = _age("--for", for_) or 0.0
    with open_located_ledger(load_settings()) as ledger:
        until = None if off else ledger.now() + seconds
        if not ledger.mute(signature, until=until):
            raise _unknown(signature)
    if json:
        screen.emit({"signature": signature, "muted_until": until})
    else:
        screen.say(f"{signature} unmuted" if off else f"{signature} muted for {for_}")
