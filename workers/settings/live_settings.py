"""Settings that are read again while a process runs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Container
from typing import Any

from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.settings.config_file import config_place
from mulligan.workers.settings.model import Settings, load_settings

log = logging.getLogger(__name__)

#: All that may change under a running process. Anything else needs a restart.
LIVE = (
    "prices",
    "quotas",
    "exempt_task_types",
    "report_labels",
    "webhooks",
    "alert_window",
    "webhook_tries",
)
#: How often the file is looked at, in seconds.
_INTERVAL = 5.0
_NOT_SEEN = "not looked at yet"


class LiveSettings:
    """The settings of a process, with the newest values of those that may change.

    The environment still wins over the file, and what code gave `Settings` itself over both. A
    file that is broken or gone changes nothing, and is complained of once.
    """

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._current = settings
        self._clock = clock
        self._lock = threading.Lock()
        #: The file may have changed since these settings were read from it: look at once.
        self._look_at = float("-inf")
        self._seen: Any = _NOT_SEEN

    def current(self) -> Settings:
        """The settings in force. Costs nothing between two looks at the file."""
        if self._clock() >= self._look_at and self._lock.acquire(blocking=False):
            try:
                self._look()
            finally:
                self._lock.release()
        return self._current

    def _look(self) -> None:
        self._look_at = self._clock() + _INTERVAL
        seen = _fingerprint()
        if seen == self._seen:
            return
        if seen is None and self._seen != _NOT_SEEN:
            log.warning("the configuration file is gone; its values stay")
        else:
            self._read_again()
        self._seen = seen

    def _read_again(self) -> None:
        try:
            fresh = load_settings()
        except (BadInput, OSError) as error:
            log.warning("the configuration was not read again, the old values stay: %s", error)
        else:
            self._take_over(fresh)

    def _take_over(self, fresh: Settings) -> None:
        changed = {
            name: getattr(fresh, name)
            for name in LIVE
            if name not in self._current.given
            and getattr(fresh, name) != getattr(self._current, name)
        }
        if changed:
            self._current = self._current.model_copy(update=changed)
            log.warning("read again from the configuration: %s", ", ".join(changed))


class LiveExemptTypes(Container[str]):
    """The exempt task types as they are now."""

    def __init__(self, live: LiveSettings) -> None:
        self._live = live

    def __contains__(self, task_type: object) -> bool:
        return task_type in self._live.current().exempt_task_types


def _fingerprint() -> Any:
    """What tells one state of the file from another; None if there is no file."""
    path = config_place()
    try:
        found = path.stat()
    except OSError:
        return None
    return (str(path), found.st_mtime_ns, found.st_size, found.st_ino)
