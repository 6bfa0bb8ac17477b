"""Digests of contents that come again and again: each object is hashed once."""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from typing import Final

LIMIT_BYTES: Final = 64 << 20
_LAID: Final = 1 << 16
_SAMPLE: Final = 64


class _Content:
    """A content as a key: told from others by a few bytes, compared whole only where those agree.

    Python's own hash of ``bytes`` reads all of them, and new contents are the usual case.
    """

    __slots__ = ("_hash", "data")

    def __init__(self, data: bytes) -> None:
        middle = len(data) // 2
        samples = data[:_SAMPLE], data[middle : middle + _SAMPLE], data[-_SAMPLE:]
        self.data = data
        self._hash = hash((len(data), *samples))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Content) and (self.data is other.data or self.data == other.data)

    def __len__(self) -> int:
        return len(self.data)


class Digests:
    """What is known of the contents used last: that they were used, and their sha256.

    Args:
        limit: Bytes of all remembered contents together.
    """

    def __init__(self, limit: int = LIMIT_BYTES) -> None:
        self.limit = limit
        self.size = 0
        self._known: OrderedDict[_Content, str] = OrderedDict()
        self._laid: OrderedDict[str, int] = OrderedDict()
        self._lock = threading.Lock()

    def seen(self, content: bytes) -> bool:
        """Whether this content was here before; from now on it was."""
        key = _Content(content)
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return True
            self._remember(key, "")
            return False

    def sha256(self, content: bytes) -> str:
        """The hexadecimal digest."""
        key = _Content(content)
        with self._lock:
            digest = self._known.get(key, "")
        if not digest:
            digest = hashlib.sha256(content).hexdigest()
            with self._lock:
                self._remember(key, digest)
        return digest

    def laid(self, digest: str) -> int:
        """Bytes of a stored content that was laid down before, or -1."""
        with self._lock:
            return self._laid.get(digest, -1)

    def lay(self, digest: str, size: int) -> None:
        """Note that a stored content of this sha256 is laid down now."""
        with self._lock:
            self._laid[digest] = size
            self._laid.move_to_end(digest)
            while len(self._laid) > _LAID:
                self._laid.popitem(last=False)

    def _remember(self, key: _Content, digest: str) -> None:
        if len(key) > self.limit:
            return
        if key not in self._known:
            self.size += len(key)
        self._known[key] = digest
        while self.size > self.limit:
            dropped, _ = self._known.popitem(last=False)
            self.size -= len(dropped)


DIGESTS: Final = Digests()
"""Those of this process."""


def _after_fork() -> None:
    DIGESTS._lock = threading.Lock()  # another thread may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
