"""The files that items of one space have, so that it is quickly found who has those of another one.

The directories that patterns begin with leave few to compare. What was compared is remembered, and
goes on where it stopped: so a limit of comparisons for each plan delays an item, and never refuses
it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Literal

from mulligan.policies.coordination.locks import Conflict, FileLock
from mulligan.policies.path_patterns import FileSet, compare_files, file_set, literal_start

#: Directories by which patterns are looked up.
_DEPTH = 4
#: Pairs of items that a process remembers: somewhat more than what waits and what it waits for.
_MOST_REMEMBERED = 100_000

_Met = tuple[str, str]


class ComparedFiles:
    """What is known of the files of two items, for all plans of a process."""

    def __init__(self) -> None:
        #: The patterns that meet, the place where comparing goes on, or None: none of them meet.
        #: What was not used for long is in the second one, and is forgotten next.
        self._known = dict[tuple[bytes, bytes], _Met | int | None]()
        self._older = dict[tuple[bytes, bytes], _Met | int | None]()

    def met(self, one: FileSet, two: FileSet) -> _Met | None:
        """Return two patterns that are known to meet."""
        if one.exact.keys() & two.exact.keys():
            return compare_files(one, two).found
        found = self._recall((one.digest, two.digest))
        return found if isinstance(found, tuple) else None

    def compare(
        self, one: FileSet, two: FileSet, most: int
    ) -> tuple[_Met | Literal["free", "unknown"], int]:
        """Return two patterns that meet, or that there are none, and what it cost.

        Unknown: more than ``most`` would have to be compared.
        """
        key = (one.digest, two.digest)
        known, cost = self._recall(key), 0
        if isinstance(known, int):
            if most <= 0:
                return "unknown", 0
            compared = compare_files(one, two, place=known, most=most)
            known, cost = compared.found or compared.place, compared.cost
        self._remember(key, known)
        return ("unknown" if isinstance(known, int) else known or "free"), cost

    def _recall(self, key: tuple[bytes, bytes]) -> _Met | int | None:
        return self._known.get(key, self._older.get(key, 0))

    def _remember(self, key: tuple[bytes, bytes], value: _Met | int | None) -> None:
        self._known[key] = value
        if len(self._known) > _MOST_REMEMBERED:
            self._known, self._older = {}, self._known


class FileIndex:
    """The files of items of one space. Sets of items are numbers with a bit for each of them."""

    def __init__(self, compared: ComparedFiles) -> None:
        self._compared = compared
        self._held: list[tuple[FileLock, FileSet]] = []
        self._own = Counter[str]()
        #: Directories → those who have a file there or below, and those with a pattern that begins
        #: with just these or with more of them.
        self._files, self._patterns = Counter[str](), Counter[str]()
        self._patterns_below = Counter[str]()
        self._exact = Counter[str]()

    def add(self, lock: FileLock) -> None:
        bit, files = 1 << len(self._held), file_set(lock.files)
        self._held.append((lock, files))
        self._own[lock.name] |= bit
        for each in files.exact:
            self._exact[each] |= bit
        for each in {above for path in files.exact.values() for above in _directories(path)}:
            self._files[each] |= bit
        for _, pattern in files.others:
            *above, last = _directories(pattern)
            self._patterns[last] |= bit
            for each in (*above, last):
                self._patterns_below[each] |= bit

    def find(
        self, own: FileLock, *, first: int, most: int
    ) -> tuple[Conflict | Literal["free", "unknown"], int]:
        """Return who of the ``first`` ones has files of an item, and what it cost."""
        files, cost = file_set(own.files), 0
        found = self._suspects(files) & ~self._own[own.name] & ((1 << first) - 1)
        suspects = [self._held[number] for number in _numbers(found)]
        for lock, held in suspects:
            if met := self._compared.met(files, held):
                return Conflict(lock=lock, files=met), cost
        for lock, held in suspects:
            result, more = self._compared.compare(files, held, most - cost)
            cost += more
            if result == "unknown":
                return "unknown", cost
            if result != "free":
                return Conflict(lock=lock, files=result), cost
        return "free", cost

    def __len__(self) -> int:
        return len(self._held)

    def _suspects(self, files: FileSet) -> int:
        """Return those who may have one of these files."""
        found = 0
        for path in files.exact:
            found |= self._exact[path]
        for each in {above for path in files.exact.values() for above in _directories(path)}:
            found |= self._patterns[each]
        for _, pattern in files.others:
            *above, last = _directories(pattern)
            found |= self._files[last] | self._patterns_below[last]
            for each in above:
                found |= self._patterns[each]
        return found


def _directories(pattern: str) -> list[str]:
    """Return the directories that a pattern begins with: none of them, the first one, the first
    two, …"""
    names = literal_start(pattern).split("/")[:-1][:_DEPTH]
    return ["/".join(names[:length]) for length in range(len(names) + 1)]


def _numbers(bits: int) -> Iterator[int]:
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest
