"""`mulligan webhooks`: the webhooks and their deliveries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from mulligan.console.cli.exit_codes import ExitCode
from mulligan.console.cli.open_ledgers import open_located_ledger
from mulligan.console.cli.options import Json
from mulligan.console.cli.output import screen
from mulligan.policies.escalations.alerts import hook_name
from mulligan.policies.figures.format import counted
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.alerts.webhooks import Webhooks, send_test_alerts
from mulligan.workers.settings.alert_settings import WebhookSettings
from mulligan.workers.settings.live_settings import LiveSettings
from mulligan.workers.settings.model import load_settings

_NO_WEBHOOKS = (
    'no webhooks configured; add to mulligan.toml: webhooks = [{url = "https://example.com/hook"}]'
)
_Id = Annotated[str | None, typer.Argument(metavar="ID", help="Id of a delivery.")]


def list_deliveries(
    limit: Annotated[int, typer.Option(help="Maximum rows.", min=1, max=10_000)] = 50,
    json: Json = False,
) -> None:
    """List the webhooks, and deliveries that are waiting or dead."""
    with _open_webhooks() as (webhooks, hooks):
        found = [delivery.as_dict() for delivery in webhooks.deliveries.all(limit=limit)]
    if json:
        screen.emit({"webhooks": [_as_dict(hook) for hook in hooks], "deliveries": found})
        return
    for hook in hooks:
        about = _as_dict(hook)
        signed = f"signed with {hook.secret_env}" if hook.secret_env else "not signed"
        screen.say(f"{about['hook']}  {', '.join(about['events'])}  ({signed})")
    if not hooks:
        screen.say(_NO_WEBHOOKS)
    for delivery in found:
        error = f"  {delivery['error']}" if delivery["error"] else ""
        screen.say(
            f"{delivery['state']:<8} {delivery['id']}  {delivery['event']} ×{delivery['count']}"
            f"  to {delivery['hook']}, tries: {delivery['tries']}{error}"
        )
    if not found:
        screen.say("no deliveries are waiting or dead")


def send_tests(json: Json = False) -> None:
    """Send a test event to every webhook and show the result."""
    with _open_webhooks() as (webhooks, hooks):
        tests = send_test_alerts(webhooks, hooks)
    if json:
        screen.emit({"tests": tests})
    elif not tests:
        screen.say(_NO_WEBHOOKS)
    else:
        for found in tests:
            screen.say(f"{found['hook']}  {found['error'] or 'accepted'}")
    if any(found["error"] for found in tests):
        raise typer.Exit(int(ExitCode.SOME_FAILED))


def retry(
    delivery: _Id = None,
    all_: Annotated[bool, typer.Option("--all", help="All dead deliveries.")] = False,
    json: Json = False,
) -> None:
    """Retry dead deliveries.

    Each is tried as often as a new one.
    """
    _check(delivery, all_)
    with _open_webhooks() as (webhooks, _):
        done = webhooks.deliveries.retry(delivery)
    _tell(done, delivery, json, "no dead delivery {}", "retried")


def drop(
    delivery: _Id = None,
    all_: Annotated[bool, typer.Option("--all", help="All dead deliveries.")] = False,
    json: Json = False,
) -> None:
    """Drop a delivery, or all dead ones."""
    _check(delivery, all_)
    with _open_webhooks() as (webhooks, _):
        done = webhooks.deliveries.drop(delivery)
    _tell(done, delivery, json, "no delivery {}", "dropped")


@contextmanager
def _open_webhooks() -> Iterator[tuple[Webhooks, tuple[WebhookSettings, ...]]]:
    settings = load_settings()
    with open_located_ledger(settings) as ledger:
        yield Webhooks(ledger, LiveSettings(settings)), settings.webhooks


def _as_dict(hook: WebhookSettings) -> dict[str, Any]:
    """Describe a webhook without its URL's path, which may be a secret."""
    return {
        "hook": hook_name(hook.url, hook.secret_env),
        "events": sorted(hook.events),
        "secret_env": hook.secret_env,
    }


def _check(delivery: str | None, all_: bool) -> None:
    if (delivery is None) != all_:
        raise BadInput("pass the ID of a delivery, or --all")


def _tell(done: list[str], asked: str | None, json: bool, missing: str, what: str) -> None:
    if asked is not None and not done:
        raise BadInput(missing.format(asked) + "; see `mulligan webhooks list`")
    if json:
        screen.emit({"deliveries": done})
    else:
        screen.say(f"{counted(len(done), 'delivery', 'deliveries')} {what}")
