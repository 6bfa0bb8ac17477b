"""The learning study: several ways of training, equal rollout budgets, several seeds."""

from bat_agent.study.arms import ARMS, HEADLINE, MIXES, Arm, parse_arms
from bat_agent.study.driver import Study, study_config

__all__ = ["ARMS", "HEADLINE", "MIXES", "Arm", "Study", "parse_arms", "study_config"]
