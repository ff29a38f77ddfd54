"""`mulligan up`: everything one host needs, kept running until Ctrl-C."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Annotated
from urllib.parse import urlsplit

import typer

from mulligan.console.cli.backend import connect, describe_death
from mulligan.console.cli.exit_codes import stop_on_signals
from mulligan.console.cli.local_services import (
    Service,
    console_service,
    flower_service,
    worker_services,
)
from mulligan.console.cli.output import screen
from mulligan.workers.liveness_file import LivenessFile
from mulligan.workers.local.home import SupervisedRedis, embedded_redis, lock_home
from mulligan.workers.local.stopping import stop_stack
from mulligan.workers.local.supervisor import Child, Stack, child_environment
from mulligan.workers.settings.model import Settings, load_settings

#: Seconds to wait for the services.
_READY_SECONDS = 60.0
#: After running this long, a service's earlier deaths no longer count.
_STABLE_AFTER = 60.0
_TICK = 0.3
#: Seconds between two writes of the liveness file.
_ALIVE_EVERY = 5.0


def up(
    flower: Annotated[bool, typer.Option(help="Serve Flower on loopback, with a login.")] = True,
    console: Annotated[bool, typer.Option(help="Serve the HTTP API and the page.")] = True,
) -> None:
    """Start Redis, workers, console and Flower; Ctrl-C stops them.

    Redis is started only if no broker is configured.
    """
    stop_on_signals()
    settings = load_settings()
    with lock_home(settings.home), ExitStack() as leaving:
        try:
            _serve(settings, leaving, flower=flower, console=console)
        except KeyboardInterrupt:
            screen.say("stopping (press Ctrl-C again to hurry)")
            leaving.close()
            screen.say("stopped; the jobs are in the ledger")


def _serve(settings: Settings, leaving: ExitStack, *, flower: bool, console: bool) -> None:
    redis = None
    if settings.broker_url is None:
        server = leaving.enter_context(
            embedded_redis(settings.home, hung_after=settings.embedded_hung_after)
        )
        redis = SupervisedRedis(server, say=lambda text: screen.say(text, style="yellow"))
        settings = settings.model_copy(update={"broker_url": server.url})
    backend = connect(settings)
    backend.ledger.now()  # fails now if the ledger cannot be reached
    services = worker_services(settings, backend.app)
    if console:
        services.append(console_service(settings))
    if flower:
        services.append(flower_service(settings))
    environment = child_environment(settings, broker_url=settings.broker_url or "")
    for service in services:
        environment.update(service.announced)
    stack = Stack(settings.home, environment)
    leaving.callback(stop_stack, stack)
    alive = LivenessFile(home=settings.home, name=f"up@{socket.gethostname()}")
    leaving.callback(alive.remove)
    watch = ServiceWatch(stack, redis, alive)
    stack.on_death = watch.died
    for service in services:
        stack.add(service.name, service.argv)
    late = wait_until_ready(services, watch)
    _print_addresses(settings, services, late)
    while True:
        watch.look()
        time.sleep(_TICK)


@dataclass
class ServiceWatch:
    """Keeps the services running and reports restarts."""

    stack: Stack
    redis: SupervisedRedis | None
    alive: LivenessFile
    _down: set[str] = field(default_factory=set)
    _since: dict[str, float] = field(default_factory=dict)
    _written_at: float = -_ALIVE_EVERY

    def died(self, child: Child, code: int, delay: float | None) -> None:
        self._down.add(child.name)
        style = "yellow" if delay is not None else "red"
        screen.say(describe_death(child, code, delay), style=style)

    @property
    def given_up(self) -> set[str]:
        return {child.name for child in self.stack.children if child.given_up}

    def look(self) -> None:
        if self.redis is not None:
            self.redis.keep_running()
        self.stack.watch()
        now = time.monotonic()
        self._write_liveness(now)
        for child in self.stack.children:
            if not child.alive:
                self._since.pop(child.name, None)
            elif child.name in self._down:
                self._down.discard(child.name)
                screen.say(f"{child.name} restarted")
            elif now - self._since.setdefault(child.name, now) > _STABLE_AFTER:
                child.deaths = 0

    def _write_liveness(self, now: float) -> None:
        if now - self._written_at < _ALIVE_EVERY:
            return
        self._written_at = now
        down = [child.name for child in self.stack.children if not child.alive]
        with suppress(OSError):  # of a full disk; its processes say more
            self.alive.write(f"not running: {', '.join(down)}" if down else "")


def wait_until_ready(services: Sequence[Service], watch: ServiceWatch) -> list[Service]:
    """Wait up to a minute for the services; return those that are not ready."""
    waiting = list(services)
    deadline = time.monotonic() + _READY_SECONDS
    screen.say("starting " + ", ".join(service.name for service in services))
    while time.monotonic() < deadline:
        watch.look()
        waiting = [service for service in waiting if not service.ready()]
        if not {service.name for service in waiting} - watch.given_up:
            break
        time.sleep(_TICK)
    return waiting


def _print_addresses(
    settings: Settings, services: Sequence[Service], late: Sequence[Service]
) -> None:
    rows = [("broker", without_password(settings.broker_url or ""))]
    rows += [row for service in services for row in service.about]
    rows += [("logs", str((settings.home / "logs").resolve()))]
    submit = f"{screen.program_name()} submit FILE"
    rows += [("submit", f"{submit}   or from Celery: send_task('mulligan.submit', …)")]
    for title, text in rows:
        screen.say(f"{title:<8} {text}")
    if late:
        names = ", ".join(service.name for service in late)
        screen.say(f"not ready yet: {names}; see the logs", style="yellow")
    else:
        screen.say("ready; Ctrl-C stops everything", style="green")


def without_password(url: str) -> str:
    """Return a URL with its password masked."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    user = f"{parts.username or ''}:***@"
    return parts._replace(netloc=user + parts.netloc.rpartition("@")[2]).geturl()
