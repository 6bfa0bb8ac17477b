"""Back-pressure: a build in the background leaves the cores to whoever trains beside it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

NICENESS: Final = 10
"""What a background build adds to its niceness; its sandboxes inherit it."""
MAX_PAUSE_S: Final = 20.0
"""Longest pause before one job: a build is slowed down, never starved."""
_BUSY: Final = 0.85
"""Share of the cores' time, taken by others, from which on they count as used up."""
_WATCH_S: Final = 2.0


def busy_s() -> float | None:
    """CPU seconds that all processes of this machine have used, niced ones left out.

    Returns:
        ``None`` where there is no /proc to read it from.
    """
    try:
        words = Path("/proc/stat").read_text("ascii").split("\n", 1)[0].split()
    except OSError:
        return None
    user, _, system = (int(word) for word in words[1:4])
    return (user + system) / os.sysconf("SC_CLK_TCK")


class Throttle:
    """Makes workers wait while un-niced processes want the cores. Thread-safe.

    The builder runs niced, so the kernel already prefers the trainer; waiting also keeps memory
    bandwidth, caches and the sandboxes' memory free for it.

    Args:
        cores: Cores of this machine.
        measure: CPU seconds of un-niced processes so far.
        clock, sleep: Of the time that passes.
    """

    def __init__(
        self,
        cores: int | None = None,
        measure: Callable[[], float | None] = busy_s,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        self._cores = cores or len(os.sched_getaffinity(0))
        self._measure, self._clock = measure, clock
        self._stop = threading.Event()
        self._sleep = sleep or self._stop.wait
        self._lock = threading.Lock()
        self._last: tuple[float, float | None] = (clock(), measure())
        self.waited_s = 0.0

    def share(self) -> float:
        """Share of the cores' time that others used since the last call, in [0, 1]."""
        with self._lock:
            now, used = self._clock(), self._measure()
            then, before = self._last
            if now - then < 0.05 or used is None or before is None:
                return 0.0
            self._last = (now, used)
            return min(1.0, max(0.0, (used - before) / ((now - then) * self._cores)))

    def wait(self) -> float:
        """Wait until others leave room, at most :data:`MAX_PAUSE_S`; returns the seconds waited."""
        began = self._clock()
        waited = 0.0
        while self.share() >= _BUSY and waited < MAX_PAUSE_S and not self._stop.is_set():
            self._sleep(min(_WATCH_S, MAX_PAUSE_S - waited))
            waited = self._clock() - began
        self.waited_s += waited
        return waited

    def stop(self) -> None:
        """End every wait now."""
        self._stop.set()


def be_nice() -> None:
    """Lower this process's priority to :data:`NICENESS`, unless it is as low already."""
    missing = NICENESS - os.nice(0)
    if missing > 0:
        os.nice(missing)
