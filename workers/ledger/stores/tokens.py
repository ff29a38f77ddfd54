"""API tokens and browser sessions, kept in the ledger's Redis. At rest there are only hashes."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal, get_args

from mulligan.tasks.ports.errors import BadInput, LedgerUnavailable
from mulligan.workers.ledger import keys
from mulligan.workers.ledger.calls import RedisCalls

Role = Literal["producer", "ops", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)
_MARK = "mul"
#: How long a process may go on with what it knew: so late is a revocation noticed.
_FRESH = 2.0
#: How long nobody waits again for a ledger that has just been waited for in vain.
_AWAY = 1.0
_SESSION_SECONDS = 12 * 3600


@dataclass(frozen=True, kw_only=True)
class Token:
    """What is known of a token; its secret is not."""

    id: str
    sha256: str
    role: Role
    #: Whose jobs it is for; None is everybody's.
    tenant: str | None
    name: str
    #: Whether it may read prompts and answers.
    texts: bool
    created_at: float
    expires_at: float | None

    def expired(self, now: float) -> bool:
        return self.expires_at is not None and now >= self.expires_at


Reading = Future[dict[str, Token]]


class Tokens:
    """The store. Reads are at most two seconds old."""

    def __init__(
        self, calls: RedisCalls, *, prefix: str, now: Callable[[], float] = time.time
    ) -> None:
        self._calls = calls
        self._fleet = keys.fleet_prefix(prefix)
        self._now = now
        self._seen: dict[str, Token] = {}
        self._seen_at = float("-inf")
        #: Why the last reading failed, and when; None: it did not.
        self._away: str | None = None
        self._away_at = float("-inf")
        #: Under way now, for all who ask.
        self._reading: Reading | None = None
        self._lock = threading.Lock()

    def create(
        self,
        *,
        role: Role,
        name: str = "",
        tenant: str | None = None,
        texts: bool = False,
        lifetime: float | None = None,
    ) -> tuple[Token, str]:
        """A new token and its text, which is told this once."""
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
        self._forget()
        return token, f"{_MARK}_{token.id}_{secret}"

    def all(self) -> list[Token]:
        """Every token, oldest first; expired ones too, until they are revoked."""
        return sorted(self._read().values(), key=lambda token: token.created_at)

    def revoke(self, token_id: str) -> bool:
        """Forget a token; whether there was one."""
        gone = self._calls.run("HDEL", keys.tokens(self._fleet), token_id)
        self._forget()
        return bool(gone)

    def any(self) -> bool:
        return bool(self._known())

    def find(self, text: str) -> Token | None:
        """The token with this text, if it is good now."""
        mark, _, rest = text.partition("_")
        token_id, _, secret = rest.partition("_")
        token = self._known().get(token_id) if mark == _MARK else None
        # Compared even if there is none: how long it takes must not tell which ids exist.
        good = hmac.compare_digest(token.sha256 if token else _hash(""), _hash(secret))
        return token if token and good and not token.expired(self._now()) else None

    # -- sessions -------------------------------------------------------------------------------

    def open_session(self, token: Token) -> str:
        """A session for a browser: it ends by itself, or with its token."""
        secret = secrets.token_urlsafe(32)
        self._calls.run("SET", self._session(secret), token.id, "EX", _SESSION_SECONDS)
        return secret

    def session(self, secret: str) -> Token | None:
        """The token that opened this session, if both are good now."""
        known = self._known() if secret else {}  # first, because it fails fast
        token_id = self._calls.run("GET", self._session(secret)) if known else None
        token = known.get(str(token_id)) if token_id else None
        return token if token and not token.expired(self._now()) else None

    def close_session(self, secret: str) -> None:
        self._calls.run("DEL", self._session(secret))

    def _session(self, secret: str) -> str:
        return keys.browser_session(self._fleet, _hash(secret))

    # -- plumbing -------------------------------------------------------------------------------

    def _known(self) -> dict[str, Token]:
        """Every token, by its id. One thread reads for all that ask meanwhile, without the lock."""
        with self._lock:
            now = time.monotonic()
            if now - self._seen_at <= _FRESH:
                return self._seen
            if self._away is not None and now - self._away_at <= _AWAY:
                raise LedgerUnavailable(self._away)
            reading, first = self._reading or Future(), self._reading is None
            self._reading = reading
        if first:
            self._read_for_all(reading)
        return reading.result()

    def _read_for_all(self, reading: Reading) -> None:
        try:
            seen = self._read()
        except BaseException as error:
            self._end_reading(reading, away=error)
            reading.set_exception(error)
        else:
            self._end_reading(reading, seen=seen)
            reading.set_result(seen)

    def _end_reading(
        self,
        reading: Reading,
        *,
        seen: dict[str, Token] | None = None,
        away: BaseException | None = None,
    ) -> None:
        with self._lock:
            if self._reading is not reading:
                return  # something was changed since it began: it may be older than that
            self._reading = None
            self._away = str(away) if isinstance(away, LedgerUnavailable) else None
            self._away_at = time.monotonic()
            if seen is not None:
                self._seen, self._seen_at = seen, self._away_at

    def _forget(self) -> None:
        with self._lock:
            self._seen_at = float("-inf")
            self._reading = self._away = None

    def _read(self) -> dict[str, Token]:
        rows = self._calls.hashes([keys.tokens(self._fleet)])[0]
        return {token_id: _token(token_id, json.loads(text)) for token_id, text in rows.items()}


def _hash(secret: str) -> str:
    # The secret is 32 random bytes, not a password: nothing slower is needed.
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()


def _write(token: Token) -> str:
    fields = {name: value for name, value in vars(token).items() if name != "id"}
    return json.dumps(fields, separators=(",", ":"))


def _token(token_id: str, fields: dict[str, Any]) -> Token:
    return Token(id=token_id, **fields)
