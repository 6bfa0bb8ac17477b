"""CPU time of an episode: this process, its sandboxes and the grader together."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

LOADED: Final = 1.5
"""CPU time grows when others use the same cores: what is allowed then, as a factor."""


def tree_cpu_s() -> float | None:
    """CPU seconds of this process and its descendants so far, with all that they have reaped.

    Returns:
        ``None`` where there is no /proc to read it from.
    """
    if not Path("/proc/self/stat").exists():
        return None
    parents: dict[int, list[int]] = {}
    used: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        except OSError:
            continue  # It has just ended; its parent has its time.
        pid = int(entry.name)
        parents.setdefault(int(words[1]), []).append(pid)
        used[pid] = sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK")
    total, waiting = 0.0, [os.getpid()]
    while waiting:
        pid = waiting.pop()
        total += used.get(pid, 0.0)
        waiting += parents.get(pid, [])
    return total


def allowance(limit_s: float) -> float:
    """The limit, or what is allowed instead while more jobs run here than there are cores."""
    try:
        busy = os.getloadavg()[0] > (os.cpu_count() or 1)
    except OSError:
        busy = True
    return limit_s * (LOADED if busy else 1.0)
