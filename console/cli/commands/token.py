"""`mulligan token`: tokens for the HTTP API. A token's text is shown once, when it is created."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from mulligan.console.cli.open_ledgers import open_located_ledger
from mulligan.console.cli.options import Json
from mulligan.console.cli.output import screen
from mulligan.policies.figures.format import timestamp
from mulligan.policies.jobs.job import parse_duration
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.ledger.stores.tokens import Role, Token, Tokens
from mulligan.workers.settings.model import load_settings


def create(
    role: Annotated[Role, typer.Option(help="What the bearer may do.")],
    name: Annotated[str, typer.Option(help="Whose token it is.")] = "",
    tenant: Annotated[
        str | None, typer.Option(help="Restrict it to the jobs of one tenant.")
    ] = None,
    texts: Annotated[
        bool, typer.Option("--texts", help="Let an ops token read prompts and answers.")
    ] = False,
    expires: Annotated[
        str,
        typer.Option(metavar="DURATION", help="Lifetime, such as 12h or 30d, or never."),
    ] = "90d",
    json: Json = False,
) -> None:
    """Create a token and show its text once."""
    lifetime = _lifetime(expires)
    if tenant == "":
        raise BadInput.at("--tenant", "must not be empty; leave it out for all tenants")
    with _store() as tokens:
        token, text = tokens.create(
            role=role, name=name, tenant=tenant, texts=texts, lifetime=lifetime
        )
    if json:
        screen.emit({**_document(token), "token": text})
        return
    screen.say(text)
    screen.note(
        f"{_about(token)}; it will not be shown again. Send it as `Authorization: Bearer …`"
    )
    if token.expires_at is None:
        screen.note("it never expires: whoever copies it keeps access until it is revoked")


def list_tokens(json: Json = False) -> None:
    """List the tokens, without their texts."""
    with _store() as tokens:
        found = tokens.all()
    if json:
        screen.emit({"tokens": [_document(token) for token in found]})
    elif not found:
        screen.say("no tokens: the console accepts anyone on its own host")
    else:
        for token in found:
            ended = "  expired" if token.expired(time.time()) else ""
            screen.say(f"{_about(token)}{ended}")


def revoke(
    token_id: Annotated[str, typer.Argument(metavar="ID", help="Id, as shown by `list`.")],
    json: Json = False,
) -> None:
    """Revoke a token; it stops working within seconds."""
    with _store() as tokens:
        if not tokens.revoke(token_id):
            raise BadInput(f"no token {token_id!r}; see `mulligan token list`")
        left = len(tokens.all())
    if json:
        screen.emit({"revoked": token_id, "tokens": left})
        return
    screen.say(f"{token_id} revoked")
    if not left:
        screen.note("no tokens are left: the console accepts anyone on its own host")


@contextmanager
def _store() -> Iterator[Tokens]:
    with open_located_ledger(load_settings()) as ledger:
        yield ledger.tokens


def _lifetime(text: str) -> float | None:
    if text == "never":
        return None
    try:
        seconds = float(parse_duration(text))
    except ValueError as error:
        raise BadInput.at("--expires", f"{error}") from None
    if not 0 < seconds <= 100 * 365 * 86400:
        raise BadInput.at("--expires", "must be more than 0 and at most 36500d, or never")
    return seconds


def _document(token: Token) -> dict[str, Any]:
    return {name: value for name, value in vars(token).items() if name != "sha256"}


def _about(token: Token) -> str:
    parts = [token.id, token.role]
    parts += [f"{token.name!r}"] if token.name else []
    parts += [f"tenant {token.tenant}"] if token.tenant is not None else []
    parts += ["with texts"] if token.role == "ops" and token.texts else []
    until = token.expires_at
    parts += [f"until {timestamp(until, None)}" if until is not None else "never expires"]
    return "  ".join(parts)
