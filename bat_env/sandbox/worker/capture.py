"""Bounded capture of one output stream: the head and the tail are kept, the middle is counted."""

from __future__ import annotations

import os


class Capture:
    """Reads a non-blocking pipe.

    Args:
        fd: Read end; owned by this object.
        keep: Bytes to keep in all; half for the head, the rest for the tail.
    """

    def __init__(self, fd: int, keep: int) -> None:
        self.fd = fd
        self.total = 0
        self.ended = False
        self._head_size = keep // 2
        self._tail_size = keep - keep // 2
        self._head = bytearray()
        self._tail = bytearray()

    def pump(self, budget: int = 1 << 20) -> bool:
        """Read what is there, at most about ``budget`` bytes. Returns False at the end."""
        while budget > 0:
            try:
                data = os.read(self.fd, 1 << 16)
            except BlockingIOError:
                return True
            if not data:
                self.ended = True
                return False
            budget -= len(data)
            self._add(data)
        return True

    def _add(self, data: bytes) -> None:
        self.total += len(data)
        room = self._head_size - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data[-self._tail_size :]
        if len(self._tail) > 4 * self._tail_size:
            del self._tail[: -self._tail_size]

    def result(self) -> tuple[bytes, int]:
        """Kept bytes and the number of bytes dropped between head and tail."""
        kept = bytes(self._head) + bytes(self._tail[-self._tail_size :])
        return kept, self.total - len(kept)

    def close(self) -> None:
        """Close the pipe. Idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
