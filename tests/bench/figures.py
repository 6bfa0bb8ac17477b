"""A figure of the sandbox bench: its samples, and the row that they become."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Figure:
    """One row of the table.

    Attributes:
        key: Stable name for machines.
        name: What was measured, for people.
        unit: Of ``p50`` and ``p90``.
        p50, p90: Median and 90th percentile of ``n`` samples.
        n: Samples.
        baseline: ``key`` of the figure that ``ratio`` compares with, or empty.
        ratio: This figure's median over the baseline's (for a throughput likewise).
        promise: The bound, for people; empty where nothing is promised.
        holds: Whether the promise holds in this run; ``None`` where it cannot be said.
    """

    key: str
    name: str
    unit: str
    p50: float
    p90: float
    n: int
    baseline: str = ""
    ratio: float | None = None
    promise: str = ""
    holds: bool | None = None

    def to_json(self) -> dict[str, Any]:
        """Rounded for a readable file."""
        return {k: round(v, 4) if isinstance(v, float) else v for k, v in asdict(self).items()}


def percentile(samples: Sequence[float], percent: float) -> float:
    """Percentile by linear interpolation; ``samples`` must not be empty."""
    ordered = sorted(samples)
    at = (len(ordered) - 1) * percent / 100
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


@dataclass(frozen=True)
class Promise:
    """A bound on a figure's median ``value`` against its baseline's median ``base``."""

    text: str
    holds: Callable[[float, float], bool]


def make_figure(
    key: str,
    name: str,
    unit: str,
    samples: Sequence[float],
    *,
    baseline: str = "",
    base: float | None = None,
    promise: Promise | None = None,
) -> Figure:
    """Summarise ``samples``; ``base`` is the baseline's median in the same unit, if measured."""
    middle = statistics.median(samples)
    known = base is not None and base > 0
    return Figure(
        key=key,
        name=name,
        unit=unit,
        p50=middle,
        p90=percentile(samples, 90),
        n=len(samples),
        baseline=baseline if known else "",
        ratio=middle / base if known and base else None,
        promise=promise.text if promise else "",
        holds=promise.holds(middle, base) if promise and known and base is not None else None,
    )
