"""The promotion gate: six checks that a candidate passes together, or is held."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from bat_agent.curriculum.scores import ControllerScores
from bat_env.errors import ConfigError

MAX_OVERALL_DROP: Final = 0.01
MAX_TASK_DROP: Final = 0.03
MAX_TRACK_DROP: Final = 0.05
MAX_STAGE_DROP: Final = 0.03
GUARDED_STAGES: Final[tuple[str, ...]] = ("S3", "S4", "S5")
COLLAPSE_DROP: Final = 0.20
MAX_ABORT_RATE: Final = 0.25

# Scores are sums of many float64 terms; a drop that is the limit but for rounding passes.
_SLACK: Final = 1e-9


@dataclass(frozen=True, slots=True)
class TrainingHealth:
    """What training reports about itself.

    Attributes:
        finite: Every loss, gradient norm and KL was finite.
        rollouts: Rollouts started.
        aborted: Rollouts without a reward (infrastructure).
    """

    finite: bool
    rollouts: int
    aborted: int

    @property
    def abort_rate(self) -> float:
        """Aborted share in [0, 1]; 1 when nothing ran."""
        return self.aborted / self.rollouts if self.rollouts else 1.0


@dataclass(frozen=True, slots=True)
class Check:
    """One check: what was measured, and the limit it had to keep."""

    name: str
    passed: bool
    value: float
    limit: float
    detail: str = ""


@dataclass(frozen=True, slots=True)
class GateResult:
    """The six checks in fixed order."""

    checks: tuple[Check, ...]

    @property
    def promoted(self) -> bool:
        """Whether all checks passed."""
        return all(check.passed for check in self.checks)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Names of the checks that failed."""
        return tuple(check.name for check in self.checks if not check.passed)

    def to_json(self) -> dict[str, Any]:
        """Plain values for the round's record."""
        return {
            "promoted": self.promoted,
            "checks": [
                {
                    "name": c.name,
                    "passed": c.passed,
                    "value": c.value,
                    "limit": c.limit,
                    "detail": c.detail,
                }
                for c in self.checks
            ],
        }


def gate(
    incumbent: ControllerScores,
    candidate: ControllerScores,
    health: TrainingHealth,
    doubt: float = 0.0,
) -> GateResult:
    """Compare a candidate with the policy it started from.

    A track's mean rests on a tenth of the episodes or less. Where they scatter, one of seven
    tracks falls by chance in most rounds, and a candidate that is better is held for it.

    Args:
        incumbent: Scores of the policy that the round began with.
        candidate: Scores of what it made.
        health: What training reports of itself.
        doubt: Standard errors of the difference that a track's drop is forgiven beyond its limit.
            0 is the reference method.

    Raises:
        ConfigError: If the two were not evaluated on exactly the same cells with the same
            sampling settings; their difference would mean nothing.
    """
    if (
        incumbent.pairing != candidate.pairing
        or dict(incumbent.episodes) != dict(candidate.episodes)
        or set(incumbent.tracks) != set(candidate.tracks)
        or set(incumbent.stages) != set(candidate.stages)
    ):
        raise ConfigError(
            "Expected incumbent and candidate to be evaluated on exactly the same cells, came two "
            "different sets. Evaluate both again on the controller suite."
        )
    overall_drop = incumbent.overall - candidate.overall
    task_drop = incumbent.task - candidate.task
    tracks = {
        t: incumbent.tracks[t]
        - candidate.tracks[t]
        - doubt * math.hypot(incumbent.errors.get(t, 0.0), candidate.errors.get(t, 0.0))
        for t in sorted(incumbent.tracks)
    }
    stages = {
        s: incumbent.stages[s] - candidate.stages[s]
        for s in GUARDED_STAGES
        if s in incumbent.stages
    }
    return GateResult(
        (
            _at_most("overall", overall_drop, MAX_OVERALL_DROP),
            _at_most("task", task_drop, MAX_TASK_DROP),
            _worst("tracks", tracks, MAX_TRACK_DROP),
            _worst("stages", stages, MAX_STAGE_DROP),
            Check("collapse", overall_drop < COLLAPSE_DROP, overall_drop, COLLAPSE_DROP),
            Check(
                "health",
                health.finite and health.abort_rate <= MAX_ABORT_RATE,
                health.abort_rate,
                MAX_ABORT_RATE,
                "" if health.finite else "a training metric was not finite",
            ),
        )
    )


def _at_most(name: str, drop: float, limit: float, detail: str = "") -> Check:
    return Check(name, drop <= limit + _SLACK, drop, limit, detail)


def _worst(name: str, drops: dict[str, float], limit: float) -> Check:
    worst = max(drops, key=lambda key: drops[key], default="")
    return _at_most(name, drops.get(worst, 0.0), limit, worst)
