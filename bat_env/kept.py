"""Values made once and kept, also where several threads ask for the same one at the same time.

Rollouts of one group start from one state, so they ask for one instance, and often hand in one
pipeline, in the same moment: whoever comes first makes it, the others wait for that.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Final, Generic, TypeVar

PATIENCE_S: Final = 10.0
"""Longest wait for another thread. It may itself wait for something that the waiting one holds, a
sandbox of a full pool for instance; and making a value twice is never wrong."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
N = TypeVar("N", bound=Hashable)


class Kept(Generic[K, V]):
    """A least-recently-used store whose values are made by one thread each. Thread-safe.

    Args:
        room: Greatest sum of weights that is kept; the newest value stays whatever it weighs.
        weigh: Weight of a value; default 1 each.
    """

    def __init__(self, room: int, weigh: Callable[[V], int] = lambda _: 1) -> None:
        self._room, self._weigh = room, weigh
        self._lock = threading.Lock()
        self._kept: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._weight = 0
        self._making: dict[K, threading.Event] = {}
        self._process = os.getpid()

    def get(self, key: K, make: Callable[[], V], keep: Callable[[V], bool] = lambda _: True) -> V:
        """The value of ``key``, made if it is not known.

        Args:
            key: Names everything that the value rests on.
            make: Makes it. What it raises goes to the caller and is not kept; threads that waited
                for it try themselves.
            keep: Whether a value may be given again.
        """
        return self.get_all({"": key}, lambda _: {"": make()}, keep)[""]

    def get_all(
        self,
        keys: Mapping[N, K],
        make: Callable[[Sequence[N]], Mapping[N, V]],
        keep: Callable[[V], bool] = lambda _: True,
    ) -> dict[N, V]:
        """Several values; those that nobody has made or is making are made together.

        Args:
            keys: Name -> key.
            make: Makes the values of the names that it is given, all of them.
            keep: Whether a value may be given again.
        """
        found: dict[N, V] = {}
        waited: set[K] = set()
        while len(found) < len(keys):
            mine, others = self._claim(keys, found, waited)
            if mine:
                # Own values first, then waiting: so no two threads ever wait for each other.
                made: Mapping[N, V] = {}
                try:
                    made = make(mine)
                finally:
                    worth = {keys[n]: made[n] for n in mine if n in made and keep(made[n])}
                    self._settle([keys[n] for n in mine], worth)
                found |= {name: made[name] for name in mine}
            else:
                for key, event in others.items():
                    event.wait(PATIENCE_S)
                    waited.add(key)
        return found

    def _claim(
        self, keys: Mapping[N, K], found: dict[N, V], waited: set[K]
    ) -> tuple[list[N], dict[K, threading.Event]]:
        """Take what is kept into ``found``; returns what to make, and what others are making."""
        mine: list[N] = []
        others: dict[K, threading.Event] = {}
        with self._lock:
            if self._process != os.getpid():
                # After a fork the threads that were making something are gone.
                self._making, self._process = {}, os.getpid()
            for name, key in keys.items():
                if name in found:
                    continue
                if key in self._kept:
                    self._kept.move_to_end(key)
                    found[name] = self._kept[key][0]
                elif key in self._making and key not in waited:
                    others[key] = self._making[key]
                else:
                    # A value that was waited for in vain is made without waiting again: what may
                    # not be kept must not be made by one thread after another.
                    self._making.setdefault(key, threading.Event())
                    mine.append(name)
        return mine, others

    def _settle(self, claimed: Sequence[K], worth: Mapping[K, V]) -> None:
        """Keep what is worth it, and tell those who wait."""
        weights = {key: self._weigh(value) for key, value in worth.items()}
        with self._lock:
            for key, weight in weights.items():
                self._weight += weight - (self._kept[key][1] if key in self._kept else 0)
                self._kept[key] = worth[key], weight
                self._kept.move_to_end(key)
            while self._weight > self._room and len(self._kept) > 1:
                self._weight -= self._kept.popitem(last=False)[1][1]
            for key in claimed:
                event = self._making.pop(key, None)
                if event is not None:
                    event.set()
