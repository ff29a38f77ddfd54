"""A loop as a file: a compressed tar archive. Reading it is bounded, and no name becomes a path.

======================= ===========================================================================
manifest.json           the format, the references of the repository, the digests of what follows
loop.json               the records of the ledger
repository.pack         the objects that the references need, as git packs them
blobs/<sha256>          a stored workspace or difference
======================= ===========================================================================
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from mulligan.tasks.loops.context import LoopContext
from mulligan.tasks.loops.transfer import Destination, LoopArchive, export_loop, import_loop
from mulligan.tasks.ports.errors import BadInput
from mulligan.tasks.ports.ledger import LoopExport, Requester, Written
from mulligan.workers.repositories.moved_work import MOST_BYTES as MOST_PACK_BYTES
from mulligan.workers.sandbox.private import private_directory

FORMAT = 1
MANIFEST, RECORDS, PACK, BLOBS = "manifest.json", "loop.json", "repository.pack", "blobs/"
#: Bytes of each kind of file, and of all files together.
_MOST = {MANIFEST: 50_000_000, RECORDS: 500_000_000, PACK: MOST_PACK_BYTES}
MOST_BYTES = 4_000_000_000
#: A small file may unpack to so many bytes, and each of its own bytes to so many more.
_FREE_BYTES, _RATIO = 20_000_000, 100
#: Commas and brackets of a part, each of which may be a value: one takes a hundred bytes once read.
MOST_VALUES = 5_000_000
MOST_BLOBS = 20_000
_BLOCK, _RECORD, _CHUNK = tarfile.BLOCKSIZE, tarfile.RECORDSIZE, 1 << 20
_GZIP = b"\x1f\x8b"
_ADDRESS = "sha256:"


def is_archive(file: Path) -> bool:
    """Whether a file may be a loop's archive, by its content."""
    try:
        with file.open("rb") as opened:
            return opened.read(len(_GZIP)) == _GZIP
    except OSError:
        return False


# -- a loop ----------------------------------------------------------------------------------------


def save_loop(
    context: LoopContext,
    name: str,
    into: IO[bytes],
    *,
    tenant: str | None = None,
    owner: str | None = None,
) -> LoopExport:
    """Write a loop in which nothing runs as a file. See `transfer.export_loop`."""
    with tempfile.TemporaryFile() as pack:
        export, archive = export_loop(context, name, pack, tenant=tenant, owner=owner)
        write_archive(archive, into)
    return export


def load_loop(
    context: LoopContext,
    source: IO[bytes],
    to: Destination,
    caller: Requester,
    *,
    blob_cap: int,
    most: int = MOST_BYTES,
    tenant: str | None = None,
    owner: str | None = None,
) -> tuple[str, Written]:
    """Write a loop from a file into the ledger. See `transfer.import_loop`."""
    with private_directory() as directory:
        archive = read_archive(source, directory, blob_cap=blob_cap, most=most)
        try:
            return import_loop(context, archive, to, caller, tenant=tenant, owner=owner)
        finally:
            if archive.pack is not None:
                archive.pack.close()


# -- writing ---------------------------------------------------------------------------------------


def write_archive(archive: LoopArchive, into: IO[bytes]) -> None:
    """Write a loop as a file."""
    # ASCII, as a record may contain half a surrogate pair, which UTF-8 cannot encode.
    records = json.dumps(archive.records, separators=(",", ":")).encode()
    files = {RECORDS: hashlib.sha256(records).hexdigest()}
    if archive.pack is not None:
        archive.pack.seek(0)
        files[PACK] = hashlib.file_digest(archive.pack, "sha256").hexdigest()  # type: ignore[arg-type] # it is open for reading
    digests = {address: address.removeprefix(_ADDRESS) for address in archive.blobs}
    files |= {BLOBS + digest: digest for digest in digests.values()}
    name = archive.records["config"]["name"]
    manifest = {"format": FORMAT, "loop": name, "refs": dict(archive.refs), "files": files}
    with tarfile.open(fileobj=into, mode="w:gz", format=tarfile.USTAR_FORMAT) as tar:
        _add(tar, MANIFEST, json.dumps(manifest, indent=1).encode())
        _add(tar, RECORDS, records)
        if archive.pack is not None:
            size = archive.pack.seek(0, io.SEEK_END)
            archive.pack.seek(0)
            _add_file(tar, PACK, archive.pack, size)
        for address, read in archive.blobs.items():
            _add(tar, BLOBS + digests[address], read())


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    _add_file(tar, name, io.BytesIO(data), len(data))


def _add_file(tar: tarfile.TarFile, name: str, data: IO[bytes], size: int) -> None:
    about = tarfile.TarInfo(name)
    about.size, about.mode = size, 0o600
    tar.addfile(about, data)


# -- reading ---------------------------------------------------------------------------------------


@dataclass
class _Unpacked:
    """What a compressed file contains: no more of it than one of its size may have."""

    packed: IO[bytes]
    unpacked: IO[bytes]
    most: int
    count: int = 0

    def read(self, size: int) -> bytes:
        data = self.unpacked.read(size) if size else b""
        self.count += len(data)
        if self.count > min(self.most, _FREE_BYTES + _RATIO * self.packed.tell()):
            raise BadInput(f"the archive is too large: it has more than {self.count:,} bytes")
        return data

    def exactly(self, size: int) -> bytes:
        data = self.read(size)
        if len(data) != size:
            raise EOFError("it ends too early")
        return data

    def finish(self) -> None:
        """Read the rest, which is empty: only then the file's own checksum is compared."""
        rest = self.read(_RECORD)
        if len(rest) == _RECORD or rest.strip(b"\0"):
            raise BadInput("the archive is damaged: something follows its end")


def read_archive(
    source: IO[bytes], directory: Path, *, blob_cap: int, most: int = MOST_BYTES
) -> LoopArchive:
    """Read a file that may be hostile. Raises BadInput.

    ``directory``: an empty one for its files, which the archive that is returned reads. ``most``:
    bytes of all of them.
    """
    try:
        with gzip.open(source, "rb") as unpacked:
            reader = _Unpacked(source, cast(IO[bytes], unpacked), most)
            refs, files = _read_files(reader, directory, blob_cap)
            reader.finish()
    except (OSError, EOFError, zlib.error, tarfile.HeaderError) as error:
        raise BadInput(f"the archive is damaged: {error}") from error
    blobs = {name: file for name, file in files.items() if name.startswith(BLOBS)}
    return LoopArchive(
        records=_json(RECORDS, files[RECORDS].read_bytes()),
        refs=refs,
        pack=files[PACK].open("rb") if PACK in files else None,
        blobs={
            _ADDRESS + name.removeprefix(BLOBS): file.read_bytes for name, file in blobs.items()
        },
    )


def _read_files(
    source: _Unpacked, directory: Path, blob_cap: int
) -> tuple[Mapping[str, str], Mapping[str, Path]]:
    """Read the references, and copy the files that the manifest names, which comes first."""
    files: dict[str, Path] = {}
    members = _members(source, blob_cap)
    name, size = next(members, ("", 0))
    if name != MANIFEST:
        raise BadInput(f"the archive is not one of a loop: it does not begin with {MANIFEST}")
    refs, digests = _manifest(source.exactly(size))
    for name, size in members:
        if name in files or name == MANIFEST:
            raise BadInput(f"the archive has {name} twice")
        # The number of the file: no name of an archive becomes a path.
        files[name] = directory / str(len(files))
        if name not in digests or _copy(source, files[name], size) != digests[name]:
            raise BadInput(f"the archive is damaged: {name} is not what {MANIFEST} says")
    if missing := digests.keys() - files.keys():
        raise BadInput(f"the archive is damaged: it has no {min(missing)}")
    return refs, files


def _manifest(data: bytes) -> tuple[dict[str, str], dict[str, str]]:
    """Return the references, and the digest of each file that follows."""
    found = _json(MANIFEST, data)
    version = found.get("format") if isinstance(found, dict) else None
    if isinstance(version, int) and version > FORMAT:
        raise BadInput(f"the archive has format {version}, and this version reads up to {FORMAT}")
    if version != FORMAT or not _are_texts(found.get("refs")) or not _are_texts(found.get("files")):
        raise BadInput(f"the archive is not one of a loop: {MANIFEST} has not what it needs")
    refs, digests = found["refs"], found["files"]
    if RECORDS not in digests:
        raise BadInput(f"the archive is not one of a loop: it has no {RECORDS}")
    if len(digests) > MOST_BLOBS:
        raise BadInput(f"the archive has more than {MOST_BLOBS:,} files")
    return refs, digests


def _are_texts(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(each, str) for each in value.values())


def _most_bytes(name: str, blob_cap: int) -> int:
    if name in _MOST:
        return _MOST[name]
    digest = name.removeprefix(BLOBS)
    if name.startswith(BLOBS) and len(digest) == 64 and set(digest) <= set("0123456789abcdef"):
        return blob_cap
    raise BadInput(f"the archive has a file that belongs to no loop: {name[:200]!r}")


def _members(source: _Unpacked, blob_cap: int) -> Iterator[tuple[str, int]]:
    """Yield the name and the size of each file; who asks for the next one has read it.

    Only plain files: the headers of links, devices and long names are refused.
    """
    while (block := source.exactly(_BLOCK)) != bytes(_BLOCK):
        about = tarfile.TarInfo.frombuf(block, "ascii", "strict")
        if about.type != tarfile.REGTYPE or about.size < 0:
            raise BadInput(f"the archive has something that is not a plain file: {about.name!r}")
        if about.size > _most_bytes(about.name, blob_cap):
            raise BadInput(f"the archive is too large: {about.name} has {about.size:,} bytes")
        yield about.name, about.size
        source.exactly(-about.size % _BLOCK)


def _copy(source: _Unpacked, file: Path, size: int) -> str:
    """Write a file, and return its digest."""
    digest = hashlib.sha256()
    with file.open("xb") as into:
        while size:
            data = source.exactly(min(size, _CHUNK))
            into.write(data)
            digest.update(data)
            size -= len(data)
    return digest.hexdigest()


def _json(name: str, text: bytes) -> Any:
    if sum(map(text.count, (b",", b"{", b"["))) > MOST_VALUES:
        raise BadInput(f"the archive is damaged: {name} has more than {MOST_VALUES:,} values")
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"the archive is damaged: {name}: {error}") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")
