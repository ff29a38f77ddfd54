"""Which exceptions of a user's task are faults of the transport, and what they ask for."""

from __future__ import annotations

import errno
import http.client
import io
import json
import socket
import ssl
import subprocess
import urllib.error
from collections.abc import Callable
from email.message import Message
from types import SimpleNamespace
from typing import Any

import httpx2 as httpx
import kombu.exceptions
import openai
import pytest
import redis
import requests
import urllib3.exceptions

from mulligan.tasks.ports.errors import TransportFault
from mulligan.workers.user_tasks.transport_errors import transport_fault

ASKED = httpx.Request("POST", "http://model/v1")


def response(status: int, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.Response(status, headers=named, request=ASKED)


def of_httpx(status: int, **headers: str) -> Exception:
    return httpx.HTTPStatusError("no", request=ASKED, response=response(status, **headers))


def of_openai(kind: Callable[..., Exception], status: int, **headers: str) -> Exception:
    return kind("no", response=response(status, **headers), body=None)


def of_requests(status: int, **headers: str) -> Exception:
    answered = requests.Response()
    answered.status_code = status
    answered.headers.update({name.replace("_", "-"): value for name, value in headers.items()})
    return requests.HTTPError("no", response=answered)


def of_urllib(status: int, **headers: str) -> Exception:
    fields = Message()
    for name, value in headers.items():
        fields[name.replace("_", "-")] = value
    return urllib.error.HTTPError("http://model", status, "no", fields, io.BytesIO())


def of_class(package: str, *names: str, **fields: Any) -> Exception:
    """Return an exception of a package that is not installed here; the last name is its class."""
    kind: Any = Exception
    for name in names:
        kind = type(name, (kind,), {"__module__": package})
    error: Exception = kind("no")
    vars(error).update(fields)
    return error


def raised_from(cause: Exception) -> Exception:
    error = ValueError("no answer")
    error.__cause__ = cause
    return error


THROTTLED = {
    "ResponseMetadata": {"HTTPStatusCode": 429, "HTTPHeaders": {"retry-after": "4"}},
}


@pytest.mark.parametrize(
    ("error", "status", "retry_after"),
    [
        (ConnectionRefusedError(111, "refused"), None, None),
        (TimeoutError("timed out"), None, None),
        (socket.gaierror(-2, "unknown name"), None, None),
        (OSError(errno.EHOSTUNREACH, "no route"), None, None),
        (ssl.SSLEOFError("closed"), None, None),
        (http.client.RemoteDisconnected("closed"), None, None),
        (http.client.IncompleteRead(b""), None, None),
        (httpx.ConnectError("refused"), None, None),
        (httpx.ReadTimeout("slow"), None, None),
        (httpx.RemoteProtocolError("closed"), None, None),
        (of_httpx(503), 503, None),
        (of_httpx(429, retry_after="12"), 429, 12.0),
        (requests.ConnectionError("refused"), None, None),
        (requests.ReadTimeout("slow"), None, None),
        (of_requests(429, Retry_After="7"), 429, 7.0),
        (of_requests(500), 500, None),
        (openai.APIConnectionError(request=ASKED), None, None),
        (openai.APITimeoutError(request=ASKED), None, None),
        (of_openai(openai.RateLimitError, 429, retry_after_ms="1500"), 429, 1.5),
        (of_openai(openai.InternalServerError, 500), 500, None),
        (urllib.error.URLError(ConnectionRefusedError(111, "refused")), None, None),
        (of_urllib(503, Retry_After="3"), 503, 3.0),
        (urllib3.exceptions.MaxRetryError(
            None, "/", urllib3.exceptions.ConnectTimeoutError()), None, None),  # type: ignore[arg-type]
        (redis.ConnectionError("away"), None, None),
        (redis.TimeoutError("slow"), None, None),
        (kombu.exceptions.OperationalError("away"), None, None),
        (of_class("aiohttp.client_exceptions", "ClientConnectionError", "Refused"), None, None),
        (of_class("aiohttp", "ClientResponseError", status=429, headers={"Retry-After": "2"}),
         429, 2.0),
        (of_class("botocore.exceptions", "ClientError", response=THROTTLED), 429, 4.0),
        (of_class("google.api_core.exceptions", "ServiceUnavailable", code=503), 503, None),
        (of_class("grpc", "RpcError", code=lambda: SimpleNamespace(name="UNAVAILABLE")),
         None, None),
        (raised_from(httpx.ConnectError("refused")), None, None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)  # fmt: skip
def test_an_error_of_the_transport_is_found(
    error: Exception, status: int | None, retry_after: float | None
) -> None:
    fault = transport_fault(error)
    assert fault is not None
    assert (fault.status, fault.retry_after) == (status, retry_after)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("connection refused, 429 Too Many Requests, timed out"),
        KeyError("retry-after"),
        FileNotFoundError(2, "no such file"),
        BrokenPipeError(32, "broken pipe"),
        subprocess.TimeoutExpired("sleep", 3),
        ssl.SSLCertVerificationError("expired"),
        httpx.UnsupportedProtocol("ftp"),
        of_httpx(404),
        of_requests(401),
        of_openai(openai.BadRequestError, 400),
        of_urllib(403),
        urllib.error.URLError("no host given"),
        redis.AuthenticationError("wrong password"),
        redis.ResponseError("unknown command"),
        of_class("mine", "Refused", code=503),
        of_class("grpc", "RpcError", code=lambda: SimpleNamespace(name="INVALID_ARGUMENT")),
        raised_from(KeyError("age")),
        json.JSONDecodeError("Expecting value", "", 0),
    ],
    ids=lambda error: type(error).__name__,
)
def test_any_other_error_is_the_task_s_own(error: Exception) -> None:
    assert transport_fault(error) is None


def test_the_longer_wait_counts() -> None:
    def wait(error: Exception, asked: float) -> float | None:
        fault = transport_fault(error, wait=asked)
        assert fault is not None
        return fault.retry_after

    assert wait(TimeoutError(), 30) == 30
    assert wait(of_httpx(429, retry_after="40"), 30) == 40
    assert wait(of_httpx(429, retry_after="4"), 30) == 30


def test_an_error_whose_attributes_raise_is_read() -> None:
    class Broken(ConnectionError):
        @property
        def response(self) -> Any:
            raise RuntimeError("no response")

    assert transport_fault(Broken()) is not None
    assert httpx.ConnectError("its property request raises")
    mine = TransportFault("away", provider="mine")
    assert transport_fault(mine) is mine
