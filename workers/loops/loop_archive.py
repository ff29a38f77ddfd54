"""A loop as a file: a compressed tar archive. Reading it is bounded, and no name becomes a path.

======================= ===========================================================================
manifest.json           the format, the references of the repository, which stored files follow
loop.json               the records of the ledger
repository.pack         the objects that the references need, as git packs them
blobs/<sha256>          a stored workspace or difference
======================= ===========================================================================
"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Mapping
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
#: Commas and brackets of a part, each of which may be a value: one takes a hundred bytes once read.
MOST_VALUES = 5_000_000
MOST_BLOBS = 20_000
_BLOCK, _CHUNK = 512, 1 << 20
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
    context: LoopContext, source: IO[bytes], to: Destination, caller: Requester, *, blob_cap: int
) -> tuple[str, Written]:
    """Write a loop from a file into the ledger. See `transfer.import_loop`."""
    with private_directory() as directory:
        archive = read_archive(source, directory, blob_cap=blob_cap)
        try:
            return import_loop(context, archive, to, caller)
        finally:
            if archive.pack is not None:
                archive.pack.close()


# -- writing ---------------------------------------------------------------------------------------


def write_archive(archive: LoopArchive, into: IO[bytes]) -> None:
    """Write a loop as a file."""
    manifest = {
        "format": FORMAT,
        "loop": archive.records["config"]["name"],
        "refs": dict(archive.refs),
        "blobs": list(archive.blobs),
    }
    with tarfile.open(fileobj=into, mode="w:gz", format=tarfile.USTAR_FORMAT) as tar:
        _add(tar, MANIFEST, json.dumps(manifest, indent=1).encode())
        # ASCII: a record may contain half a surrogate pair, which UTF-8 cannot encode.
        _add(tar, RECORDS, json.dumps(archive.records, separators=(",", ":")).encode())
        if archive.pack is not None:
            size = archive.pack.seek(0, io.SEEK_END)
            archive.pack.seek(0)
            _add_file(tar, PACK, archive.pack, size)
        for address, read in archive.blobs.items():
            _add(tar, f"{BLOBS}{address.removeprefix(_ADDRESS)}", read())


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    _add_file(tar, name, io.BytesIO(data), len(data))


def _add_file(tar: tarfile.TarFile, name: str, data: IO[bytes], size: int) -> None:
    about = tarfile.TarInfo(name)
    about.size, about.mode = size, 0o600
    tar.addfile(about, data)


# -- reading ---------------------------------------------------------------------------------------


def read_archive(source: IO[bytes], directory: Path, *, blob_cap: int) -> LoopArchive:
    """Read a file that may be hostile. Raises BadInput.

    ``directory``: an empty one for its files, which the archive that is returned reads.
    """
    try:
        with gzip.open(source, "rb") as unpacked:
            files = _read_files(cast(IO[bytes], unpacked), directory, blob_cap)
    except (OSError, EOFError, zlib.error, tarfile.HeaderError) as error:
        raise BadInput(f"the archive is damaged: {error}") from error
    manifest = _json(files, MANIFEST)
    version = manifest.get("format") if isinstance(manifest, dict) else None
    if isinstance(version, int) and version > FORMAT:
        raise BadInput(f"the archive has format {version}, and this version reads up to {FORMAT}")
    if version != FORMAT or not _are_texts(manifest.get("refs")):
        raise BadInput(f"the archive is not one of a loop: {MANIFEST} has not what it needs")
    blobs = {name: file for name, file in files.items() if name.startswith(BLOBS)}
    return LoopArchive(
        records=_json(files, RECORDS),
        refs=manifest["refs"],
        pack=files[PACK].open("rb") if PACK in files else None,
        blobs={
            _ADDRESS + name.removeprefix(BLOBS): file.read_bytes for name, file in blobs.items()
        },
    )


def _are_texts(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(each, str) for each in value.values())


def _read_files(source: IO[bytes], directory: Path, blob_cap: int) -> Mapping[str, Path]:
    files: dict[str, Path] = {}
    left = MOST_BYTES
    for name, size in _members(source):
        if name in files:
            raise BadInput(f"the archive has {name} twice")
        if size > min(left, _most_bytes(name, blob_cap)):
            raise BadInput(f"the archive is too large: {name} has {size:,} bytes")
        if len(files) > MOST_BLOBS:
            raise BadInput(f"the archive has more than {MOST_BLOBS:,} files")
        left -= size
        # The number of the file: no name of an archive becomes a path.
        files[name] = directory / str(len(files))
        _copy(source, files[name], size)
    return files


def _most_bytes(name: str, blob_cap: int) -> int:
    if name in _MOST:
        return _MOST[name]
    digest = name.removeprefix(BLOBS)
    if name.startswith(BLOBS) and len(digest) == 64 and set(digest) <= set("0123456789abcdef"):
        return blob_cap
    raise BadInput(f"the archive has a file that belongs to no loop: {name[:200]!r}")


def _members(source: IO[bytes]) -> Iterator[tuple[str, int]]:
    """Yield the name and the size of each file; who asks for the next one has read it.

    Only plain files: the headers of links, devices and long names are refused.
    """
    while (block := _exactly(source, _BLOCK)) != bytes(_BLOCK):
        about = tarfile.TarInfo.frombuf(block, "ascii", "strict")
        if about.type != tarfile.REGTYPE or about.size < 0:
            raise BadInput(f"the archive has something that is not a plain file: {about.name!r}")
        yield about.name, about.size
        _exactly(source, -about.size % _BLOCK)


def _exactly(source: IO[bytes], size: int) -> bytes:
    data = source.read(size) if size else b""
    if len(data) != size:
        raise EOFError("it ends too early")
    return data


def _copy(source: IO[bytes], file: Path, size: int) -> None:
    with file.open("xb") as into:
        while size:
            into.write(data := _exactly(source, min(size, _CHUNK)))
            size -= len(data)


def _json(files: Mapping[str, Path], name: str) -> Any:
    if name not in files:
        raise BadInput(f"the archive is not one of a loop: it has no {name}")
    text = files[name].read_bytes()
    if sum(map(text.count, (b",", b"{", b"["))) > MOST_VALUES:
        raise BadInput(f"the archive is damaged: {name} has more than {MOST_VALUES:,} values")
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"the archive is damaged: {name}: {error}") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")
