"""Bounded frames between the host and a grader child: one JSON header, then raw blobs.

Nothing is ever unpickled: a child has parsed hostile bytes, so the host believes only JSON of
bounded size from it.

Layout: 4 bytes big-endian header length, the header (a JSON object whose ``blobs`` lists the byte
lengths), then the blobs.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

MAX_HEADER_BYTES: Final[int] = 4 * 1024 * 1024
MAX_BLOB_BYTES: Final[int] = 512 * 1024 * 1024
MAX_BLOBS: Final[int] = 4096

_LENGTH: Final[struct.Struct] = struct.Struct(">I")


class FrameError(Exception):
    """The other side closed early, sent something that is no frame, or took too long."""


def send_frame(sock: socket.socket, header: Mapping[str, Any], blobs: Sequence[bytes] = ()) -> None:
    """Send one frame.

    Raises:
        FrameError: If the other side is gone or the socket's timeout has passed.
    """
    head = json.dumps({**header, "blobs": [len(b) for b in blobs]}).encode()
    try:
        sock.sendall(_LENGTH.pack(len(head)) + head)
        for blob in blobs:
            sock.sendall(blob)
    except OSError as error:
        raise FrameError(f"send: {error}") from None


def _exactly(sock: socket.socket, size: int, deadline: float | None) -> bytes:
    data = bytearray(size)
    view = memoryview(data)
    have = 0
    while have < size:
        if deadline is not None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise FrameError("timeout")
            sock.settimeout(left)
        try:
            got = sock.recv_into(view[have:])
        except TimeoutError:
            raise FrameError("timeout") from None
        except OSError as error:
            raise FrameError(f"receive: {error}") from None
        if got == 0:
            raise FrameError("closed")
        have += got
    return bytes(data)


def receive_frame(
    sock: socket.socket,
    *,
    deadline: float | None = None,
    max_header: int = MAX_HEADER_BYTES,
    max_blob: int = MAX_BLOB_BYTES,
) -> tuple[dict[str, Any], list[bytes]]:
    """Receive one frame.

    Args:
        sock: A connected stream socket.
        deadline: ``time.monotonic()`` value after which to give up.
        max_header: Largest header, bytes.
        max_blob: Largest sum of the blobs, bytes.

    Raises:
        FrameError: On anything but one well-formed frame within the bounds.
    """
    size = _LENGTH.unpack(_exactly(sock, _LENGTH.size, deadline))[0]
    if size > max_header:
        raise FrameError(f"header of {size} bytes, at most {max_header}")
    try:
        header = json.loads(_exactly(sock, size, deadline))
    except (ValueError, RecursionError):
        raise FrameError("header is not JSON") from None
    lengths = header.pop("blobs", None) if isinstance(header, dict) else None
    if not isinstance(lengths, list) or len(lengths) > MAX_BLOBS:
        raise FrameError("header lists no blobs")
    if not all(type(n) is int and 0 <= n <= max_blob for n in lengths) or sum(lengths) > max_blob:
        raise FrameError("blobs are larger than allowed")
    return header, [_exactly(sock, n, deadline) for n in lengths]
