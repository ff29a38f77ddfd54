"""Write objects into a git directory without git: one file each, as git does."""

from __future__ import annotations

import hashlib
import os
import secrets
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from mulligan.workers.repositories.git_directory import ObjectFormat

_CHUNK = 1 << 20


def blob_id(data: bytes, object_format: ObjectFormat) -> str:
    """Return git's id of a content."""
    digest = hashlib.new(object_format, _header(len(data)), usedforsecurity=False)
    digest.update(data)
    return digest.hexdigest()


def file_id(file: IO[bytes], size: int, object_format: ObjectFormat) -> str | None:
    """Return git's id of a file; None if it does not have this size."""
    digest = hashlib.new(object_format, _header(size), usedforsecurity=False)
    read = 0
    for chunk in _chunks(file, size):
        digest.update(chunk)
        read += len(chunk)
    return digest.hexdigest() if read == size else None


def write_blob(objects: Path, data: bytes, object_format: ObjectFormat) -> str:
    """Write a content, and return its id."""
    oid = blob_id(data, object_format)
    place = objects / oid[:2] / oid[2:]
    if not place.exists():
        new = _new(objects)
        new.write_bytes(zlib.compress(_header(len(data)) + data, level=1))
        _put(new, place)
    return oid


def write_file(
    objects: Path, file: IO[bytes], size: int, object_format: ObjectFormat
) -> str | None:
    """Write a large file, and return its id; None if it does not have this size any more."""
    digest = hashlib.new(object_format, _header(size), usedforsecurity=False)
    packer = zlib.compressobj(level=1)
    new, read = _new(objects), 0
    try:
        with new.open("xb") as target:
            target.write(packer.compress(_header(size)))
            for chunk in _chunks(file, size):
                digest.update(chunk)
                read += len(chunk)
                target.write(packer.compress(chunk))
            target.write(packer.flush())
        if read != size:
            return None
        oid = digest.hexdigest()
        _put(new, objects / oid[:2] / oid[2:])
        return oid
    finally:
        new.unlink(missing_ok=True)


def _chunks(file: IO[bytes], size: int) -> Iterator[bytes]:
    """Yield at most one byte more than a size."""
    left = size + 1
    while left and (chunk := file.read(min(_CHUNK, left))):
        left -= len(chunk)
        yield chunk


def _header(size: int) -> bytes:
    return b"blob %d\0" % size


def _new(objects: Path) -> Path:
    return objects / f"tmp_obj_{secrets.token_hex(8)}"


def _put(new: Path, place: Path) -> None:
    place.parent.mkdir(exist_ok=True)
    new.chmod(0o444)
    os.replace(new, place)  # noqa: PTH105 - as in write_file, where it may be gone
