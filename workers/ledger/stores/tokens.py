"""API tokens and browser sessions in the ledger's Redis, which holds only their hashes."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import shlex
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Literal, get_args
from urllib.parse import quote

from mulligan.tasks.ports.errors import BadInput, LedgerUnavailable
from mulligan.workers.ledger import keys
from mulligan.workers.ledger.connection.calls import RedisCalls

Role = Literal["producer", "ops", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)
_MARK = "mul"
#: Maximum age in seconds of a process's copy, and so the delay of a revocation.
_FRESH = 2.0
#: Seconds after a failed read in which callers fail at once instead of waiting for the ledger.
_FAIL_FAST = 1.0
_SESSION_SECONDS = 12 * 3600
#: How long a token is valid if nothing else is said.
LIFETIME = 90 * 86400.0


@dataclass(frozen=True, kw_only=True)
class Token:
    """A token without its secret."""

    id: str
    sha256: str
    role: Role
    #: The tenant whose jobs it may access; None: all tenants.
    tenant: str | None
    name: str
    #: Whether it may read prompts and answers.
    texts: bool
    created_at: float
    expires_at: float | None

    @property
    def owner(self) -> str | None:
        """Who owns what is submitted with it: a producer, by tenant and name; None for others.

        A later token of the same name and tenant belongs to the same producer.
        """
        if self.role != "producer":
            return None
        return f"{quote(self.tenant or '', safe='')}/{quote(self.name or self.id, safe='')}"

    def expired(self, now: float) -> bool:
        return self.expires_at is not None and now >= self.expires_at

    @property
    def renewal(self) -> str:
        """The command that creates its successor: for a producer, one that sees the same jobs."""
        words = ["mulligan", "token", "create", "--role", self.role, "--name", self.name or self.id]
        words += ["--tenant", self.tenant] if self.tenant is not None else []
        words += ["--texts"] if self.role == "ops" and self.texts else []
        return shlex.join(words)


Reading = Future[dict[str, Token]]


class Tokens:
    """The store. Reads are at most two seconds old."""

    def __init__(
        self, calls: RedisCalls, *, prefix: str, now: Callable[[], float] = time.time
    ) -> None:
        self._calls = calls
        self._fleet = keys.fleet_prefix(prefix)
        self._now = now
        self._cached: dict[str, Token] = {}
        self._cached_at = float("-inf")
        #: The error of the last read, None after a success; and when that read ended.
        self._failure: str | None = None
        self._failed_at = float("-inf")
        #: The current read, which all callers share.
        self._reading: Reading | None = None
        self._lock = threading.Lock()

    def create(
        self,
        *,
        role: Role,
        name: str = "",
        tenant: str | None = None,
        texts: bool = False,
        lifetime: float | None = LIFETIME,
    ) -> tuple[Token, str]:
        """Create a token and return it with its text, which cannot be read again.

        ``lifetime`` in seconds; None: it never expires.
        """
        if role not in ROLES:
            raise BadInput.at("role", f"{role!r} is none of {', '.join(ROLES)}")
        secret = secrets.token_urlsafe(32)
        now = self._now()
        token = Token(
            id=secrets.token_hex(5),
            sha256=_hash(secret),
            role=role,
            tenant=tenant,
            name=name,
            texts=texts or role != "ops",
            created_at=now,
            expires_at=None if lifetime is None else now + lifetime,
        )
        self._calls.run("HSET", keys.tokens(self._fleet), token.id, _write(token))
        self._invalidate()
        return token, f"{_MARK}_{token.id}_{secret}"

    def all(self) -> list[Token]:
        """Return every token, oldest first. Expired ones stay until they are revoked."""
        return sorted(self._read().values(), key=lambda token: token.created_at)

    def revoke(self, token_id: str) -> bool:
        """Delete a token. Return whether it existed."""
        deleted = self._calls.run("HDEL", keys.tokens(self._fleet), token_id)
        self._invalidate()
        return bool(deleted)

    def any(self) -> bool:
        return bool(self._known())

    def find(self, text: str) -> Token | None:
        """Return the token with this text, if it is valid now."""
        token = self._with_text(text)
        return token if token and not token.expired(self._now()) else None

    def find_expired(self, text: str) -> Token | None:
        """Return the token with this text, if it has expired."""
        token = self._with_text(text)
        return token if token and token.expired(self._now()) else None

    def _with_text(self, text: str) -> Token | None:
        mark, _, rest = text.partition("_")
        token_id, _, secret = rest.partition("_")
        token = self._known().get(token_id) if mark == _MARK else None
        # Compared even without a token, so that the response time does not reveal which ids exist.
        matches = hmac.compare_digest(token.sha256 if token else _hash(""), _hash(secret))
        return token if token and matches else None

    # -- sessions -------------------------------------------------------------------------------

    def open_session(self, token: Token) -> str:
        """Open a browser session of 12 hours and return its secret. It ends with its token."""
        secret = secrets.token_urlsafe(32)
        self._calls.run("SET", self._session(secret), token.id, "EX", _SESSION_SECONDS)
        return secret

    def session(self, secret: str) -> Token | None:
        """Return the token that opened this session, if both are valid now."""
        known = self._known() if secret else {}  # first, because it fails fast
        token_id = self._calls.run("GET", self._session(secret)) if known else None
        token = known.get(str(token_id)) if token_id else None
        return token if token and not token.expired(self._now()) else None

    def close_session(self, secret: str) -> None:
        self._calls.run("DEL", self._session(secret))

    def _session(self, secret: str) -> str:
        return keys.browser_session(self._fleet, _hash(secret))

    # -- the cache ------------------------------------------------------------------------------

    def _known(self) -> dict[str, Token]:
        """Return every token by its id. One thread reads for all callers, outside the lock."""
        with self._lock:
            now = time.monotonic()
            if now - self._cached_at <= _FRESH:
                return self._cached
            if self._failure is not None and now - self._failed_at <= _FAIL_FAST:
                raise LedgerUnavailable(self._failure)
            reading, first = self._reading or Future(), self._reading is None
            self._reading = reading
        if first:
            self._read_for_all(reading)
        return reading.result()

    def _read_for_all(self, reading: Reading) -> None:
        try:
            tokens = self._read()
        except BaseException as error:
            self._end_reading(reading, error=error)
            reading.set_exception(error)
        else:
            self._end_reading(reading, tokens=tokens)
            reading.set_result(tokens)

    def _end_reading(
        self,
        reading: Reading,
        *,
        tokens: dict[str, Token] | None = None,
        error: BaseException | None = None,
    ) -> None:
        with self._lock:
            if self._reading is not reading:
                return  # a token was changed since the read began: it may be outdated
            self._reading = None
            self._failure = str(error) if isinstance(error, LedgerUnavailable) else None
            self._failed_at = time.monotonic()
            if tokens is not None:
                self._cached, self._cached_at = tokens, self._failed_at

    def _invalidate(self) -> None:
        with self._lock:
            self._cached_at = float("-inf")
            self._reading = self._failure = None

    def _read(self) -> dict[str, Token]:
        rows = self._calls.hashes([keys.tokens(self._fleet)])[0]
        read = {token_id: _read(token_id, text) for token_id, text in rows.items()}
        return {token_id: token for token_id, token in read.items() if token is not None}


def _hash(secret: str) -> str:
    # The secret is 32 random bytes, not a password: a fast hash is enough.
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()


def _read(token_id: str, text: str) -> Token | None:
    """Read a token. Of another release's tokens, only those without further fields are valid: an
    unknown field may be a limit."""
    try:
        return Token(id=token_id, **json.loads(text))
    except (TypeError, ValueError):
        return None


def _write(token: Token) -> str:
    fields = {name: value for name, value in vars(token).items() if name != "id"}
    return json.dumps(fields, separators=(",", ":"))
