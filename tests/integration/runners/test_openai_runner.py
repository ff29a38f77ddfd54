"""The openai runner against a real HTTP server that follows or breaks the protocol."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from mulligan.policies.jobs.job import Decoding, Message, Usage
from mulligan.policies.jobs.provider_limits import Allowance, RateLimits
from mulligan.policies.value import Json
from mulligan.tasks.ports.cancellation import Cancellation, cancelled_by
from mulligan.tasks.ports.errors import CallCancelled, OutOfCredits, RunnerError, TransportFault
from mulligan.tasks.ports.runners import Request
from mulligan.workers.runners.openai import OpenAIRunner

# The server is a fake on loopback, but the runner cannot know that.
pytestmark = pytest.mark.real_models

KEY = "sk-test-4711-do-not-tell"
KEY_ENV = "MULLIGAN_TEST_KEY"
SCHEMA: dict[str, Json] = {"type": "object", "properties": {"age": {"type": "integer"}}}
Script = Callable[["Handler", dict[str, Any]], None]


class Provider(ThreadingHTTPServer):
    """A server that answers by the test's script and records the requests."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script: Script = lambda handler, body: handler.reply(completion("hi"))
        self.bodies: list[dict[str, Any]] = []
        self.authorizations: list[str | None] = []
        self.hung_up = threading.Event()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Provider

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.bodies.append(body)
        self.server.authorizations.append(self.headers["authorization"])
        self.server.script(self, body)

    def reply(self, body: Json, status: int = 200, **headers: str) -> None:
        self.raw(json.dumps(body).encode(), status, **headers)

    def raw(self, data: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


def completion(text: str | None, finish: str = "stop", **fields: Json) -> Json:
    message = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    choices = [{"index": 0, "message": message, "finish_reason": finish}]
    return {"model": "m-1", "choices": choices, "usage": usage} | fields


def refusal(message: str, **fields: Json) -> Json:
    return {"error": {"message": message, **fields}}


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_ENV, KEY)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-ambient-must-not-leak")
    # Loopback is reached directly, even with a proxy in the environment.
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)


def runner(provider: Provider, **options: Json) -> OpenAIRunner:
    base = {"base_url": provider.base_url, "model": "small", "api_key_env": KEY_ENV}
    return OpenAIRunner.from_options(base | options)


def request(**fields: Any) -> Request:
    return Request(messages=(Message(role="user", content="How old?"),), **fields)


def fault_of(provider: Provider, **fields: Any) -> TransportFault:
    with pytest.raises(TransportFault) as caught:
        runner(provider).answer(request(**fields))
    return caught.value


def error_of(provider: Provider) -> RunnerError:
    with pytest.raises(RunnerError) as caught:
        runner(provider).answer(request())
    return caught.value


def silent_until(over: threading.Event) -> Script:
    def script(handler: Handler, body: dict[str, Any]) -> None:
        over.wait(30)

    return script


def always(body: Json, status: int = 200, **headers: str) -> Script:
    return lambda handler, _: handler.reply(body, status, **headers)


def test_an_answer_has_its_text_and_usage(provider: Provider) -> None:
    provider.script = always(completion("31", finish="length"))
    output = runner(provider, temperature=0.2, seed=3, extra={"top_k": 5}).answer(request())
    assert (output.text, output.finish_reason, output.model) == ("31", "length", "m-1")
    assert output.usage == Usage(prompt_tokens=5, completion_tokens=2, total_tokens=7)
    assert output.elapsed_seconds > 0
    (body,) = provider.bodies
    assert body["messages"] == [{"role": "user", "content": "How old?"}]
    assert (body["model"], body["temperature"], body["seed"], body["top_k"]) == ("small", 0.2, 3, 5)
    assert provider.authorizations == [f"Bearer {KEY}"]


def test_an_empty_answer_without_usage_is_accepted(provider: Provider) -> None:
    provider.script = always(completion(None, usage=None))
    output = runner(provider).answer(request())
    assert output.text == ""
    assert output.usage == Usage()


def test_without_a_key_env_no_ambient_key_is_sent(provider: Provider) -> None:
    runner(provider, api_key_env=None).answer(request())
    assert provider.authorizations == ["Bearer none"]


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 529])
def test_a_temporary_error_is_a_transport_fault_after_one_request(
    provider: Provider, status: int
) -> None:
    provider.script = always(refusal("busy"), status, retry_after="7")
    fault = fault_of(provider)
    assert (fault.status, fault.retry_after) == (status, 7.0)
    assert fault.provider == runner(provider).provider
    assert len(provider.bodies) == 1


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry_after": "2"}, 2.0),
        ({"x_ratelimit_remaining_requests": "0", "x_ratelimit_reset_requests": "20ms"}, 0.02),
        ({"x_ratelimit_remaining_requests": "5", "x_ratelimit_reset_requests": "6m0s"}, None),
        ({"x_ratelimit_remaining_requests": "0", "x_ratelimit_reset_requests": "<script>"}, None),
    ],
)
def test_an_answer_also_says_how_long_its_provider_asks_to_wait(
    provider: Provider, headers: dict[str, str], seconds: float | None
) -> None:
    provider.script = always(completion("31"), 200, **headers)
    output = runner(provider).answer(request())
    assert (output.text, output.provider_wait) == ("31", seconds)
    assert "provider_wait" not in output.model_dump_json()  # nothing of it is stored with the job


def test_a_refusal_without_retry_after_waits_for_the_reset_of_its_allowance(
    provider: Provider,
) -> None:
    used_up = {"x_ratelimit_remaining_tokens": "0", "x_ratelimit_reset_tokens": "1m0s"}
    provider.script = always(refusal("too many tokens"), 429, **used_up)
    assert fault_of(provider).retry_after == 60.0


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (402, refusal("pay")),
        (402, "not even an error object"),
        (429, refusal("later", code="insufficient_quota", type="requests")),
        (429, refusal("later", type="insufficient_quota")),
        (403, refusal("no", code="billing_hard_limit_reached")),
        (403, refusal("no", type="credit_balance_too_low")),
    ],
)
def test_a_status_or_a_code_says_that_credits_are_used_up(
    provider: Provider, status: int, error: Json
) -> None:
    provider.script = always(error, status)
    fault = fault_of(provider)
    assert isinstance(fault, OutOfCredits)
    assert (fault.status, fault.provider) == (status, runner(provider).provider)
    assert f"answered {status}: out of credits or quota" in str(fault)
    assert len(provider.bodies) == 1


TEXT = "You exceeded your 5-hour limit: insufficient_quota, credit_balance_too_low"


@pytest.mark.parametrize(
    ("status", "later"), [(429, True), (500, True), (403, False), (400, False)]
)
def test_no_text_of_a_refusal_says_so(provider: Provider, status: int, later: bool) -> None:
    provider.script = always(refusal(TEXT, code="rate_limit_exceeded"), status)
    with pytest.raises(TransportFault if later else RunnerError) as caught:
        runner(provider).answer(request())
    assert not isinstance(caught.value, OutOfCredits)


def test_no_text_of_an_answer_says_so(provider: Provider) -> None:
    provider.script = always(completion(TEXT))
    assert runner(provider).answer(request()).text == TEXT


def test_an_answer_says_what_its_provider_still_allows(provider: Provider) -> None:
    headers = {
        "x_ratelimit_limit_tokens": "30000",
        "x_ratelimit_remaining_tokens": "1200",
        "x_ratelimit_reset_tokens": "57.6s",
    }
    provider.script = always(completion("31", usage=None), 200, **headers)
    output = runner(provider, max_tokens=50).answer(request())
    assert output.rate_limits == RateLimits(
        tokens=Allowance(remaining=1200, reset=57.6, limit=30000)
    )
    assert output.token_cap == 50 + len("How old?") // 4
    assert runner(provider).answer(request()).token_cap is None
    stored = output.model_dump_json()
    assert "rate_limits" not in stored
    assert "token_cap" not in stored


@pytest.mark.parametrize(
    ("status", "error", "kind", "cause", "part"),
    [
        (401, refusal(f"Incorrect key {KEY[:6]}"), "tool_error", "key_refused", KEY_ENV),
        (403, refusal("no"), "tool_error", "key_refused", KEY_ENV),
        (404, refusal("no model"), "tool_error", "not_found", "model 'small' not found"),
        (
            400,
            refusal("too long", code="context_length_exceeded"),
            "tool_error",
            "context_length",
            "the prompt is too long",
        ),
        (
            400,
            refusal("no", code="content_filter"),
            "unsafe_request",
            "content_filter",
            "content filter",
        ),
        (400, refusal(f"bad field, {KEY}"), "tool_error", "bad_request", "bad field, ***"),
        (413, "not even an error object", "tool_error", "bad_request", "413"),
    ],
)
def test_a_permanent_error_is_a_runner_error(
    provider: Provider, status: int, error: Json, kind: str, cause: str, part: str
) -> None:
    provider.script = always(error, status)
    found = error_of(provider)
    assert part in str(found)
    assert (found.evidence["kind"], found.evidence["class"]) == (kind, cause)
    assert KEY[:6] not in str(found) + repr(found.evidence)
    assert len(provider.bodies) == 1


@pytest.mark.parametrize(
    "choice",
    [
        {"message": {"content": "cut"}, "finish_reason": "content_filter"},
        {"message": {"content": None, "refusal": "I cannot help"}, "finish_reason": "stop"},
    ],
)
def test_a_refused_answer_is_an_unsafe_request(provider: Provider, choice: Json) -> None:
    provider.script = always(completion("", choices=[choice]))
    assert error_of(provider).evidence["kind"] == "unsafe_request"


@pytest.mark.parametrize(
    "data", [b"<html>gateway</html>", b"", b"{", b'{"choices": []}', b"[1]", b"\xff\xfe"]
)
def test_a_malformed_response_is_a_transport_fault(provider: Provider, data: bytes) -> None:
    provider.script = lambda handler, _: handler.raw(data)
    assert "not a chat completion" in str(fault_of(provider))
    assert len(provider.bodies) == 1


def test_a_missing_key_is_named(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_ENV)
    assert f"export {KEY_ENV}=" in str(error_of(provider))
    assert provider.bodies == []


def test_a_key_that_no_header_can_carry_is_not_quoted(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_ENV, f"{KEY}\nmore")
    found = error_of(provider)
    assert KEY_ENV in str(found)
    assert KEY not in str(found)


def test_an_unreachable_server_is_a_transport_fault() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    with pytest.raises(TransportFault, match="connection failed") as caught:
        OpenAIRunner.from_options({"base_url": url, "model": "m"}).answer(request())
    assert url in str(caught.value)
    assert not caught.value.maybe_served


def test_an_incomplete_response_is_a_transport_fault(provider: Provider) -> None:
    def script(handler: Handler, body: dict[str, Any]) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{")
        handler.close_connection = True

    provider.script = script
    fault = fault_of(provider)
    assert "connection failed: " in str(fault)
    assert fault.maybe_served  # the answer was begun, and paid for
    assert len(provider.bodies) == 1


def test_a_silent_server_times_out(provider: Provider) -> None:
    over = threading.Event()
    provider.script = silent_until(over)
    try:
        assert "no answer within 0.3 s" in str(fault_of(provider, timeout=0.3))
    finally:
        over.set()


@pytest.mark.parametrize("headers_first", [True, False])
def test_a_server_that_sends_single_bytes_times_out(
    provider: Provider, headers_first: bool
) -> None:
    """Each byte comes within the timeout of a read, but the response never ends."""

    def dribble(handler: Handler, body: dict[str, Any]) -> None:
        start = (
            b"HTTP/1.1 200 OK\r\ncontent-length: 99999\r\n\r\n" if headers_first else b"HTTP/1.1"
        )
        handler.wfile.write(start)
        try:
            while True:
                handler.wfile.write(b" ")
                provider.hung_up.wait(0.02)
        except OSError:
            provider.hung_up.set()

    provider.script = dribble
    assert "no answer within 0.5 s" in str(fault_of(provider, timeout=0.5))
    assert provider.hung_up.wait(30), "the connection is closed, not only abandoned"


def test_the_timeout_option_limits_the_whole_request(provider: Provider) -> None:
    over = threading.Event()
    provider.script = silent_until(over)
    try:
        with pytest.raises(TransportFault, match=r"no answer within 0\.2 s"):
            runner(provider, timeout=0.2).answer(request(timeout=60))
    finally:
        over.set()


def test_a_server_without_response_format_gets_a_second_request_without_it(
    provider: Provider,
) -> None:
    def script(handler: Handler, body: dict[str, Any]) -> None:
        if "response_format" in body:
            handler.reply(refusal("unknown field response_format"), 400)
        else:
            handler.reply(completion('{"age": 31}'))

    provider.script = script
    schema = {**SCHEMA, "required": ["age"], "additionalProperties": False}
    constrained = request(decoding=Decoding(constrained=True), json_schema=schema)
    asked = runner(provider)
    assert asked.constrains(constrained.decoding, schema)
    assert asked.answer(constrained).text == '{"age": 31}'
    first, second = provider.bodies
    assert first["response_format"]["json_schema"]["schema"] == schema
    assert "response_format" not in second
    # So the next corrected prompt has the schema.
    assert not asked.constrains(constrained.decoding, schema)


@pytest.mark.parametrize("status", [401, 429, 500])
def test_other_refusals_of_a_constrained_request_are_not_repeated(
    provider: Provider, status: int
) -> None:
    provider.script = always(refusal("no"), status)
    with pytest.raises((TransportFault, RunnerError)):
        runner(provider).answer(request(decoding=Decoding(constrained=True), json_schema=SCHEMA))
    assert len(provider.bodies) == 1


@pytest.mark.parametrize(("step", "model"), [(0, "small"), (1, "bigger"), (2, "huge"), (9, "huge")])
def test_fallbacks_are_used_in_order(provider: Provider, step: int, model: str) -> None:
    ladder: Json = ["bigger", {"model": "huge", "temperature": 0.1}]
    runner(provider, fallbacks=ladder).answer(request(decoding=Decoding(fallback=step)))
    assert provider.bodies[0]["model"] == model


def test_many_threads_share_one_client(provider: Provider) -> None:
    shared = runner(provider)
    with ThreadPoolExecutor(16) as pool:
        texts = list(pool.map(lambda _: shared.answer(request()).text, range(64)))
    assert texts == ["hi"] * 64


def test_nothing_logs_or_shows_the_key(
    provider: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    provider.script = always(refusal(f"bad key {KEY}"), 500)
    used = runner(provider)
    fault = fault_of(provider)
    shown = caplog.text + repr(used) + str(fault) + repr(fault)
    assert KEY not in shown


def test_a_forked_child_can_call_the_server_too(provider: Provider) -> None:
    """The child has the parent's loop, but not the thread that runs it."""
    runner(provider).answer(request())
    child = os.fork()
    if child == 0:
        try:
            os._exit(int(runner(provider).answer(request(timeout=5)).text != "hi"))
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_lost_lease_ends_the_request(provider: Provider) -> None:
    """Given a server that does not answer, when the attempt's lease is lost, then the connection is
    closed, so that the server can stop, and the call is cancelled."""
    cancellation = Cancellation()

    def hang(handler: Handler, _body: dict[str, Any]) -> None:
        cancellation.cancel()
        handler.connection.settimeout(30)
        if handler.connection.recv(1) == b"":
            provider.hung_up.set()

    provider.script = hang
    with cancelled_by(cancellation), pytest.raises(CallCancelled):
        runner(provider).answer(request(timeout=3600))
    assert provider.hung_up.wait(30)
