"""The services of `mulligan up`: each has a name, a program and a readiness check."""

from __future__ import annotations

import errno
import json
import secrets
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from celery import Celery

from mulligan.console.cli.console_url import url_of
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.celery.broker.queues import Pool, pools
from mulligan.workers.settings.model import Settings

_LOOPBACK = "127.0.0.1"
#: Flower accepts a function only in its configuration file.
_FORMAT = "from mulligan.workers.celery.flower_format import format_task\n"


@dataclass(frozen=True, kw_only=True)
class Service:
    """One process that `mulligan up` keeps running."""

    name: str
    argv: Sequence[str]
    #: Whether it is ready.
    ready: Callable[[], bool]
    #: Lines to print about it, as (title, text).
    about: tuple[tuple[str, str], ...] = ()
    #: Environment variables that tell the other services about it.
    announced: Mapping[str, str] = field(default_factory=dict)


def worker_services(settings: Settings, app: Celery) -> list[Service]:
    """The worker pools of this host."""

    def ready(pool: Pool) -> Callable[[], bool]:
        node = f"{pool.name}@{socket.gethostname()}"
        return lambda: bool(app.control.ping(destination=[node], timeout=0.5))

    return [
        Service(name=pool.name, argv=pool.argv(), ready=ready(pool)) for pool in pools(settings)
    ]


def flower_service(settings: Settings) -> Service:
    """Flower on loopback, read-only, with its own login."""
    port = _free_port(_LOOPBACK, settings.flower_port, "flower")
    login = _login(settings.home)
    config = settings.home.resolve() / "flowerconfig.py"
    # In a file, because every user of the host can read the arguments.
    pair = f"{login['user']}:{login['password']}"
    _write_private(config, f"basic_auth = [{pair!r}]\n{_FORMAT}")
    argv = [sys.executable, "-m", "celery", "-A", "mulligan.workers.app", "--quiet", "flower"]
    argv += [f"--address={_LOOPBACK}", f"--port={port}", f"--conf={config}", "--read_only=True"]
    url = f"http://{_LOOPBACK}:{port}"
    shown = login["password"] if sys.stdout.isatty() else f"in {settings.home / 'flower.json'}"
    return Service(
        name="flower",
        argv=argv,
        ready=lambda: _answers(f"{url}/healthcheck"),
        about=(("flower", f"{url}  (user {login['user']}, password {shown})"),),
        announced={"MULLIGAN_FLOWER_URL": url} if settings.flower_url is None else {},
    )


def console_service(settings: Settings) -> Service:
    """The console: HTTP API and page."""
    host = settings.console_host
    port = _free_port(host, settings.console_port, "console")
    argv = [sys.executable, "-m", "mulligan.console", "console", "--host", host]
    argv += ["--port", str(port)]
    url = url_of(host, port)
    return Service(
        name="console",
        argv=argv,
        ready=lambda: _answers(f"{url}/healthz"),
        about=(("console", url),),
    )


def _free_port(host: str, wanted: int, service: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, wanted))
        except OSError as error:
            in_use = error.errno == errno.EADDRINUSE
            problem = f"{wanted} is in use" if in_use else f"{host}:{wanted}: {error.strerror}"
            raise BadInput(
                f"{service}_port: {problem}; set MULLIGAN_{service.upper()}_PORT to another one,"
                f" or use --no-{service}"
            ) from None
        return int(probe.getsockname()[1])


def _login(home: Path) -> dict[str, Any]:
    """Return the login of this home directory, creating it once."""
    path = home / "flower.json"
    try:
        login = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(login, dict) and login.get("user") and login.get("password"):
            path.chmod(0o600)
            return login
    except (FileNotFoundError, ValueError):
        pass
    login = {"user": "mulligan", "password": secrets.token_urlsafe(12)}
    _write_private(path, json.dumps(login) + "\n")
    return login


def _write_private(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8")


def _answers(url: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=1):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
