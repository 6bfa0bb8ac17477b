"""Which stage the next round aims at."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from bat_agent.curriculum.scores import STAGE_NAMES, ControllerScores
from bat_env.errors import ConfigError
from bat_env.stages import Stage

Rule: TypeAlias = Literal["lowest", "bottleneck"]

KNOWN: Final = 0.02
"""A stage that is hardly ever reached says nothing of the one after it."""


def route(
    current: ControllerScores,
    held_candidate: ControllerScores | None = None,
    rule: Rule = "lowest",
) -> Stage:
    """Choose the target stage.

    Normally the stage with the lowest score. After a held gate: the stage that the held candidate
    had made worse by most, because that is what kept it from promotion; if it had made none
    worse, again the lowest. Ties go to the earliest stage.

    In a whole workflow a stage can hardly score above the stage that it builds on, so the lowest
    score is often the last one, whatever broke. The rule ``"bottleneck"`` compares each stage with
    the one before it and takes the one that keeps least of it.

    Args:
        current: Scores of the policy that the round starts from.
        held_candidate: Scores of the candidate that the last gate held, else ``None``.
        rule: ``"lowest"`` (the reference method) or ``"bottleneck"``.

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
    weakness = kept(current) if rule == "bottleneck" else current.stages
    lowest = min(weakness[name] for name in names)
    return Stage[next(name for name in names if weakness[name] == lowest)]


def kept(scores: ControllerScores) -> dict[str, float]:
    """Stage -> share of the score of the stage before it, at most 1; of 1 for the first stage.

    A stage whose predecessor scores less than :data:`KNOWN` counts as 1: it was never tried.
    """
    before, shares = 1.0, {}
    for name in STAGE_NAMES:
        if name not in scores.stages:
            continue
        score = scores.stages[name]
        shares[name] = min(1.0, score / before) if before >= KNOWN else 1.0
        before = score
    return shares
