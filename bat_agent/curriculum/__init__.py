"""Curriculum: rounds, router, gate, fallback, teacher. It sees aggregates only."""

from __future__ import annotations

from bat_agent.curriculum.fallback import fallback_reason
from bat_agent.curriculum.gate import GateResult, TrainingHealth, gate
from bat_agent.curriculum.rounds import RoundPlan, StateRow, plan_round
from bat_agent.curriculum.router import route
from bat_agent.curriculum.scores import ControllerScores
from bat_agent.curriculum.teacher import best_so_far, detect_shift, round_report

__all__ = [
    "ControllerScores",
    "GateResult",
    "RoundPlan",
    "StateRow",
    "TrainingHealth",
    "best_so_far",
    "detect_shift",
    "fallback_reason",
    "gate",
    "plan_round",
    "round_report",
    "route",
]
