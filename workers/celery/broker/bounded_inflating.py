"""Compressed messages are inflated up to a limit: 597 KB may be 1.3 GB."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

from kombu import compression

from mulligan.workers.celery.broker.message_checks import UnreadableMessage

#: The memory that a stream of LZMA may ask for, whatever its size.
_LZMA_MEMORY = 128_000_000
#: The decoders with a limit, by kombu's names of the methods. Others keep kombu's decoder.
_DECODERS: dict[str, Callable[[], Any]] = {
    "application/x-gzip": zlib.decompressobj,
    "application/x-bz2": bz2.BZ2Decompressor,
    "application/x-lzma": partial(lzma.LZMADecompressor, memlimit=_LZMA_MEMORY),
}


def install(cap: int) -> None:
    """Let kombu inflate at most ``cap`` bytes of a message in this process."""
    registry: Any = compression  # kombu is untyped
    for name, create in _DECODERS.items():
        encode, _ = registry.get_encoder(name)
        registry.register(encode, partial(inflate, create, cap), name)


def inflate(create: Callable[[], Any], cap: int, body: bytes) -> bytes:
    """Inflate a body. Raises UnreadableMessage if it is longer than ``cap``, or not complete."""
    decoder = create()
    found: bytes = decoder.decompress(body, cap + 1)
    if len(found) > cap:
        raise UnreadableMessage(f"it inflates to more than {cap:,} bytes (message_cap)")
    if not decoder.eof:
        raise UnreadableMessage("its compressed body is not complete")
    return found
