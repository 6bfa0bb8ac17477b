"""Runs agents and policies on environments, many at once.

The names of :mod:`~bat_agent.rollout.waves` load torch; they are looked up when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bat_agent.rollout.episodes import (
    AGENT_ERROR,
    EnvPool,
    EpisodeResult,
    GroupMismatchError,
    Progress,
    ResetSpec,
    run_agent,
)

if TYPE_CHECKING:
    from bat_agent.policy.limits import TokenLimits
    from bat_agent.rollout.waves import RolloutRow, WaveStats, run_policy, run_rows

__all__ = [
    "AGENT_ERROR",
    "EnvPool",
    "EpisodeResult",
    "GroupMismatchError",
    "Progress",
    "ResetSpec",
    "RolloutRow",
    "TokenLimits",
    "WaveStats",
    "run_agent",
    "run_policy",
    "run_rows",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from bat_agent.rollout import waves

        return getattr(waves, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
