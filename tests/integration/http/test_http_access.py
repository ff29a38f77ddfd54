"""Access to the console: tokens, roles, sessions, other sites, caps. On a real Redis."""

from __future__ import annotations

import json
import logging
import re
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import redis
from fastapi.routing import iter_route_contexts
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.testclient import TestClient
from support.console_server import client_of, error_of, new_token
from support.jobs import GOOD, scripted
from support.ledger_scenario import SettingsMaker
from support.waiting import wait_for

from mulligan.console.app import create_console
from mulligan.console.http.access import COOKIE, authenticate, csrf_token, still_authenticated
from mulligan.console.http.context import ConsoleContext, open_context
from mulligan.console.http.login_redirect import local_path, login_url
from mulligan.console.http.middleware import CSP
from mulligan.console.server import listen
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.ledger.stores import tokens as token_store


@pytest.fixture
def context(settings: SettingsMaker) -> ConsoleContext:
    return open_context(settings(allow_inline=True))


# -- tokens ----------------------------------------------------------------------------------------


def test_only_the_hash_of_a_token_is_stored(
    context: ConsoleContext, redis_client: redis.Redis
) -> None:
    token, text = context.tokens.create(role="ops", name="night shift", lifetime=60)
    secret = text.rpartition(f"{token.id}_")[2]
    stored: Any = redis_client.hgetall("mulligan:{fleet}:tokens")
    assert secret not in str(stored)
    fields = json.loads(stored[token.id])
    assert fields["role"] == "ops"
    assert fields["expires_at"] == pytest.approx(fields["created_at"] + 60)


def test_only_a_valid_token_is_accepted(context: ConsoleContext) -> None:
    text = new_token(context, role="ops")
    assert client_of(context, text).get("/api/pauses").status_code == 200
    for wrong in (text[:-1], text + "x", "mul_0_", "nonsense", ""):
        response = client_of(context).get(
            "/api/pauses", headers={"Authorization": f"Bearer {wrong}"}
        )
        assert error_of(response) == (401, "unauthorized")
        assert response.headers["www-authenticate"].startswith("Bearer")
    context.tokens.revoke(text.split("_")[1])
    new_token(context, role="admin")
    assert client_of(context, text).get("/api/pauses").status_code == 401
    assert (
        client_of(context, new_token(context, role="ops", lifetime=0))
        .get("/api/pauses")
        .status_code
        == 401
    )


def test_another_process_notices_a_revocation(
    context: ConsoleContext, settings: SettingsMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_store, "_FRESH", 0.05)
    other_process = open_context(settings())
    text = new_token(other_process, role="admin")
    client = client_of(context, text)
    wait_for(lambda: client.get("/api/pauses").status_code == 200, "the token to be known")
    other_process.tokens.revoke(text.split("_")[1])
    new_token(other_process, role="admin")
    wait_for(lambda: client.get("/api/pauses").status_code == 401, "the revocation to be noticed")


def test_revoking_the_last_token_ends_its_session_under_another_host_name(
    context: ConsoleContext,
) -> None:
    token, _ = context.tokens.create(role="ops")
    cookie = f"{COOKIE}={context.tokens.open_session(token)}".encode()
    headers = [(b"host", b"ops.example"), (b"cookie", cookie)]
    app = client_of(context).app
    request = Request(
        {"type": "http", "app": app, "method": "GET", "headers": headers, "client": ("::1", 1)}
    )
    caller = authenticate(request)
    assert still_authenticated(request, caller)
    context.tokens.revoke(token.id)
    assert not still_authenticated(request, caller)


@pytest.mark.parametrize(
    ("role", "method", "path", "status"),
    [
        ("producer", "GET", "/api/jobs", 200),
        ("producer", "GET", "/api/queues", 403),
        ("producer", "PUT", "/api/pauses/queue:attempt", 403),
        ("ops", "GET", "/api/jobs", 200),
        ("ops", "GET", "/api/queues", 200),
        ("ops", "PUT", "/api/pauses/queue:attempt", 200),
        ("ops", "POST", "/api/jobs", 403),
        ("admin", "POST", "/api/jobs", 202),
        ("admin", "GET", "/api/queues", 200),
    ],
)
def test_a_role_allows_its_requests_only(
    context: ConsoleContext, role: Any, method: str, path: str, status: int
) -> None:
    client = client_of(context, new_token(context, role=role))
    body = scripted(GOOD) if method == "POST" else None
    assert client.request(method, path, json=body).status_code == status


#: Routes about providers and the outbox, and a body that each accepts.
OPS_ROUTES: list[tuple[str, str, dict[str, Any] | None]] = [
    ("GET", "/api/providers", None),
    ("PUT", "/api/pauses/provider:openai-eu", None),
    ("DELETE", "/api/pauses/provider:openai-eu", None),
    ("GET", "/api/outbox", None),
    ("POST", "/api/outbox/retry", {}),
    ("POST", "/api/outbox/drop", {}),
    ("GET", "/metrics", None),
]


@pytest.mark.parametrize(("method", "path", "body"), OPS_ROUTES)
def test_providers_and_the_outbox_belong_to_ops(
    context: ConsoleContext, method: str, path: str, body: dict[str, Any] | None
) -> None:
    for role, status in (("producer", 403), ("ops", 200), ("admin", 200)):
        client = client_of(context, new_token(context, role=role))
        assert client.request(method, path, json=body).status_code == status, role


@pytest.mark.parametrize("field", ["by", "tenant", "verb"])
def test_a_body_cannot_act_for_somebody_else(context: ConsoleContext, field: str) -> None:
    """Who drops an entry, and whose it is, come from the token."""
    client = client_of(context, new_token(context, role="ops", tenant="acme"))
    for path in ("/api/outbox/retry", "/api/outbox/drop"):
        assert client.post(path, json={field: "zeta"}).status_code == 422


@pytest.mark.parametrize("body", [{"concurrency": 99}, {"profile": "good", "concurrency": 99}])
def test_a_job_cannot_raise_a_provider_s_limit(
    settings: SettingsMaker, body: dict[str, Any]
) -> None:
    runners = {"good": {"kind": "scripted", "answers": [GOOD]}}
    context = open_context(settings(runners=runners))
    client = client_of(context, new_token(context, role="producer"))
    refused = client.post("/api/jobs", json=scripted(GOOD, runner=body))
    assert refused.status_code == 422


# -- without a token -------------------------------------------------------------------------------

#: /queues and /providers redirect to a page that needs a token.
PUBLIC = {"/openapi.json", "/healthz", "/livez", "/readyz", "/login", "/static/{name}", "/queues",
          "/providers"}  # fmt: skip


def test_every_route_needs_a_token_except_the_public_ones(context: ConsoleContext) -> None:
    new_token(context, role="ops")
    client = client_of(context)
    answered = {
        path
        for route in iter_route_contexts(create_console(context).routes)
        if (path := route.path_format)
        for method in route.methods or ()
        if client.request(method, path).status_code != 401
    }
    assert answered == PUBLIC, "give the route a role of console/http/access.py"


def test_loopback_needs_no_token_until_one_exists(context: ConsoleContext) -> None:
    client = client_of(context)
    assert client.get("/api/pauses").status_code == 200
    for name in ("X-Forwarded-For", "X-Forwarded-Proto", "Forwarded", "Via", "X-Real-IP"):
        assert client.get("/api/pauses", headers={name: "1.1 proxy"}).status_code == 401, name
    rebound = client.get("/api/pauses", headers={"Host": "evil.example:8700"})
    assert error_of(rebound) == (403, "wrong_host")
    context.tokens.create(role="producer", lifetime=0)
    assert client.get("/api/pauses").status_code == 401, "an expired token counts"


def test_remote_callers_and_public_consoles_need_a_token(
    context: ConsoleContext, settings: SettingsMaker
) -> None:
    app = client_of(context).app
    remote = TestClient(app, base_url="http://localhost", client=("192.0.2.1", 1))
    assert remote.get("/api/pauses").status_code == 401
    public = open_context(settings(console_host="0.0.0.0"))  # noqa: S104
    assert client_of(public).get("/api/pauses").status_code == 401


def test_probes_need_no_token(context: ConsoleContext, redis_client: redis.Redis) -> None:
    new_token(context, role="admin")
    client = client_of(context)
    assert client.get("/healthz").json() == {"ok": True}
    unswept = client.get("/readyz")
    assert (unswept.status_code, unswept.json()) == (
        503,
        {"ok": False, "why": "sweep", "detail": "the sweep has never run"},
    )
    context.ledger.sweep(empty_queues=[])
    assert client.get("/readyz").json() == {"ok": True, "why": None, "detail": None}
    redis_client.set("mulligan:{p00}:swept_at", "1000")
    assert client.get("/readyz").json()["why"] == "sweep"


# -- sessions --------------------------------------------------------------------------------------


@pytest.fixture
def browser(context: ConsoleContext) -> TestClient:
    """A client that has signed in."""
    text = new_token(context, role="admin", name="alice")
    client = client_of(context)
    response = client.post("/login", data={"token": text, "next": "/jobs"})
    assert (response.status_code, response.headers["location"]) == (303, "/jobs")
    cookie = response.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert text not in cookie
    return client


def _csrf(client: TestClient) -> str:
    cookies = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
    headers = [(b"cookie", cookies.encode())] if cookies else []
    return csrf_token(Request({"type": "http", "headers": headers}))


def test_a_session_needs_its_csrf_token_to_change_something(browser: TestClient) -> None:
    assert browser.get("/api/pauses").status_code == 200
    change = "/api/pauses/queue:attempt"
    assert error_of(browser.put(change)) == (403, "csrf")
    assert error_of(browser.put(change, headers={"X-CSRF-Token": "0" * 64})) == (403, "csrf")
    assert browser.put(change, headers={"X-CSRF-Token": _csrf(browser)}).status_code == 200


def test_signing_out_ends_the_session(browser: TestClient) -> None:
    cookie = browser.cookies[COOKIE]
    assert browser.post("/logout", headers={"X-CSRF-Token": _csrf(browser)}).status_code == 303
    stolen = browser.get("/api/pauses", headers={"Cookie": f"{COOKIE}={cookie}"})
    assert stolen.status_code == 401


def test_a_session_ends_with_its_token(browser: TestClient, context: ConsoleContext) -> None:
    new_token(context, role="ops")
    context.tokens.revoke(context.tokens.all()[0].id)
    assert browser.get("/api/pauses").status_code == 401


@pytest.mark.parametrize(
    ("path", "login"),
    [
        ("/", "/login"),
        ("/jobs", "/login?next=%2Fjobs"),
        ("/jobs?state=x&label=a%3Ab", "/login?next=%2Fjobs%3Fstate%3Dx%26label%3Da%253Ab"),
        ("/failures/v1:0f", "/login?next=%2Ffailures%2Fv1%3A0f"),
    ],
)  # fmt: skip
def test_signing_in_redirects_to_the_requested_page(
    context: ConsoleContext, path: str, login: str
) -> None:
    text = new_token(context, role="ops")
    response = client_of(context).get(path, headers={"Accept": "text/html"})
    assert (response.status_code, response.headers["location"]) == (303, login)
    target = parse_qs(urlsplit(login).query).get("next", ["/"])[0]
    signed_in = client_of(context).post("/login", data={"token": text, "next": target})
    assert signed_in.headers["location"] == path


@pytest.mark.parametrize(
    "path",
    ["//evil.example", "/\\evil.example", "https://evil.example", "evil", "/a\r\nb", "/é", ""],
)
def test_signing_in_never_redirects_to_another_site(path: str) -> None:
    assert local_path(path) == "/"


def test_a_path_that_looks_like_another_site_is_not_redirected_to() -> None:
    scope = {"type": "http", "method": "GET", "path": "//evil.example/x", "query_string": b"",
             "headers": [(b"host", b"localhost")], "scheme": "http"}  # fmt: skip
    assert login_url(Request(scope)) == "/login"
    assert login_url(Request({**scope, "path": f"/{'x' * 3000}"})) == "/login"


def test_a_wrong_token_opens_no_session(context: ConsoleContext) -> None:
    new_token(context, role="ops")
    for body in ("token=mul_x_y", "", "\xff", '{"token": 1}'):
        response = client_of(context).post("/login", content=body)
        assert error_of(response) == (403, "unknown_token")
        assert "set-cookie" not in response.headers


@pytest.mark.parametrize(
    ("console_url", "secure"), [(None, False), ("http://ops", False), ("https://ops.example", True)]
)
def test_the_session_cookie_is_secure_when_the_console_url_is_https(
    settings: SettingsMaker, console_url: str | None, secure: bool
) -> None:
    context = open_context(settings(console_url=console_url))
    body = {"token": new_token(context, role="ops")}
    opened = client_of(context).post("/login", data=body)
    assert opened.status_code == 303
    assert ("secure" in opened.headers["set-cookie"].lower()) is secure


def test_a_page_works_behind_a_proxy_that_changes_the_host(settings: SettingsMaker) -> None:
    context = open_context(settings(console_url="https://ops.example"))
    client = client_of(context)
    proxied = {"Sec-Fetch-Site": "same-origin", "Origin": "https://ops.example"}
    body = {"token": new_token(context, role="ops")}
    opened = client.post("/login", data=body, headers=proxied)
    assert opened.status_code == 303
    session = opened.cookies[COOKIE]
    with_session = {**proxied, "Cookie": f"{COOKIE}={session}"}
    page = client.get("/operations", headers=with_session).text
    found = re.search(r'name="csrf-token" content="(\w+)"', page)
    assert found
    change = client.put(
        "/api/pauses/queue:attempt", headers={**with_session, "X-CSRF-Token": found[1]}
    )
    assert change.status_code == 200, change.text


def test_a_browser_on_loopback_needs_a_csrf_token(context: ConsoleContext) -> None:
    client = client_of(context)
    ours = {"Sec-Fetch-Site": "same-origin", "Origin": "http://localhost"}
    change = "/api/pauses/queue:attempt"
    assert client.put(change).status_code == 200, "curl"
    assert error_of(client.put(change, headers=ours)) == (403, "csrf")
    good = {**ours, "X-CSRF-Token": _csrf(client)}
    assert client.put(change, headers=good).status_code == 200
    foreign = {**good, "Origin": "http://evil.example"}
    assert error_of(client.put(change, headers=foreign)) == (403, "cross_site")


# -- caps ------------------------------------------------------------------------------------------


def test_a_body_over_the_cap_is_refused(settings: SettingsMaker) -> None:
    context = open_context(settings(request_cap=1000))
    client = client_of(context)
    assert error_of(client.post("/api/jobs", content=b"x" * 1001)) == (413, "too_large")

    def chunks() -> Iterator[bytes]:
        for _ in range(1000):
            yield b" " * 100

    assert error_of(client.post("/api/jobs", content=chunks())) == (413, "too_large")


def test_requests_are_limited_per_token_and_guesses_per_address(settings: SettingsMaker) -> None:
    context = open_context(settings(rate_limit=3))
    text, other = new_token(context, role="ops"), new_token(context, role="ops")
    client = client_of(context, text)
    assert [client.get("/api/pauses").status_code for _ in range(3)] == [200] * 3
    refused = client.get("/api/pauses")
    assert error_of(refused) == (429, "rate_limited")
    assert int(refused.headers["retry-after"]) >= 1
    assert client_of(context, other).get("/api/pauses").status_code == 200, "the limit is per token"
    guesses = [client_of(context, f"mul_{n}_x").get("/api/pauses").status_code for n in range(4)]
    assert guesses == [401, 401, 401, 429], "guesses count for the address"


def test_connections_disable_nagle_s_algorithm() -> None:
    with (
        listen("127.0.0.1", 0) as server,
        socket.create_connection(server.getsockname()),
        server.accept()[0] as connection,
    ):
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_port_in_use_is_bad_input() -> None:
    with listen("127.0.0.1", 0) as server:
        host, port = server.getsockname()
        with pytest.raises(BadInput, match=f"on {host}:{port}: address already in use; set MULL"):
            listen(host, port)


# -- every response --------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/healthz", "/api/jobs", "/nope", "/openapi.json"])
def test_every_response_has_security_headers(context: ConsoleContext, path: str) -> None:
    headers = client_of(context).get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["cache-control"] == "no-store"


def test_a_page_has_a_strict_content_security_policy(context: ConsoleContext) -> None:
    client = client_of(context)
    app: Any = client.app
    app.add_api_route("/a-page", lambda: HTMLResponse("<p>"), include_in_schema=False)
    assert client.get("/a-page").headers["content-security-policy"] == CSP
    assert "unsafe" not in CSP


def test_an_internal_error_shows_only_its_id(
    context: ConsoleContext, caplog: pytest.LogCaptureFixture
) -> None:
    client = client_of(context, raise_server_exceptions=False)
    app: Any = client.app

    def broken() -> None:
        raise ZeroDivisionError("the secret is xyzzy")

    app.add_api_route("/broken", broken, include_in_schema=False)
    with caplog.at_level(logging.ERROR):
        response = client.get("/broken")
    assert error_of(response) == (500, "internal")
    assert "xyzzy" not in response.text
    found = re.search(r"error ([0-9a-f]{12})", response.json()["error"]["message"])
    assert found
    assert found[1] in caplog.text
    assert "ZeroDivisionError" in caplog.text
