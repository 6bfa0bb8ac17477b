"""Contents of files that resets brought, kept in case another reset brings them again.

A group of rollouts begins from one state, and a task's model comes with every episode: then only
names travel. Contents are the host's, never what a cell wrote, and no cell can see them here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

KEEP_BYTES = 48 << 20
"""Of all contents together; those that were asked for longest ago go first."""

KEPT_FROM = 4096
"""Bytes of a content from which on keeping it pays."""

Pieces = tuple[bytes, ...]


class Keeper:
    """Contents by sha256, the least recently used dropped first.

    Args:
        limit: Bytes of all contents together.
    """

    def __init__(self, limit: int = KEEP_BYTES) -> None:
        self.limit = limit
        self.size = 0
        self._kept: OrderedDict[str, Pieces] = OrderedDict()

    def find(self, digests: Iterable[str]) -> dict[str, Pieces]:
        """Those of the contents that are here."""
        found = {}
        for digest in digests:
            pieces = self._kept.get(digest)
            if pieces is not None:
                self._kept.move_to_end(digest)
                found[digest] = pieces
        return found

    def keep(self, digest: str, pieces: Pieces) -> None:
        """Remember a content, unless it is known or larger than everything together may be."""
        size = sum(map(len, pieces))
        if digest in self._kept or size > self.limit:
            return
        self._kept[digest] = pieces
        self.size += size
        while self.size > self.limit:
            _, dropped = self._kept.popitem(last=False)
            self.size -= sum(map(len, dropped))
