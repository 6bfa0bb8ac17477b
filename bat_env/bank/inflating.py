"""Looking into gzip files, within bounds."""

from __future__ import annotations

import zlib
from typing import Final

MAX_INFLATED: Final = 256 << 20


def inflate(data: bytes) -> bytes | None:
    """Content of a gzip file (at most 256 MiB of it), or ``None`` if it is none."""
    if data[:2] != b"\x1f\x8b":
        return None
    try:
        return zlib.decompressobj(wbits=31).decompress(data, MAX_INFLATED)
    except zlib.error:
        return None
