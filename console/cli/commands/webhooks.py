"""`mulligan webhooks`: who is told, what waits to be told, and what could not be told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mulligan.console.cli.commands.run import Json
from mulligan.console.cli.output import screen

if TYPE_CHECKING:
    from mulligan.workers.alerts.webhooks import Webhooks
    from mulligan.workers.settings.model import WebhookSettings

_Id = Annotated[str | None, typer.Argument(metavar="[ID]", help="A delivery's id.")]


def create_cli() -> typer.Typer:
    cli = typer.Typer(help="Webhooks and their deliveries.", no_args_is_help=True)
    cli.command("list")(list_deliveries)
    cli.command("test")(send_tests)
    cli.command("retry")(retry)
    cli.command("drop")(drop)
    return cli


def list_deliveries(
    limit: Annotated[int, typer.Option(help="At most so many.", min=1, max=10_000)] = 50,
    json: Json = False,
) -> None:
    """List the webhooks, and the deliveries that wait or were given up."""
    with _office() as (office, hooks):
        found = [delivery.as_dict() for delivery in office.deliveries.all(limit=limit)]
    if json:
        screen.emit({"webhooks": [_as_dict(hook) for hook in hooks], "deliveries": found})
        return
    for hook in hooks:
        about = _as_dict(hook)
        signed = f"signed with {hook.secret_env}" if hook.secret_env else "not signed"
        screen.say(f"{about['hook']}  {', '.join(about['events'])}  ({signed})")
    if not hooks:
        screen.say("no webhooks are configured: see `webhooks` in mulligan.toml")
    for delivery in found:
        error = f"  {delivery['error']}" if delivery["error"] else ""
        screen.say(
            f"{delivery['state']:<8} {delivery['id']}  {delivery['event']} ×{delivery['count']}"
            f"  to {delivery['hook']}, tries: {delivery['tries']}{error}"
        )
    if not found:
        screen.say("no deliveries wait, and none is dead")


def send_tests(json: Json = False) -> None:
    """Send a test to every webhook, from here, and say what came of it."""
    from mulligan.console.cli.exit_codes import ExitCode
    from mulligan.workers.alerts.webhooks import try_out

    with _office() as (office, hooks):
        tests = try_out(office, hooks)
    if json:
        screen.emit({"tests": tests})
    elif not tests:
        screen.say("no webhooks are configured: see `webhooks` in mulligan.toml")
    else:
        for found in tests:
            screen.say(f"{found['hook']}  {found['error'] or 'took it'}")
    if any(found["error"] for found in tests):
        raise typer.Exit(int(ExitCode.SOME_FAILED))


def retry(
    delivery: _Id = None,
    all_: Annotated[bool, typer.Option("--all", help="Every dead one.")] = False,
    json: Json = False,
) -> None:
    """Try dead deliveries anew, with as many tries as at first."""
    _check(delivery, all_)
    with _office() as (office, _):
        done = office.deliveries.retry(delivery)
    _tell(done, delivery, json, "no dead delivery {}", "tried anew")


def drop(
    delivery: _Id = None,
    all_: Annotated[bool, typer.Option("--all", help="Every dead one.")] = False,
    json: Json = False,
) -> None:
    """Forget a delivery, or all dead ones."""
    _check(delivery, all_)
    with _office() as (office, _):
        done = office.deliveries.drop(delivery)
    _tell(done, delivery, json, "no delivery {}", "dropped")


@contextmanager
def _office() -> Iterator[tuple[Webhooks, tuple[WebhookSettings, ...]]]:
    from mulligan.console.cli.open_ledgers import located
    from mulligan.workers.alerts.webhooks import Webhooks
    from mulligan.workers.ledger.open_ledger import open_ledger
    from mulligan.workers.settings.live_settings import LiveSettings
    from mulligan.workers.settings.model import load_settings

    with located(load_settings()) as settings:
        ledger = open_ledger(settings, patience=settings.submit_patience)
        live = LiveSettings(settings)
        office = Webhooks(ledger.calls, settings.key_prefix, live, job=ledger.job)
        yield office, settings.webhooks


def _as_dict(hook: WebhookSettings) -> dict[str, Any]:
    """As people may see it: a URL's path may be a secret."""
    from mulligan.policies.escalations.alerts import hook_name

    return {
        "hook": hook_name(hook.url, hook.secret_env),
        "events": sorted(hook.events),
        "secret_env": hook.secret_env,
    }


def _check(delivery: str | None, all_: bool) -> None:
    from mulligan.tasks.ports.errors import BadInput

    if (delivery is None) != all_:
        raise BadInput("say which: the ID of one delivery, or --all")


def _tell(done: list[str], asked: str | None, json: bool, missing: str, what: str) -> None:
    from mulligan.tasks.ports.errors import BadInput

    if asked is not None and not done:
        raise BadInput(missing.format(asked) + "; `mulligan webhooks list` shows those there are")
    if json:
        screen.emit({"deliveries": done})
    else:
        screen.say(f"{len(done)} {'delivery' if len(done) == 1 else 'deliveries'} {what}")
