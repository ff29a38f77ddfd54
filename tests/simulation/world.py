"""One simulated deployment: Redis, broker, providers, processes, and the trace of what happened."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest import mock

import redis
from greenlet import getcurrent, greenlet

from mulligan.tasks.loops import rollback
from mulligan.tasks.ports.clock import Clock
from mulligan.tasks.ports.ledger import Entry
from mulligan.workers.ledger.connection.calls import SOCKET_TIMEOUT
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.ledger.stored.schema import StoredSchema
from mulligan.workers.settings.model import Settings
from simulation.broker import Broker
from simulation.checker import Checker
from simulation.faults import Fault, FaultPlan
from simulation.providers import Providers
from simulation.receivers import WEBHOOKS, Receivers
from simulation.repositories import Repositories
from simulation.scheduler import START, Crashed, Process, Scheduler
from simulation.simulated_redis import SimulatedClient, SimulatedServer, call_name

#: Times of simulated runs, in seconds.
TIMES: dict[str, Any] = {
    "lease": 10,
    "hard_limit": 120,
    "max_claims": 3,
    "outbox_grace": 2,
    "republish_after": 20,
    "stale_after": 3000,
    "backoff_base": 1.0,
    "backoff_cap": 20.0,
    "external_lease": 30,
    "publish_tries": 3,
    "webhooks": WEBHOOKS,
    "alert_window": 20,
}
#: How long a worker and a producer wait for an unreachable ledger, in seconds.
WORKER_PATIENCE = 60.0
PRODUCER_PATIENCE = 5.0
#: The present release and the one before it, which cannot read jobs with an `on_done`.
PRESENT = StoredSchema(number=3, release="2.0", added={"Job.on_done": 2})
EARLIER = StoredSchema(number=1, release="1.0")


@dataclass(frozen=True)
class Step:
    """One line of a trace."""

    time: float
    process: str
    what: str
    request: str = ""
    answer: str = ""

    @property
    def idle(self) -> bool:
        """Whether this is a sweep that found nothing or only looks, which a reader may skip."""
        looks = self.process.startswith("repository") and self.what in ("zrevrange", "hgetall")
        return looks or (self.what == "sweep" and self.answer in ("", "known []"))

    def __str__(self) -> str:
        arrow = f" → {self.answer}" if self.answer else ""
        what = f"{self.what} {_brief(self.request)}".rstrip()
        return f"{self.time:9.3f}  {self.process:<10} {what}{arrow}"


@dataclass(frozen=True)
class Restart:
    """A restart of Redis without what came after ``written``. It was back at ``back``."""

    written: float
    back: float


class World:
    """Everything that a run consists of. ``chance`` None: nothing is left to chance."""

    def __init__(
        self,
        *,
        chance: random.Random | None = None,
        faults: Sequence[Fault] = (),
        acks: bool = False,
        redis_version: int = 7,
        **settings: Any,
    ) -> None:
        self.random = chance is not None
        self.chance = chance or random.Random(0)
        self.scheduler = Scheduler()
        self.settings = Settings(**{**TIMES, **settings})
        self.plan = FaultPlan(list(faults))
        self.server = SimulatedServer(
            lambda: self.scheduler.now, random.Random(0), version=redis_version
        )
        self.broker = Broker(self, acks=acks)
        self.providers = Providers(self)
        self.receivers = Receivers(self)
        self.repositories = Repositories(self)
        self.checker = Checker(self)
        self.processes: list[Process] = []
        self.trace: list[Step] = []
        #: Entry → how often a process crashed or froze while it handled the entry, or learned too
        #: late that it had claimed it.
        self.losses: Counter[str] = Counter()
        #: What each slot of a process handles now.
        self._handling: dict[greenlet, tuple[Process, str]] = {}
        #: The restarts of Redis without its last second.
        self.restarts: list[Restart] = []
        self._tokens = 0
        #: Called when a process has crashed.
        self.on_crash: Callable[[Process], None] = lambda _process: None

    # -- processes ------------------------------------------------------------------------------

    def process(self, name: str) -> Process:
        found = Process(name)
        self.processes.append(found)
        return found

    def clock(self, process: Process) -> Clock:
        """Return the clock of a process; it does not stand still while the process is frozen."""

        def sleep(seconds: float) -> None:
            self.scheduler.sleep(process, seconds)

        def wait(event: Any, seconds: float) -> bool:
            sleep(seconds)
            return bool(event.is_set())

        def now() -> float:
            return self.scheduler.now

        def thread() -> int:
            return id(getcurrent())

        return Clock(now=now, monotonic=now, boottime=now, sleep=sleep, wait=wait, thread=thread)

    @contextmanager
    def handling(self, process: Process, entry: Entry) -> Iterator[None]:
        """Note what the current slot of a process does."""
        self._handling[getcurrent()] = process, str(entry)
        try:
            yield
        finally:
            del self._handling[getcurrent()]

    def handled(self) -> str:
        """Return the entry that the current slot handles."""
        return self._handling[getcurrent()][1]

    def ledger(
        self,
        process: Process,
        *,
        patience: float = WORKER_PATIENCE,
        timeout: float = SOCKET_TIMEOUT,
        schema: StoredSchema = PRESENT,
    ) -> RedisLedger:
        """Return the real ledger for a process: every command is one of its port calls."""
        client = SimulatedClient(
            lambda args, options: self._redis_call(process, args, options, timeout)
        )
        return RedisLedger(
            client,
            self.settings,
            patience=patience,
            keep=self.settings.hard_limit,
            test_clock=lambda: self.scheduler.now,
            clock=self.clock(process),
            new_token=self.new_token,
            schema=schema,
        )

    def outside_ledger(self) -> RedisLedger:
        """Return a ledger for the simulator itself: no faults, and no time passes."""
        return RedisLedger(
            self.server.client, self.settings, patience=0, test_clock=lambda: self.scheduler.now
        )

    def new_token(self) -> str:
        self._tokens += 1
        return f"{self._tokens:016x}"

    # -- port calls -----------------------------------------------------------------------------

    def latency(self) -> float:
        if not self.random:
            return 0.001
        slow = self.chance.random() < 0.03
        return self.chance.uniform(0.05, 1.5) if slow else self.chance.uniform(0.0005, 0.004)

    def before(self, process: Process, call: str, detail: str = "") -> list[Fault]:
        """Begin a port call. Returns the faults that happen at it."""
        self.scheduler.sleep(process, self.latency())
        if call not in NOTED:
            detail = ""
        found = self.plan.at(call, process.name)
        if detail:
            self.note(process, f"{call} {detail}")
        for fault in found:
            self.note(process, f"** {fault}")
            self._begin(fault)
        self._apply(process, found, "before")
        return found

    def after(self, process: Process, found: Sequence[Fault]) -> None:
        """End a port call: the answer travels back."""
        self._apply(process, found, "after")
        self.scheduler.sleep(process, self.latency())

    def _apply(self, process: Process, found: Sequence[Fault], when: str) -> None:
        for fault in found:
            if fault.kind == f"crash_{when}":
                self.crash(process)
                raise Crashed(process.name)
            if fault.kind == f"freeze_{when}":
                self.freeze(process, fault.seconds)
            if fault.kind == "slow" and when == "after":
                self.scheduler.sleep(process, fault.seconds)

    def crash(self, process: Process) -> None:
        self._lose(process)
        self.scheduler.crash(process)
        self.on_crash(process)

    def freeze(self, process: Process, seconds: float) -> None:
        self._lose(process)
        process.freezes += 1
        process.frozen_until = self.scheduler.now + seconds
        self.scheduler.sleep(process, 0.0)

    def _lose(self, process: Process) -> None:
        for slot in self._handling.values():
            if slot[0] is process:
                self.losses[slot[1]] += 1

    def _redis_call(
        self, process: Process, args: tuple[Any, ...], options: dict[str, Any], timeout: float
    ) -> Any:
        name = call_name(args)
        found = self.before(process, name)
        kinds = {fault.kind for fault in found}
        if "lose_request" in kinds:
            raise redis.ConnectionError("simulated: the connection was reset")
        args = self._with_time(args)
        request = _request(args)
        fenced = self.checker.token_before(name, request)
        try:
            answer = self.server.execute(args, options)
        except redis.RedisError as error:
            self.record(process, name, request, f"{type(error).__name__}: {error}"[:120])
            if self.server.is_unexpected(error):
                self.scheduler.errors.append(f"{process.name}: {name}: {error}")
            raise
        self.checker.script_answered(name, request, answer, fenced, process)
        self.record(process, name, request, _first(answer))
        if any(fault.kind == "slow" and fault.seconds > timeout for fault in found):
            self.scheduler.sleep(process, timeout)
            raise redis.TimeoutError("Timeout reading from socket")
        slow = any(f.kind == "slow" and f.seconds >= self.settings.lease for f in found)
        handled = self._handling.get(getcurrent())
        if slow and handled and name.startswith("claim") and answer[0] == "claimed":
            self.losses[handled[1]] += 1
        if "lose_reply" in kinds:
            self.scheduler.sleep(process, self.latency())
            raise redis.ConnectionError("simulated: the connection was reset")
        self.after(process, found)
        return answer

    def _with_time(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Give a script the time at which it runs, which Redis would, not that of its request."""
        if str(args[0]).upper() not in ("EVALSHA", "EVAL"):
            return args
        now = b'"now_ms":%.3f' % (self.scheduler.now * 1000)
        return (*args[:4], _NOW.sub(now, args[4]), *args[5:])

    # -- faults that concern everybody ------------------------------------------------------------

    def _begin(self, fault: Fault) -> None:
        end = self.scheduler.now + fault.seconds
        match fault.kind:
            case "redis_away":
                self.server.away = True
                self.scheduler.at(end, self._redis_back)
            case "redis_refuses":
                self.server.refusal = fault.refusal
                self.scheduler.at(end, self._stop_refusing)
            case "redis_restart":
                self.plan_restart(fault.seconds)
            case "provider_away" | "provider_limit" | "provider_unpaid":
                self._provider_fault(fault)
            case "receiver_away":
                self.receivers.away = True
                self.scheduler.at(end, self._receivers_back)
            case "repository_away":
                self.repositories.away = True
                self.scheduler.at(end, self.repositories.back)
            case _:
                self.broker.fault(fault)

    def plan_restart(self, away: float) -> None:
        """Restart Redis in less than a second, with what it holds now."""
        snapshot = self.server.snapshot()
        durable, written = self.checker.snapshot(), self.scheduler.now
        down = self.scheduler.now + 0.9

        def go_down() -> None:
            self.server.away = True
            self.note(None, "** Redis goes down")

        def come_back() -> None:
            self.server.restore(snapshot)
            self.server.away = False
            self.restarts.append(Restart(written, self.scheduler.now))
            self.checker.restored(durable)
            self.note(None, "** Redis is back without its last second")

        self.scheduler.at(down, go_down)
        self.scheduler.at(down + away, come_back)

    def _provider_fault(self, fault: Fault) -> None:
        for provider in self.providers.by_name.values():
            if fault.kind == "provider_away":
                provider.away = True
            elif fault.kind == "provider_unpaid":
                provider.unpaid = True
            else:
                # Some providers say how long to wait.
                provider.limit = 1
                provider.retry_after = 3.0 if int(fault.seconds * 1000) % 2 else None
        self.scheduler.at(self.scheduler.now + fault.seconds, self.heal_providers)

    def heal_providers(self) -> None:
        for provider in self.providers.by_name.values():
            provider.away, provider.unpaid, provider.limit = False, False, None

    def _receivers_back(self) -> None:
        self.receivers.away = False

    def _redis_back(self) -> None:
        self.server.away = False
        self.note(None, "** Redis is back")

    def _stop_refusing(self) -> None:
        self.server.refusal = None
        self.note(None, "** Redis accepts writes again")

    # -- the trace --------------------------------------------------------------------------------

    def note(self, process: Process | None, text: str) -> None:
        name = process.name if process else "-"
        self.trace.append(Step(self.scheduler.now - START, name, text))

    def record(self, process: Process, name: str, request: str, answer: str) -> None:
        time = self.scheduler.now - START
        self.trace.append(Step(time, process.name, name, request, answer))

    def __enter__(self) -> World:
        self._deterministic = ExitStack()
        self._deterministic.enter_context(self.server.deterministic())
        tokens = SimpleNamespace(token_hex=lambda _bytes: self.new_token())
        self._deterministic.enter_context(mock.patch.object(rollback, "secrets", tokens))
        return self

    def __exit__(self, *error: Any) -> None:
        self.scheduler.stop(self.processes)
        self._deterministic.close()


_NOW = re.compile(rb'"now_ms":[0-9.e+]+')
#: The steps of verbs about repositories, each of which is a port call here.
STEPS = frozenset(
    {"base_checked", "merge_begun", "merge_fenced", "merge_verified", "merge_failed",
     "merge_landed", "result_stored", "rollback_fenced", "rollback_landed", "rollback_written",
     "regression_decided", "regression_written", "commit_checked"}
)  # fmt: skip
#: Port calls other than Redis, which are noted when they begin.
NOTED = STEPS | {"publish", "answer", "verify", "post", "loop_read", "loop_written"}


def _request(args: tuple[Any, ...]) -> str:
    if str(args[0]).upper() in ("EVALSHA", "EVAL"):
        body = args[4]
        return body.decode() if isinstance(body, bytes) else str(body)
    return " ".join(str(each)[:60] for each in args[1:])


def _brief(request: str) -> str:
    """Return the part of a request that a reader needs."""
    if not request.startswith("{"):
        return request
    fields = json.loads(request)
    if isinstance(fields.get("cycle"), dict):
        fields["cycle"] = fields["cycle"]["id"]
    names = (
        "entry",
        "entries",
        "loop",
        "id",
        "n",
        "index",
        "cycle",
        "how",
        "token",
        "counter",
        "reason",
    )
    found = [f"{name}={fields[name]}" for name in names if fields.get(name) not in (None, "")]
    found += ["/".join(lease["entry"] for lease in fields.get("leases", []))]
    return " ".join(found)


def _first(answer: Any) -> str:
    if isinstance(answer, list):
        return " ".join(_short(each) for each in answer[:3])
    return _short(answer)


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) < 40 else f"{text[:37]}…"
