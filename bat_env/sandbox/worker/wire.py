"""Length-prefixed, bounded frames: one JSON header and any number of binary blobs.

Layout of a frame: ``u32 total | u32 header length | header (JSON, UTF-8) | blobs``. The header's
``blobs`` key holds the blob lengths. Both ends reject a frame over :data:`MAX_FRAME`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from typing import Any

MAX_FRAME = 16 << 20
CHUNK = 4 << 20
_PIECE = 1 << 16
_PREFIX = struct.Struct(">II")


class WireError(Exception):
    """A frame that breaks the protocol; the stream cannot be used any more."""


def pack(header: dict[str, Any], blobs: Sequence[bytes] = ()) -> bytes:
    """Encode one frame."""
    return b"".join(pieces(header, blobs))


def pieces(header: dict[str, Any], blobs: Sequence[bytes] = ()) -> list[bytes]:
    """Encode one frame, to be written piece by piece: large blobs are not copied."""
    text = json.dumps({**header, "blobs": [len(b) for b in blobs]}, separators=(",", ":")).encode()
    total = 4 + len(text) + sum(map(len, blobs))
    if total > MAX_FRAME:
        raise WireError(f"a frame of {total} bytes is over the limit of {MAX_FRAME}")
    found: list[bytes] = []
    few: list[bytes] = [_PREFIX.pack(total, len(text)), text]
    size = 8 + len(text)
    for blob in blobs:
        few.append(blob)
        size += len(blob)
        if size >= _PIECE:
            if len(blob) >= _PIECE:
                found.append(b"".join(few[:-1]))
                found.append(blob)
            else:
                found.append(b"".join(few))
            few, size = [], 0
    if few:
        found.append(b"".join(few))
    return found


class Framer:
    """Incremental decoder: feed bytes, iterate complete frames.

    A reader that trusts the other end may fill large frames in place: where :meth:`space` gives
    room, it reads into that and calls :meth:`filled` instead of :meth:`feed`.

    Attributes:
        size: Bytes of the frame that was yielded last.
    """

    def __init__(self) -> None:
        self.size = 0
        self._buffer = bytearray()
        self._large = bytearray()
        self._have = self._want = 0

    def feed(self, data: bytes) -> Iterator[tuple[dict[str, Any], list[bytes]]]:
        """Add ``data`` and yield every frame that is complete by now."""
        self._buffer += data
        while len(self._buffer) >= 8:
            total, head = _PREFIX.unpack_from(self._buffer)
            if total > MAX_FRAME or head > total - 4:
                raise WireError(f"malformed frame prefix ({total}, {head})")
            if len(self._buffer) < 4 + total:
                return
            frame = bytes(self._buffer[8 : 4 + total])
            del self._buffer[: 4 + total]
            self.size = 4 + total
            yield _decode(frame, head)

    def space(self) -> memoryview | None:
        """Where the rest of a large frame belongs; None where there is none under way.

        Takes as much memory as the frame says it needs: not for frames of strangers.
        """
        if not self._want:
            if len(self._buffer) < 8:
                return None
            total, _ = _PREFIX.unpack_from(self._buffer)
            if total < _PIECE:
                return None
            self._have, self._want = len(self._buffer), 4 + total
            if len(self._large) < self._want:
                self._large = bytearray(self._want)
            self._large[: self._have] = self._buffer
            self._buffer.clear()
        return memoryview(self._large)[self._have : self._want]

    def filled(self, count: int) -> Iterator[tuple[dict[str, Any], list[bytes]]]:
        """Say that ``count`` bytes of the space are there now; yields the frame if it is whole."""
        self._have += count
        if self._have == self._want:
            _, head = _PREFIX.unpack_from(self._large)
            self.size, self._want = self._want, 0
            yield _decode(memoryview(self._large)[8 : self.size], head)


def _decode(frame: bytes | memoryview, head: int) -> tuple[dict[str, Any], list[bytes]]:
    try:
        header = json.loads(bytes(frame[:head]))
        sizes = header["blobs"]
        if not isinstance(header, dict) or not all(type(size) is int for size in sizes):
            raise WireError("blob lengths are no list of numbers")
        if sum(sizes) != len(frame) - head or min(sizes, default=0) < 0:
            raise WireError("blob lengths do not add up")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise WireError(f"malformed frame header: {error}") from None
    blobs, at = [], head
    for size in sizes:
        blobs.append(bytes(frame[at : at + size]))
        at += size
    return header, blobs
