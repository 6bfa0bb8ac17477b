"""The one rule that turns case scores into a task score, on every track.

A missing, unreadable or wrong-geometry case scores 0 and stays in the denominator.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

BOOTSTRAP_DRAWS: Final = 2000


@dataclass(frozen=True, slots=True)
class CaseScore:
    """What a metric says of one case.

    Attributes:
        score: In [0, 1]; 0 for a case that is missing, unreadable or of the wrong geometry.
        valid: Whether the output is present, readable, and of the contract's geometry, dtype and
            labels.
        message: Why it is not valid, or ``""``.
        secondary: Metric name -> value; ``None`` where it is not defined.
        properties: Host-measured facts of the output file.
        parts: JSON-able pieces that metrics over all cases pool (boxes, labels).
        answer: What was answered, without what belongs to the case, where two cases may have the
            same answer: a label, a letter, boxes, findings. Empty for images and masks. After a
            tab, how sure: probabilities, scores. Other forms of it follow on lines of their own.
        trivial: Name of the trivial method whose output this is, or ``""``.
    """

    score: float
    valid: bool
    message: str = ""
    secondary: Mapping[str, float | None] = field(default_factory=dict)
    properties: Mapping[str, Any] = field(default_factory=dict)
    parts: Mapping[str, Any] = field(default_factory=dict)
    answer: str = ""
    trivial: str = ""


@dataclass(frozen=True, slots=True)
class TaskScore:
    """A task score with everything that it was made of; maps key by case id."""

    score: float
    per_case: Mapping[str, float]
    valid: Mapping[str, bool]
    messages: Mapping[str, str]
    secondary: Mapping[str, float | None]
    ci95: tuple[float, float]
    properties: Mapping[str, Mapping[str, Any]]


def missing_case(message: str = "the output is missing") -> CaseScore:
    """The score of a case without a usable output."""
    return CaseScore(0.0, False, message)


def clip(value: float) -> float:
    """``value`` in [0, 1]; anything that is not finite is 0."""
    return min(1.0, max(0.0, float(value))) if math.isfinite(value) else 0.0


def rescale(value: float, zero: float, one: float) -> float:
    """``value`` on the line that maps ``zero`` to 0 and ``one`` to 1, clipped to [0, 1].

    Where ``one`` is not above ``zero`` there is no such line: 1 only for a value above both.
    """
    if one - zero <= 1e-12:
        return 1.0 if value > max(zero, one) else 0.0
    return clip((value - zero) / (one - zero))


def percentiles(draws: NDArray[np.float64], level: float = 0.95) -> tuple[float, float]:
    """Lower and upper bound that hold ``level`` of the draws, clipped to [0, 1]."""
    tail = 50.0 * (1.0 - level)
    low, high = np.percentile(draws, [tail, 100.0 - tail])
    return clip(low), clip(high)


def resamples(cases: int, *, seed: int = 0, draws: int = BOOTSTRAP_DRAWS) -> NDArray[np.int64]:
    """Bootstrap weights, shape (draws, cases): how often each case is in each resample."""
    rng = np.random.default_rng(seed)
    weights = np.zeros((draws, cases), np.int64)
    rows = np.repeat(np.arange(draws), cases)
    np.add.at(weights, (rows, rng.integers(0, cases, (draws, cases)).ravel()), 1)
    return weights


def bootstrap_ci(
    values: Iterable[float], *, seed: int = 0, draws: int = BOOTSTRAP_DRAWS, level: float = 0.95
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean over cases.

    Args:
        values: Case scores.
        seed: Seeds the draws.
        draws: Number of resamples.
        level: Coverage in (0, 1).

    Returns:
        Lower and upper bound; ``(0.0, 0.0)`` for no case.
    """
    data = np.fromiter(values, dtype=np.float64)
    if data.size == 0:
        return 0.0, 0.0
    rng = np.random.default_rng(seed)
    means = data[rng.integers(0, data.size, (draws, data.size))].mean(axis=1)
    return percentiles(means, level)


def aggregate(cases: Iterable[str], scores: Mapping[str, CaseScore], *, seed: int = 0) -> TaskScore:
    """Average the case scores of an instance.

    Args:
        cases: Every case of the instance; the denominator.
        scores: Case id -> its score; an absent case counts as missing.
        seed: Seeds the bootstrap.

    Returns:
        The mean with its interval, and the means of the secondary values that are defined.
    """
    rows = {case: scores.get(case) or missing_case() for case in cases}
    per_case = {case: clip(row.score) for case, row in rows.items()}
    names = dict.fromkeys(name for row in rows.values() for name in row.secondary)
    secondary: dict[str, float | None] = {}
    for name in names:
        values = [row.secondary.get(name) for row in rows.values()]
        known = [value for value in values if value is not None]
        secondary[name] = float(np.mean(known)) if known else None
    return TaskScore(
        score=clip(sum(per_case.values()) / len(per_case)) if per_case else 0.0,
        per_case=per_case,
        valid={case: row.valid for case, row in rows.items()},
        messages={case: row.message for case, row in rows.items() if row.message},
        secondary=secondary,
        ci95=bootstrap_ci(per_case.values(), seed=seed),
        properties={case: row.properties for case, row in rows.items()},
    )
