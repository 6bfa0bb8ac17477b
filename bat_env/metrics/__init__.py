"""Task metrics of all tracks over numpy and scipy, and the one rule for missing cases. No torch."""

from __future__ import annotations

from bat_env.metrics.base import Case, Metric, UnreadableError
from bat_env.metrics.registry import load_metric, metric_names
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
    "Case",
    "CaseScore",
    "Metric",
    "TaskScore",
    "UnreadableError",
    "aggregate",
    "agreement",
    "bootstrap_ci",
    "clip",
    "inspect_output",
    "load_metric",
    "metric_names",
    "missing_case",
    "score_case",
]
