"""Values and clocks of the bench."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import psutil


@dataclass(frozen=True)
class Row:
    """One measured figure.

    Attributes:
        name: What was measured, and against what.
        value: In ``unit``.
        baseline: The same quantity of the named baseline, measured in the same run, or ``None``.
        ratio: How many times better than the baseline (or the cost ratio where ``bound`` is <=).
        bound: The promise, for people.
        holds: Whether it holds; ``None`` where nothing is promised.
    """

    name: str
    value: float
    unit: str
    baseline: float | None = None
    ratio: float | None = None
    bound: str = ""
    holds: bool | None = None

    def to_json(self) -> dict[str, Any]:
        """Rounded for a readable file."""
        return {k: round(v, 5) if isinstance(v, float) else v for k, v in asdict(self).items()}


def median_s(action: Callable[[], object], repeats: int, pause_s: float = 0.0) -> float:
    """Median wall time of ``action``; ``pause_s`` between calls is not counted."""
    times = []
    for _ in range(repeats):
        time.sleep(pause_s)
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def tree_cpu_s() -> float:
    """CPU seconds used so far by this process, its children, and all that they have reaped."""
    total = 0.0
    me = psutil.Process()
    for process in [me, *me.children(recursive=True)]:
        try:
            t = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += t.user + t.system + t.children_user + t.children_system
    return total
