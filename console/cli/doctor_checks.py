"""The checks of `mulligan doctor`. Each says what it found and how to fix it."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from celery import Celery

from mulligan.console.cli.backend import CliBackend
from mulligan.console.reports.providers import visible_parked
from mulligan.policies.figures.format import counted, duration
from mulligan.policies.jobs.job import RunnerSpec
from mulligan.policies.jobs.sweep_health import sweep_health
from mulligan.policies.suggestions import nearest_name
from mulligan.tasks.ports.errors import BadInput, MulliganError, VerifierError
from mulligan.workers.celery.broker.queues import SUBMIT_QUEUE, required_queues
from mulligan.workers.celery.broker.stranded import stranded_messages
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.ledger.stores.refused_submissions import recent_words
from mulligan.workers.local.embedded_redis import EmbeddedRedis, data_folder
from mulligan.workers.local.home_server import choose_server
from mulligan.workers.local.server_binary import OLDEST, find_server
from mulligan.workers.runners.command import CommandRunner
from mulligan.workers.runners.local_state import INSTALL, model_path
from mulligan.workers.runners.runner_registry import RunnerRegistry
from mulligan.workers.sandbox.allowed import program_limits
from mulligan.workers.sandbox.isolation import NotConfined
from mulligan.workers.sandbox.subprocesses import check_start, isolation_of
from mulligan.workers.services import Services
from mulligan.workers.settings.config_file import OTHER_VARIABLES, config_path
from mulligan.workers.settings.model import Settings

#: Seconds to wait for an answer of the embedded server.
_SILENCE = 3.0
_LOW_DISK = 1_000_000_000
_NO_DISK = 100_000_000
#: Seconds after which waiting for a provider or a quota is a problem, as for the alert
#: ProviderLimited.
_LONG_WAIT = 900.0
#: Seconds after which an unpublished entry is a problem.
_LATE = 30.0
#: Seconds before a token expires in which it is time to replace it.
_EXPIRES_SOON = 14 * 86400.0


@dataclass(frozen=True, kw_only=True)
class Check:
    name: str
    status: Literal["ok", "warn", "fail"]
    said: str
    fix: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def ok(name: str, message: str) -> Check:
    return Check(name=name, status="ok", said=message)


def warn(name: str, message: str, fix: str) -> Check:
    return Check(name=name, status="warn", said=message, fix=fix)


def fail(name: str, message: str, fix: str) -> Check:
    return Check(name=name, status="fail", said=message, fix=fix)


# -- this host ------------------------------------------------------------------------------------


def check_host(settings: Settings) -> Iterator[Check]:
    new = sys.version_info >= (3, 11)
    version = platform.python_version()
    yield ok("python", version) if new else fail("python", version, "use Python 3.11 or later")
    path = config_path()
    yield ok("settings", f"{path} and the environment" if path else "the environment; no file")
    yield from _unknown_variables()
    yield _redis_server(settings)
    yield from _profiles(settings)
    yield from _webhooks(settings)
    yield _local_model(settings)
    yield _disk(settings.home)
    yield from _isolation(settings)
    yield from _bytecode()


def _isolation(settings: Settings) -> Iterator[Check]:
    """Say what confines the programs that verifiers, agents, formatters and suites run here."""
    confinement = program_limits(settings).confinement
    try:
        found = isolation_of(confinement)
    except NotConfined as error:
        yield fail("isolation", "programs under test cannot be confined", str(error))
        return
    yield from _sandbox_read(settings)
    said = ", ".join(found.layers)
    missing = "; ".join(f"{name}: {why}" for name, why in found.missing.items())
    if found.kind == "none":
        message = f"none, so an answer may do what this user may ({said})"
        yield warn("isolation", message, f"make one of these work ({missing})")
    elif found.kind == "landlock":
        message = f"{said}: tests that use sockets, processes that share memory or /tmp fail here"
        yield warn("isolation", message, f"install bubblewrap ({missing or 'sandbox = landlock'})")
    else:
        yield ok("isolation", said)
    for gap in found.gaps:
        yield warn("isolation", gap, "install bubblewrap, or use a later kernel")


def _sandbox_read(settings: Settings) -> Iterator[Check]:
    """Report what programs cannot be shown."""
    fix = "correct sandbox_read in mulligan.toml"
    for path in settings.sandbox_read:
        if not path.exists():
            yield warn("isolation", f"sandbox_read: there is no {path}", fix)
    try:
        check_start(["true"], program_limits(settings))
    except VerifierError as error:
        yield fail("isolation", f"sandbox_read: {error}", fix)


def _bytecode() -> Iterator[Check]:
    """Find an installation without bytecode: programs under test cannot write it."""
    spec = find_spec("_pytest")
    if spec is None or spec.origin is None:
        return
    source = Path(spec.origin)
    # Not cache_from_source, which follows this process's own options, such as -O.
    name = f"{source.stem}.{sys.implementation.cache_tag}.pyc"
    if not (source.parent / "__pycache__" / name).exists():
        message = "pytest is not compiled, so that every run of tests compiles it anew"
        fix = f"run {sys.executable} -m compileall -q {source.parents[1]}"
        yield warn("bytecode", message, fix)


def _webhooks(settings: Settings) -> Iterator[Check]:
    """Check that deliveries can be signed: one that cannot be is not sent."""
    for hook in settings.webhooks:
        host = urlsplit(hook.url).hostname
        if hook.secret_env is None:
            fix = "set secret_env, so that the receiver can verify the sender"
            yield warn("webhooks", f"{host}: alerts are not signed", fix)
        elif not os.environ.get(hook.secret_env):
            fix = f"set {hook.secret_env} for the control workers"
            yield fail("webhooks", f"{host}: {hook.secret_env} is not set here", fix)
        else:
            yield ok("webhooks", f"{host}: signed with {hook.secret_env}")


def _unknown_variables() -> Iterator[Check]:
    """Find misspelt variables, which everything else ignores silently."""
    known = {f"MULLIGAN_{name.upper()}" for name in Settings.model_fields} | OTHER_VARIABLES
    for name in sorted(os.environ):
        if name.startswith("MULLIGAN_") and name.partition("__")[0] not in known:
            near = nearest_name(name, known)
            fix = f"did you mean {near}?" if near else "unset it"
            yield warn("settings", f"{name} is not a setting", fix)


def _redis_server(settings: Settings) -> Check:
    """Name the program that serves the home directory, or that would."""
    try:
        if settings.broker_url is not None:
            return ok("redis server", f"{find_server()}; not used: a broker is configured")
        return ok("redis server", str(choose_server(data_folder(settings.home))))
    except BadInput as error:
        if settings.broker_url is not None:
            return ok("redis server", "not on this host, and not needed")
        return fail("redis server", "none for this home directory", str(error))


def check_embedded(settings: Settings) -> Check | None:
    """Look for a server that runs and does not answer; None if there is no such server."""
    server = EmbeddedRedis(settings.home)
    started = time.monotonic()
    while time.monotonic() - started < _SILENCE:
        state = server.state()
        if state.pid is None or state.reply is not None:
            return None
    fix = (
        f"wait: `mulligan up` restarts it after {settings.embedded_hung_after:g} s of silence,"
        f" and so does the next command; or end it: kill -9 {state.pid}"
    )
    return fail("redis server", f"process {state.pid} runs and does not answer", fix)


def _profiles(settings: Settings) -> Iterator[Check]:
    confinement = program_limits(settings).confinement
    registry = RunnerRegistry(profiles=settings.runners, confinement=confinement)
    problems = registry.check_profiles()
    for problem in problems:
        yield fail("profiles", str(problem), "correct it in mulligan.toml")
    if not problems:
        stuck = _cannot_start(registry)
        for name, why in stuck.items():
            fix = "correct it in mulligan.toml, or on this computer if its jobs run here"
            yield warn("profiles", f"[runners.{name}] cannot run here: {why}", fix)
        names = ", ".join(sorted(set(settings.runners) - set(stuck)))
        if names or not stuck:
            yield ok("profiles", names or "none named in mulligan.toml")
    for name, profile in settings.runners.items():
        for variable in sorted(_key_names(profile)):
            if not os.environ.get(variable):
                fix = f"export {variable} where the workers run"
                yield warn("keys", f"{variable} of [runners.{name}] is not set here", fix)


def _cannot_start(registry: RunnerRegistry) -> dict[str, str]:
    """Return the profiles whose programs cannot be started on this computer, and why."""
    found: dict[str, str] = {}
    for name in sorted(registry.profiles):
        runner = registry.resolve(RunnerSpec(profile=name), allow_inline=False)
        if isinstance(runner, CommandRunner):
            try:
                isolation_of(registry.confinement)
            except NotConfined:
                return {}  # it is reported for all of them
            try:
                runner.check_here()
            except VerifierError as error:
                found[name] = str(error)
    return found


def _key_names(profile: Mapping[str, Any]) -> set[str]:
    """Return the names of the variables that a profile and its fallbacks need."""
    found = {str(profile["api_key_env"])} if profile.get("api_key_env") else set()
    found |= set(profile.get("env") or ()) if profile.get("kind") == "command" else set()
    fallbacks = profile.get("fallbacks")
    for fallback in fallbacks if isinstance(fallbacks, list) else ():
        if isinstance(fallback, Mapping):
            found |= _key_names(fallback)
    return found


def _local_model(settings: Settings) -> Check:
    try:
        return ok("local model", model_path().name)
    except MulliganError:
        if any(profile.get("kind") == "local" for profile in settings.runners.values()):
            return fail("local model", "is not installed", INSTALL)
        return ok("local model", f"not installed, and no profile needs it ({INSTALL})")


def _disk(home: Path) -> Check:
    place = home if home.exists() else Path.cwd()
    free = shutil.disk_usage(place).free
    message = f"{free / 1e9:.1f} GB free in {place.resolve()}"
    fix = "free some space: a Redis that cannot write refuses all work"
    if free < _NO_DISK:
        return fail("disk", message, fix)
    return warn("disk", message, fix) if free < _LOW_DISK else ok("disk", message)


# -- the ledger -----------------------------------------------------------------------------------


def check_ledger(ledger: RedisLedger, settings: Settings, *, expected: bool) -> Iterator[Check]:
    """``expected``: whether workers should be running; if not, nothing is late."""
    info = ledger.server_info()
    yield _version(info)
    yield _aof(info)
    yield _eviction(info)
    for wrong in ledger.wrong_types():
        fix = "find the program that wrote it, rename the key, and restart the workers"
        yield fail("ledger", wrong, fix)
    yield from _partitions(ledger)
    yield from _waiting(ledger)
    if expected:
        yield _sweep(ledger, settings)
        yield _outbox(ledger)
        yield _releases(ledger)


def check_tokens(ledger: RedisLedger) -> Iterator[Check]:
    """Report tokens that have expired, will soon, or never do."""
    now, found = ledger.now(), ledger.tokens.all()
    for token in found:
        if token.expires_at is None or token.expires_at - now > _EXPIRES_SOON:
            continue
        name = f"{token.id} {token.name!r}" if token.name else token.id
        left = token.expires_at - now
        when = f"expires in {duration(left)}" if left > 0 else f"expired {duration(-left)} ago"
        fix = f"`{token.renewal}`, give its text to the program, then `mulligan token revoke"
        yield warn("tokens", f"{name} {when}", f"{fix} {token.id}`")
    endless = [token for token in found if token.expires_at is None]
    if endless:
        ids = ", ".join(token.id for token in endless)
        fix = "create ones that do: `mulligan token create`, then `mulligan token revoke ID`"
        some = f"{counted(len(endless), 'token')} that never expire{'s' * (len(endless) == 1)}"
        yield warn("tokens", f"{some}: {ids}", fix)
    if found and not endless:
        yield ok("tokens", f"{counted(len(found), 'token')}, each with an expiry")


def _partitions(ledger: RedisLedger) -> Iterator[Check]:
    """Report the partitions, if there are several."""
    numbers = ledger.numbers()
    if numbers.count > 1:
        spread = numbers.first == numbers.count
        where = "" if spread else f"; work with a key or a lane in the first {numbers.first}"
        yield ok("partitions", f"{numbers.count}{where}")


def _waiting(ledger: RedisLedger) -> Iterator[Check]:
    """Report workers whose calls to the ledger do not end."""
    for beat in ledger.beats.live(now=ledger.now()):
        if beat.waiting:
            calls = counted(beat.waiting, "call")
            said = f"{beat.name}: {calls} waiting for the ledger: {beat.waiting_reason}"
            yield fail("workers", said, "see the runbook, section Ledger refuses")


def _version(info: Mapping[str, Any]) -> Check:
    # Valkey calls itself Redis 7.2.4, too, for clients that ask for a Redis.
    valkey = info.get("valkey_version")
    text = str(valkey or info.get("redis_version", "0"))
    numbers = tuple(int(part) for part in text.split(".")[:2] if part.isdigit())
    name = f"{'Valkey' if valkey else 'Redis'} {text}"
    if numbers >= OLDEST:
        return ok("redis version", name)
    return fail("redis version", name, "6.2 or later is needed")


def _aof(info: Mapping[str, Any]) -> Check:
    if info.get("aof_enabled") == 1:
        return ok("persistence", "AOF is on")
    fix = "redis-cli CONFIG SET appendonly yes, and the same in redis.conf"
    return warn("persistence", "AOF is off: a restart of Redis loses accepted jobs", fix)


def _eviction(info: Mapping[str, Any]) -> Check:
    policy = str(info.get("maxmemory_policy", "unknown"))
    if policy == "noeviction":
        return ok("eviction", policy)
    fix = "redis-cli CONFIG SET maxmemory-policy noeviction, and the same in redis.conf"
    return fail("eviction", f"{policy}: Redis may evict jobs", fix)


def _sweep(ledger: RedisLedger, settings: Settings) -> Check:
    fix = "start a worker that serves `control`: `mulligan up` has one"
    age = ledger.sweep_age()
    if age is None:
        return warn("sweep", "has never run", fix)
    last = f"last ran {duration(age)} ago"
    health = sweep_health(age, interval=settings.sweep_interval)
    return ok("sweep", last) if health == "ok" else warn("sweep", last, fix)


def _outbox(ledger: RedisLedger) -> Check:
    """Check the oldest entry that is due and was never published."""
    oldest = ledger.unpublished_seconds()
    if oldest > _LATE:
        fix = "check that a worker serves `control` and that the broker is running"
        return warn("outbox", f"an entry has waited {duration(oldest)} to be published", fix)
    if quarantined := ledger.quarantine.count():
        said = f"{counted(quarantined, 'entry', 'entries')} quarantined: not sent or not readable"
        fix = "`mulligan outbox list` says why; then `mulligan outbox retry --all`, or drop them"
        return warn("outbox", said, fix)
    return ok("outbox", "empty")


def check_parked(services: Services) -> Iterator[Check]:
    """Report work that waits for something that is paused or fails, or that waits for long."""
    paused, known = services.ledger.paused(), services.ledger.breakers.all()
    for each in visible_parked(services, tenant=None):
        kind, _, name = each.reason.partition(":")
        provider = known.get(name) if kind == "provider" else None
        if each.reason in paused:
            fix = f"`mulligan queue resume {each.reason}`"
        elif provider is not None and provider.failing:
            fix = f"`mulligan queue resume {each.reason}` tries it now; see `mulligan providers`"
        elif each.oldest_seconds < _LONG_WAIT:
            continue
        elif kind == "quota":
            fix = "raise the quota of this tenant (`quotas`), or wait for its jobs to end"
        else:
            fix = "see `mulligan providers` and the runbook, section Provider limited"
        yield warn("waiting", str(each), fix)


def _releases(ledger: RedisLedger) -> Check:
    """Check that the workers can read every stored job, and name their releases."""
    beats = ledger.beats.live(now=ledger.now())
    running = Counter(f"{beat.release} (schema {beat.reads_schema})" for beat in beats)
    shown = ", ".join(f"{name}: {counted(n, 'worker')}" for name, n in sorted(running.items()))
    waiting = ledger.waiting_for("version")
    if waiting.count:
        said = f"waiting for workers of a later version: {waiting}; running: {shown or 'none'}"
        fix = (
            "start workers of the later version, or cancel these jobs:"
            " `mulligan jobs list --state waiting`, `mulligan jobs cancel ID`"
        )
        return warn("versions", said, fix)
    if len(running) > 1:
        return warn("versions", shown, "finish the upgrade: restart the older workers")
    return ok("versions", shown or "no worker has reported its version yet")


# -- the workers ----------------------------------------------------------------------------------


def check_workers(backend: CliBackend, settings: Settings, *, expected: bool) -> Iterator[Check]:
    """``expected``: whether workers should be running; if not, `run` starts its own."""
    served = backend.app.control.inspect(timeout=1.5).active_queues() or {}
    if not served:
        if expected:
            yield fail("workers", "none responds", "start them with `mulligan up`")
        else:
            yield ok(
                "workers",
                "none running; `mulligan run` starts its own, `mulligan up` keeps some running",
            )
        return
    yield ok("workers", f"{len(served)} running: {', '.join(sorted(served))}")
    names = {queue["name"] for queues in served.values() for queue in queues}
    required = required_queues(settings, loops=backend.ledger.has_loops())
    missing = [name for name in (*required, SUBMIT_QUEUE) if name not in names]
    if missing:
        fix = f"start a worker with -Q {','.join(missing)}"
        yield fail("queues", f"no worker serves {', '.join(missing)}", fix)
    else:
        yield ok("queues", "every queue is served")


def check_submissions(ledger: RedisLedger, app: Celery) -> Iterator[Check]:
    """Report submissions that were refused, or that no worker will receive."""
    stranded = stranded_messages(app)
    if stranded is not None:
        fix = (
            f'send mulligan.submit with queue="{SUBMIT_QUEUE}", or set task_routes ='
            f' {{"mulligan.submit": {{"queue": "{SUBMIT_QUEUE}"}}}} in the app that sends it'
        )
        yield warn("submissions", f"{stranded.text}; no worker of mulligan serves it", fix)
    if refused := ledger.refused_submissions.recent():
        yield warn("submissions", recent_words(refused), "`mulligan jobs refused` says why")
