"""The five workflow stages, their weights, and the arithmetic of scores.

Source: BaT, section on scores: ``agentic = .25 S1 + .15 S2 + .35 S3 + .15 S4 + .10 S5`` and
``overall = .5 task + .5 agentic``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final

from bat_env.errors import unknown_name


class Stage(IntEnum):
    """A workflow stage, or ``E2E`` for the whole workflow. The value is the observation's index."""

    S1 = 0
    S2 = 1
    S3 = 2
    S4 = 3
    S5 = 4
    E2E = 5

    @property
    def title(self) -> str:
        """Name for people, for example ``"Plan"`` for S1."""
        return ("Plan", "Setup", "Validate", "Infer", "Submit", "End to end")[int(self)]

    @classmethod
    def parse(cls, value: Stage | str | int) -> Stage:
        """Read a stage from its name (``"S3"``), its index, or itself.

        Raises:
            UnknownNameError: If ``value`` names no stage.
        """
        if isinstance(value, Stage):
            return value
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 5:
            return cls(value)
        name = value.upper() if isinstance(value, str) else ""
        if name in cls.__members__:
            return cls[name]
        raise unknown_name("stage", value, cls.__members__)


WORK_STAGES: Final[tuple[Stage, ...]] = (Stage.S1, Stage.S2, Stage.S3, Stage.S4, Stage.S5)
"""The five stages that carry work, in order."""

STAGE_WEIGHTS: Final[Mapping[Stage, float]] = MappingProxyType(
    {Stage.S1: 0.25, Stage.S2: 0.15, Stage.S3: 0.35, Stage.S4: 0.15, Stage.S5: 0.10}
)
"""Weight of each stage in the agentic score."""

OUTCOMES: Final[tuple[str, ...]] = ("success", "recovery", "failure")
"""Stage Bank outcome labels."""

SCORE_QUANTUM: Final[float] = 2.0**-20
"""Scores are whole multiples of this, so that float64 sums of score changes are exact."""


def quantize(score: float) -> float:
    """Round a score in [0, 1] to a multiple of 2**-20.

    Raises:
        ValueError: If ``score`` is not finite.
    """
    if not math.isfinite(score):
        raise ValueError(f"A score must be finite, got {score!r}.")
    return round(min(1.0, max(0.0, score)) / SCORE_QUANTUM) * SCORE_QUANTUM


def agentic(stages: Mapping[Stage, float | None]) -> float | None:
    """Weighted mean of the stage rewards in [0, 1].

    A stage that is absent from ``stages`` does not apply: it drops out and the weights renormalise.
    A stage that is present with ``None`` is missing evidence: the result is ``None``, never 0.
    """
    if any(value is None for value in stages.values()):
        return None
    weight = sum(STAGE_WEIGHTS[s] for s in stages)
    if weight == 0.0:
        return None
    return sum(STAGE_WEIGHTS[s] * v for s, v in stages.items() if v is not None) / weight


def overall(task: float | None, agentic_score: float | None) -> float | None:
    """``.5 task + .5 agentic``; ``None`` where either is missing evidence."""
    if task is None or agentic_score is None:
        return None
    return 0.5 * task + 0.5 * agentic_score
