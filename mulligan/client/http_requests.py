"""Requests to a console: authentication, retries, and the errors in its answers."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx2
from pydantic import TypeAdapter, ValidationError

from mulligan.policies.problem import Problem
from mulligan.tasks.ports.errors import BadInput, LedgerUnavailable, MulliganError

TOKEN_VARIABLE = "MULLIGAN_TOKEN"  # noqa: S105 - the name of a variable
_TOKEN = re.compile(r"^[\x21-\x7e]{1,1000}$")
_TIMEOUT = httpx2.Timeout(30.0, connect=5.0)
#: The console sends at least a keep-alive every 15 s.
_STREAM_TIMEOUT = httpx2.Timeout(45.0, connect=5.0)
#: Seconds between two tries: the first and the longest pause.
PAUSES = (0.1, 1.0)
#: Minimum seconds to keep retrying after a 429.
_SLOWED = 120.0
_CREATE_ONE = "Create one with `mulligan token create --role producer`."
_UNAVAILABLE = frozenset({502, 503, 504})


class HttpAnswer(NamedTuple):
    status: int
    body: Any


class ConsoleConnection:
    """Requests to one console, repeated while it is unavailable: each may safely be sent twice."""

    def __init__(
        self,
        url: str,
        token: str | None,
        *,
        patience: float,
        wait: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.url = url.rstrip("/")
        self.wait = wait
        self._clock = clock
        self._patience = patience
        self._has_token = token is not None
        host = _host_of(url)
        if token is not None and not _TOKEN.match(token):
            raise BadInput.at("token", "has characters that no token has")
        self._client = httpx2.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            # No proxy for loopback addresses: it could not reach them.
            mounts={f"all://{host}": None} if _is_loopback(host) else None,
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20),
            timeout=_TIMEOUT,
        )

    def ask(
        self,
        method: str,
        path: str,
        content: str | None = None,
        *,
        key: str | None = None,
        also: Sequence[int] = (),
    ) -> HttpAnswer:
        """Return the answer if it succeeded or its status is in ``also``; else raise its error.

        ``key``: the idempotency key of a change that cannot be made twice without it.
        """
        headers = {"Content-Type": "application/json"} if content is not None else {}
        if key is not None:
            headers["Idempotency-Key"] = key
        data = content.encode() if content is not None else None
        request = self._client.build_request(method, path, content=data, headers=headers)
        response = self._patiently(lambda: self._client.send(request), self.wait)
        return HttpAnswer(response.status_code, self._document(response, also))

    def listen(
        self, path: str, after: str | None, wait: Callable[[float], object]
    ) -> httpx2.Response:
        """Open a stream of events. ``wait`` is called between tries."""
        headers = {"Accept": "text/event-stream"}
        if after is not None:
            headers["Last-Event-ID"] = after
        request = self._client.build_request("GET", path, headers=headers, timeout=_STREAM_TIMEOUT)
        response = self._patiently(lambda: self._client.send(request, stream=True), wait)
        kind = response.headers.get("content-type", "")
        if response.is_success and kind.startswith("text/event-stream"):
            return response
        try:
            response.read()
            self._document(response, ())
        finally:
            response.close()
        raise self._not_a_console()

    def close(self) -> None:
        self._client.close()

    def _patiently(
        self, send: Callable[[], httpx2.Response], wait: Callable[[float], object]
    ) -> httpx2.Response:
        """Return the answer; retry while the console is unavailable or asks to slow down."""
        pause, began = PAUSES[0], None
        while True:
            if self._client.is_closed:
                raise RuntimeError("this client is closed")
            patience = self._patience
            try:
                response = send()
            except httpx2.TransportError as error:
                problem, seconds = self._unreachable(error), pause
            else:
                if response.status_code not in _UNAVAILABLE | {429}:
                    return response
                response.close()
                seconds = max(pause, _retry_after(response))
                if response.status_code == 429:
                    patience = max(patience, _SLOWED)
                problem = LedgerUnavailable(
                    f"the console at {self.url} answers {response.status_code}"
                    f" ({response.reason_phrase.lower()}); try again in {seconds:g} s"
                )
            began = self._clock() if began is None else began
            if self._clock() + seconds > began + patience:
                raise problem
            wait(seconds)
            pause = min(pause * 2, PAUSES[1])

    def _document(self, response: httpx2.Response, also: Sequence[int]) -> Any:
        """Return the JSON of an answer, or raise the error that it reports."""
        status = response.status_code
        if status == 204:
            return None
        try:
            body = response.json()
            error = body["error"] if not response.is_success else {}
            message = str(error.get("message", ""))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise self._not_a_console() from None
        if response.is_success or status in also:
            return body
        if status == 401:
            raise MulliganError(self._unknown())
        if status in (400, 404, 409, 413, 422):
            raise BadInput(*_problems(error))
        raise MulliganError(f"the console at {self.url} refuses ({status}): {message}")

    def _unknown(self) -> str:
        if not self._has_token:
            return (
                f"the console at {self.url} needs a token: give Client(token=…) or set"
                f" {TOKEN_VARIABLE}. {_CREATE_ONE}"
            )
        return (
            f"the console at {self.url} rejected this token: it is unknown, revoked or"
            f" expired. {_CREATE_ONE}"
        )

    def _unreachable(self, error: httpx2.TransportError) -> LedgerUnavailable:
        if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
            message = f"no console at {self.url}; is `mulligan up` running?"
        else:
            message = f"the connection to the console at {self.url} broke"
        return LedgerUnavailable(f"{message} ({str(error) or type(error).__name__})")

    def _not_a_console(self) -> MulliganError:
        return MulliganError(f"{self.url} does not answer as a mulligan console does")


def _problems(error: Mapping[str, Any]) -> list[Problem]:
    """Read the problems of an error. Fall back on its texts, as another version may write them."""
    try:
        found = TypeAdapter(list[Problem]).validate_python(error.get("problems"))
    except ValidationError:
        found = [Problem(str(line)) for line in error.get("details") or ()]
    return found or [Problem(str(error.get("message", "")))]


def _host_of(url: str) -> str:
    """Return the host in the form of URL patterns. Raise BadInput for an unusable URL."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        host = ""
    if not host:
        raise BadInput.at("url", "is not a console's URL: http://host:8700")
    if parts.username is not None or parts.query or parts.fragment:
        raise BadInput.at("url", f"only http://host:port/path; a token goes into {TOKEN_VARIABLE}")
    return f"[{host}]" if ":" in host else host


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "[::1]") or bool(re.match(r"^127(\.\d{1,3}){3}$", host))


def _retry_after(response: httpx2.Response) -> float:
    seconds = response.headers.get("retry-after", "")
    return float(seconds) if seconds.isdecimal() else 0.0
