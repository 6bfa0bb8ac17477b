"""Digests of contents that come again and again: each object is hashed once."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from typing import Final

LIMIT_BYTES: Final = 64 << 20
_LAID: Final = 1 << 16


class Digests:
    """What is known of the contents used last: that they were used, and their sha256.

    A dictionary finds the very object it holds without reading it: Python keeps the hash of
    ``bytes`` in the object, and compares by identity first.

    Args:
        limit: Bytes of all remembered contents together.
    """

    def __init__(self, limit: int = LIMIT_BYTES) -> None:
        self.limit = limit
        self.size = 0
        self._known: OrderedDict[bytes, str] = OrderedDict()
        self._laid: OrderedDict[str, int] = OrderedDict()
        self._lock = threading.Lock()

    def seen(self, content: bytes) -> bool:
        """Whether this content was here before; from now on it was."""
        with self._lock:
            if content in self._known:
                self._known.move_to_end(content)
                return True
            self._remember(content, "")
            return False

    def sha256(self, content: bytes) -> str:
        """The hexadecimal digest."""
        with self._lock:
            digest = self._known.get(content, "")
        if not digest:
            digest = hashlib.sha256(content).hexdigest()
            with self._lock:
                self._remember(content, digest)
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

    def _remember(self, content: bytes, digest: str) -> None:
        if len(content) > self.limit:
            return
        if content not in self._known:
            self.size += len(content)
        self._known[content] = digest
        while self.size > self.limit:
            dropped, _ = self._known.popitem(last=False)
            self.size -= len(dropped)


DIGESTS: Final = Digests()
"""Those of this process."""
