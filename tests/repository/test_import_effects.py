"""Importing a module has no effect: no app, no thread, no socket, no handler, no file."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: Modules that exist for their effect: `celery -A mulligan.workers.app` creates the app.
ENTRY_POINTS = ["mulligan.workers.app"]

#: Imports the named modules and prints their effects.
_PROBE = """
import atexit, json, logging, os, signal, sys, threading
from importlib import import_module
from pathlib import Path
import celery.signals, kombu.transport
from celery import _state

def receivers():
    known = [each for each in vars(celery.signals).values() if hasattr(each, "receivers")]
    return sum(len(each.receivers or ()) for each in known)

def look():
    return {
        "celery apps": len(_state._get_active_apps()),
        "current celery app": _state.default_app is not None,
        "celery signals": receivers(),
        "transports": sorted(kombu.transport.TRANSPORT_ALIASES.items()),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "signal handlers": [str(signal.getsignal(n)) for n in sorted(signal.valid_signals())],
        "exit handlers": atexit._ncallbacks(),
        "log handlers": len(logging.getLogger().handlers),
        "environment": dict(os.environ),
        "files": sorted(map(str, Path.cwd().rglob("*"))),
    }

done = []
def watch(event, details):
    if event in ("socket.connect", "socket.bind", "subprocess.Popen", "os.fork", "os.mkdir"):
        done.append(event)
    elif event == "open" and set(str(details[1])) & set("wax+"):
        done.append(f"open {details[0]} {details[1]}")

register_at_fork = os.register_at_fork
def watch_forks(**handlers):
    if any(str(each.__module__).startswith("mulligan") for each in handlers.values()):
        done.append("os.register_at_fork")
    register_at_fork(**handlers)

sys.addaudithook(watch)
os.register_at_fork = watch_forks
for module in json.loads(sys.argv[1]):
    before, at = look(), len(done)
    import_module(module)
    after = look()
    for what in [what for what in before if before[what] != after[what]]:
        print(f"{module}: {what}: {before[what]} -> {after[what]}")
    for what in done[at:]:
        print(f"{module}: {what}")
"""


def modules() -> list[str]:
    """Return every module except entry points and programs that run as files."""
    found = []
    for folder in ("mulligan", "policies", "tasks", "workers", "console"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "\nif __name__ ==" in path.read_text("utf-8"):
                continue
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts if parts[0] == "mulligan" else ("mulligan", *parts))
            found.append(name.removesuffix(".__init__"))
    return [name for name in found if name not in ENTRY_POINTS]


def effects(names: Sequence[str], folder: Path) -> list[str]:
    # -B: compiled modules would be files.
    argv = [sys.executable, "-B", "-c", _PROBE, json.dumps(names)]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_importing_a_module_has_no_effect(tmp_path: Path) -> None:
    names = modules()
    assert len(names) > 300
    assert effects(names, tmp_path) == []


def test_an_effect_is_noticed(tmp_path: Path) -> None:
    """Given the module that creates the app, its signal receivers and transport are noticed."""
    found = effects(ENTRY_POINTS, tmp_path)
    for what in ("celery signals", "transports"):
        assert any(line.startswith(f"mulligan.workers.app: {what}") for line in found), found


def test_a_fork_handler_is_noticed(tmp_path: Path) -> None:
    module = "import os\nos.register_at_fork(after_in_child=lambda: None)\n"
    (tmp_path / "mulligan_forks.py").write_text(module)
    assert effects(["mulligan_forks"], tmp_path) == ["mulligan_forks: os.register_at_fork"]
