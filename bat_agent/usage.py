"""What a run costs: wall time, CPU time, memory at its peak, disk; of all of its processes.

Memory is the sum of the proportional set sizes of this process and its descendants, so that pages
which a fork shares count once. It is sampled, so a peak of less than a second may be missed.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from bat_agent.files import read_json, write_json
from bat_env.errors import ConfigError, DiskFullError

USAGE_SCHEMA: Final = 1
FILE: Final = "usage.json"

_PERIOD_S: Final = 1.0
_SHARE: Final = 0.02
"""Largest share of one core that sampling may take."""

_SAVE_EVERY_S: Final = 15.0
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Cost:
    """What a run cost so far, over all of its starts.

    Attributes:
        wall_s: Seconds from start to end.
        cpu_s: CPU seconds of the process tree.
        peak_memory_mb: Largest sampled memory of the process tree, MiB.
        disk_mb: Files of the run, MiB.
        starts: Times that it was started or continued.
    """

    wall_s: float = 0.0
    cpu_s: float = 0.0
    peak_memory_mb: float = 0.0
    disk_mb: float = 0.0
    starts: int = 0

    def to_json(self) -> dict[str, Any]:
        """Plain values, rounded for people."""
        return {
            "wall_s": round(self.wall_s, 1),
            "cpu_s": round(self.cpu_s, 1),
            "peak_memory_mb": round(self.peak_memory_mb, 1),
            "disk_mb": round(self.disk_mb, 1),
            "starts": self.starts,
        }


class Usage:
    """Measures while its block runs, in a thread of its own; keeps the sum in the run's folder.

    Args:
        run: Folder of the run.
        period_s: Least seconds between two samples.
    """

    def __init__(self, run: Path, *, period_s: float = _PERIOD_S) -> None:
        self._run, self._period = run, period_s
        self._before = _read(run / FILE)
        self._peak = 0
        self._began = self._cpu_began = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="usage", daemon=True)

    def __enter__(self) -> Usage:
        self._began, self._cpu_began = time.monotonic(), tree_cpu_s()
        self._sample()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._sample()
        self._save()

    def cost(self) -> Cost:
        """What the run cost up to now, earlier starts included."""
        before = self._before
        return Cost(
            wall_s=before.wall_s + time.monotonic() - self._began,
            cpu_s=before.cpu_s + tree_cpu_s() - self._cpu_began,
            peak_memory_mb=max(before.peak_memory_mb, self._peak / 2**20),
            disk_mb=disk_bytes(self._run) / 2**20,
            starts=before.starts + 1,
        )

    def _watch(self) -> None:
        saved = time.monotonic()
        pause = self._period
        while not self._stop.wait(pause):
            began = time.thread_time()
            self._sample()
            if time.monotonic() - saved > _SAVE_EVERY_S:
                saved = time.monotonic()
                self._save()
            pause = max(self._period, (time.thread_time() - began) / _SHARE)

    def _sample(self) -> None:
        self._peak = max(self._peak, tree_memory_bytes())

    def _save(self) -> None:
        # A measure must not end the work: a full disk is noticed where it matters.
        with contextlib.suppress(OSError, DiskFullError):
            write_json(self._run / FILE, {"schema_version": USAGE_SCHEMA, **self.cost().to_json()})


def _read(file: Path) -> Cost:
    try:
        value = read_json(file, schema_version=USAGE_SCHEMA)
        numbers = {name: float(value[name]) for name in Cost.__dataclass_fields__}
        return replace(Cost(**numbers), starts=int(numbers["starts"]))  # type: ignore[arg-type]
    except (ConfigError, KeyError, TypeError, ValueError):
        return Cost()


def _table() -> dict[int, tuple[int, float]]:
    """Pid -> parent and CPU seconds, those of its ended children included."""
    table = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - a thousand names a second: no objects
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                text = Path("/proc", name, "stat").read_text(encoding="latin-1")
                row = text.rpartition(")")[2].split()
                table[int(name)] = (int(row[1]), sum(map(int, row[11:15])) / _TICKS)
    return table


def _tree(table: dict[int, tuple[int, float]]) -> Iterator[int]:
    """This process and its descendants."""
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in table.items():
        children.setdefault(parent, []).append(pid)
    waiting = [os.getpid()]
    while waiting:
        pid = waiting.pop()
        yield pid
        waiting += children.get(pid, [])


def tree_cpu_s() -> float:
    """CPU seconds of this process, its descendants, and all that they have reaped."""
    table = _table()
    return sum(table[pid][1] for pid in _tree(table) if pid in table)


def tree_memory_bytes() -> int:
    """Resident bytes of this process and its descendants; shared pages count once."""
    return sum(map(_memory_bytes, _tree(_table())))


def _memory_bytes(pid: int) -> int:
    folder = Path("/proc", str(pid))
    try:
        for line in (folder / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        # Another user's process: what it does not share is a lower bound.
        with contextlib.suppress(OSError, ValueError):
            _, resident, shared = (folder / "statm").read_text().split()[:3]
            return (int(resident) - int(shared)) * _PAGE_BYTES
    return 0


def disk_bytes(folder: Path) -> int:
    """Bytes of disk that the files of a folder take; hard links count once."""
    seen: dict[tuple[int, int], int] = {}
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            info = path.lstat()
            seen[info.st_dev, info.st_ino] = info.st_blocks * 512
    return sum(seen.values())
