"""Tokens expire unless somebody says otherwise, and everyone who needs to know learns it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from support.cli_process import Shell, new_shell
from support.console_server import client_of
from support.ledger_scenario import SettingsMaker

from mulligan.console.cli.doctor_checks import check_tokens
from mulligan.console.http.context import ConsoleContext, open_context
from mulligan.workers.ledger.stores.tokens import Token

DAY = 86400.0


@pytest.fixture
def context(settings: SettingsMaker) -> ConsoleContext:
    return open_context(settings())


@pytest.fixture
def shell(redis_url: str) -> Iterator[Shell]:
    with new_shell(MULLIGAN_BROKER_URL=redis_url, NO_COLOR="1") as found:
        yield found


def create(shell: Shell, *argv: str) -> dict[str, Any]:
    found: dict[str, Any] = shell.invoke_json("token", "create", "--role", "producer", *argv)
    return found


def test_a_token_expires_after_90_days_unless_told_otherwise(shell: Shell) -> None:
    now = time.time()
    usual, short, endless = (
        create(shell, *argv) for argv in ([], ["--expires", "2h"], ["--expires", "never"])
    )
    assert abs(usual["expires_at"] - now - 90 * DAY) < 600
    assert abs(short["expires_at"] - now - 7200) < 600
    assert endless["expires_at"] is None
    listed = shell.invoke("token", "list").stdout.splitlines()
    assert [bool(re.search(r"until \d{4}-", line)) for line in listed] == [True, True, False]
    assert listed[2].endswith("never expires")


def test_a_token_that_never_expires_is_said_to_be_one(shell: Shell) -> None:
    result = shell.invoke("token", "create", "--role", "ops", "--expires", "never")
    assert "it never expires: whoever copies it keeps access until it is revoked" in " ".join(
        result.stderr.split()
    )
    shell.invoke("token", "create", "--role", "ops", "--expires", "soon", code=2)


def test_an_expired_token_learns_when_it_ended_and_how_to_renew_it(
    context: ConsoleContext,
) -> None:
    token, text = context.tokens.create(
        role="producer", name="shop's own", tenant="acme", lifetime=-DAY
    )
    command = "mulligan token create --role producer --name 'shop'\"'\"'s own' --tenant acme"
    refused = client_of(context, text).get("/api/jobs")
    assert refused.status_code == 401
    message = refused.json()["error"]["message"]
    assert message.startswith(f"the token {token.id} expired on 20")
    assert message.endswith(f"create another with `{command}`")
    login = client_of(context).post("/login", data={"token": text})
    assert (login.status_code, command in login.json()["error"]["message"]) == (403, True)


def test_nobody_else_learns_that_a_token_expired(context: ConsoleContext) -> None:
    token, text = context.tokens.create(role="producer", name="shop", lifetime=-DAY)
    for wrong in (text[:-1], f"mul_{token.id}_", f"mul_{token.id}_x", "mul__"):
        refused = client_of(context, wrong).get("/api/jobs")
        message = refused.json()["error"]["message"]
        assert (refused.status_code, message) == (401, "the token is unknown, revoked or expired")


def test_the_renewed_token_of_an_unnamed_producer_is_the_same_producer() -> None:
    """Given a token without a name, its successor is named after its id."""
    fields: dict[str, Any] = {"sha256": "", "texts": True, "created_at": 0.0, "expires_at": 1.0}
    old = Token(id="a1", role="producer", tenant=None, name="", **fields)
    assert old.renewal == "mulligan token create --role producer --name a1"
    assert Token(id="b2", role="producer", tenant=None, name="a1", **fields).owner == old.owner


def test_doctor_warns_two_weeks_before_and_about_tokens_without_an_end(
    context: ConsoleContext,
) -> None:
    assert list(check_tokens(context.ledger)) == []
    context.tokens.create(role="ops", name="fine", lifetime=30 * DAY)
    (fine,) = check_tokens(context.ledger)
    assert (fine.status, fine.said) == ("ok", "1 token, each with an expiry")
    soon, _ = context.tokens.create(role="ops", name="soon", texts=True, lifetime=13 * DAY)
    gone, _ = context.tokens.create(role="producer", name="gone", lifetime=-3 * DAY)
    never, text = context.tokens.create(role="admin", lifetime=None)
    found = [check for check in check_tokens(context.ledger) if check.status == "warn"]
    assert [check.said for check in found] == [
        f"{soon.id} 'soon' expires in 13 d",
        f"{gone.id} 'gone' expired 3 d ago",
        f"1 token that never expires: {never.id}",
    ]
    assert "mulligan token create --role ops --name soon --texts" in found[0].fix
    assert f"mulligan token revoke {soon.id}" in found[0].fix
    # It works as before.
    assert client_of(context, text).get("/api/jobs").status_code == 200
