"""Answers that were worked out before, by the exact content that they were worked out from.

Rollouts of one start state often hand in the same pipeline or the same outputs byte for byte.
Cells, graders and draws are deterministic, so the answer is the same and need not be paid twice.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

KEPT: Final[int] = 512
"""Answers kept in memory; each is at most about a megabyte, most are far smaller."""

T = TypeVar("T")


def key_of(*parts: str | bytes | int) -> str:
    """Digest of a sequence of parts; lengths are part of it."""
    h = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode()
        h.update(f"{len(data)}\0".encode())
        h.update(data)
    return h.hexdigest()


class Memo:
    """A small least-recently-used store. Thread-safe.

    Args:
        size: Answers to keep.
    """

    def __init__(self, size: int = KEPT) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, object] = OrderedDict()

    def get(self, key: str, make: Callable[[], T], keep: Callable[[T], bool] = lambda _: True) -> T:
        """The answer for ``key``, made if it is not known. Errors are not kept.

        Args:
            key: From :func:`key_of`, over everything that the answer rests on.
            make: Works it out.
            keep: Whether an answer may be given again.
        """
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]  # type: ignore[return-value]
        made = make()
        if keep(made):
            with self._lock:
                self._kept[key] = made
                while len(self._kept) > self._size:
                    self._kept.popitem(last=False)
        return made

    def get_all(
        self, keys: Mapping[str, str], make: Callable[[Sequence[str]], Mapping[str, T]]
    ) -> dict[str, T]:
        """Several answers; those that are not known are made together.

        Args:
            keys: Name -> key, as of :meth:`get`.
            make: Works out the answers for the names that it is given.
        """
        with self._lock:
            known = {name for name, key in keys.items() if key in self._kept}
        lacking = [name for name in keys if name not in known]
        made = make(lacking) if lacking else {}
        return {
            # A known answer may have been pushed out meanwhile: then it is made alone.
            name: self.get(key, lambda n=name: made[n] if n in made else make([n])[n])  # type: ignore[misc]
            for name, key in keys.items()
        }
