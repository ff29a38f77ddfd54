"""Notice changes of a directory, a part of it at a time."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

#: Entries that one look visits: a large tree takes several.
_PART = 20_000


class TreeWatch:
    """Looks for files and directories that have changed since it last found one.

    It goes by the time of the last change of an entry, which programs cannot set.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._newest = time.time_ns()
        self._walk = self._times()

    def look(self) -> bool:
        """Whether one of the next entries has changed."""
        newest = self._newest
        for _ in range(_PART):
            changed = next(self._walk, None)
            if changed is None:
                self._walk = self._times()
                break
            newest = max(newest, changed)
        found, self._newest = newest > self._newest, newest
        return found

    def _times(self) -> Iterator[int]:
        left = [os.fspath(self._directory)]
        while left:
            folder = left.pop()
            try:
                yield os.lstat(folder).st_ctime_ns
                with os.scandir(folder) as entries:
                    for entry in entries:
                        if entry.is_dir(follow_symlinks=False):
                            left.append(entry.path)
                        else:
                            yield entry.stat(follow_symlinks=False).st_ctime_ns
            except OSError:  # removed meanwhile, or not to be read
                continue
