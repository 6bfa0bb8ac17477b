"""Task metrics over numpy and scipy, and the one rule for missing cases. No torch here."""

from __future__ import annotations

from bat_env.metrics.rule import (
    CaseScore,
    TaskScore,
    aggregate,
    bootstrap_ci,
    clip,
    missing_case,
)
from bat_env.metrics.seg import agreement, inspect_output, score_case

__all__ = [
    "CaseScore",
    "TaskScore",
    "aggregate",
    "agreement",
    "bootstrap_ci",
    "clip",
    "inspect_output",
    "missing_case",
    "score_case",
]
