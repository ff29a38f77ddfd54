"""Settings that are reloaded while a process runs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.settings.config_file import config_place
from mulligan.workers.settings.model import Settings, load_settings

log = logging.getLogger(__name__)

#: The settings that may change in a running process. All others need a restart.
LIVE = (
    "prices",
    "quotas",
    "exempt_task_types",
    "report_labels",
    "webhooks",
    "alert_window",
    "webhook_tries",
    "loop_ageing",
    "loop_slots",
)
#: Seconds between two checks of the file.
_INTERVAL = 5.0
_NOT_CHECKED = "not checked yet"


class LiveSettings:
    """The settings of a process, with the newest values of those that may change.

    The environment still overrides the file, and values set by code override both. A file that is
    broken or deleted changes nothing and causes one warning.
    """

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._current = settings
        self._clock = clock
        self._lock = threading.Lock()
        #: Checked at once: the file may have changed since these settings were read.
        self._next_check = float("-inf")
        self._file: Any = _NOT_CHECKED

    def current(self) -> Settings:
        """Return the current settings. Reads nothing between two checks of the file."""
        if self._clock() >= self._next_check and self._lock.acquire(blocking=False):
            try:
                self._check()
            finally:
                self._lock.release()
        return self._current

    def _check(self) -> None:
        self._next_check = self._clock() + _INTERVAL
        file = _fingerprint()
        if file == self._file:
            return
        if file is None and self._file != _NOT_CHECKED:
            log.warning("The configuration file was deleted; its values stay.")
        else:
            self._reload()
        self._file = file

    def _reload(self) -> None:
        try:
            fresh = load_settings()
        except (BadInput, OSError) as error:
            log.warning("The configuration was not reloaded; the old values stay: %s", error)
            return
        changed = {
            name: getattr(fresh, name)
            for name in LIVE
            if name not in self._current.set_by_code
            and getattr(fresh, name) != getattr(self._current, name)
        }
        if changed:
            self._current = self._current.model_copy(update=changed)
            log.warning("Reloaded from the configuration: %s", ", ".join(changed))


class LiveExemptTypes(Iterable[str]):
    """The current exempt task types."""

    def __init__(self, live: LiveSettings) -> None:
        self._live = live

    def __iter__(self) -> Iterator[str]:
        return iter(self._live.current().exempt_task_types)


def _fingerprint() -> Any:
    """Return a value that changes with the file; None if there is no file."""
    path = config_place()
    try:
        found = path.stat()
    except OSError:
        return None
    return (str(path), found.st_mtime_ns, found.st_size, found.st_ino)
