"""Which stage the next round aims at."""

from __future__ import annotations

from bat_agent.curriculum.scores import STAGE_NAMES, ControllerScores
from bat_env.errors import ConfigError
from bat_env.stages import Stage


def route(current: ControllerScores, held_candidate: ControllerScores | None = None) -> Stage:
    """Choose the target stage.

    Normally the stage with the lowest score. After a held gate: the stage that the held candidate
    had made worse by most, because that is what kept it from promotion; if it had made none
    worse, again the lowest. Ties go to the earliest stage.

    Args:
        current: Scores of the policy that the round starts from.
        held_candidate: Scores of the candidate that the last gate held, else ``None``.

    Raises:
        ConfigError: If no stage has a score.
    """
    names = [name for name in STAGE_NAMES if name in current.stages]
    if not names:
        raise ConfigError("Expected at least one stage score to route by, came none.")
    if held_candidate is not None:
        regressions = {
            name: current.stages[name] - held_candidate.stages[name]
            for name in names
            if name in held_candidate.stages
        }
        worst = max(regressions.values(), default=0.0)
        if worst > 0.0:
            return Stage[next(name for name in names if regressions.get(name) == worst)]
    lowest = min(current.stages[name] for name in names)
    return Stage[next(name for name in names if current.stages[name] == lowest)]
