"""What an episode tells besides observation and reward: ``info`` and the final result.

Everything here is JSON-able, made of fresh objects, and equal for equal seeds and actions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from bat_env.episode import Episode
from bat_env.rubric.base import RubricResult
from bat_env.stages import Stage
from bat_env.tasks.spec import TaskSpec
from bat_env.taxonomy import faults, tally
from bat_env.trajectory import plain

PRIVATE_KEYS: Final[frozenset[str]] = frozenset({"score", "items", "components", "result", "judge"})
"""Keys of ``info`` for trainers only; agents and doors never see them during an episode."""

IDENTITY_KEYS: Final[frozenset[str]] = frozenset(
    {"index", "split", "seed", "state_id", "instance_digest", "workspace_digest", "rubric_digest"}
)
"""Keys that name a held-out instance: generators are public, so a name is as good as its truth."""


def public_info(info: Mapping[str, Any]) -> dict[str, Any]:
    """The part of ``info`` that an agent may see: no score, item, component or result.

    Of a held-out episode neither split, index nor digest: with them the host's generators make
    the truth again.
    """
    hidden = PRIVATE_KEYS | (IDENTITY_KEYS if info.get("split") == "heldout" else frozenset())
    return {key: value for key, value in info.items() if key not in hidden}


def start_info(episode: Episode, index: int, digests: Mapping[str, str]) -> dict[str, Any]:
    """The part of ``info`` that stays the same through an episode."""
    return {
        "task": episode.task,
        "tier": episode.tier,
        "split": episode.split,
        "size": episode.size,
        "stage": episode.focus.name,
        "outcome": episode.outcome,
        "state_id": episode.state_id,
        "index": index,
        **digests,
    }


def judge_info(episode: Episode) -> dict[str, Any]:
    """Which judge has a part in the score: ``{"judge": ...}``, or nothing where there is none.

    Its model and the digests of its prompt and contract; no finding.
    """
    judge = episode.evidence.judge
    if judge is None:
        return {}
    return {"judge": {k: judge[k] for k in ("model", "prompt_digest", "contract_digest")}}


def _read_by_judge(episode: Episode, rubric: RubricResult) -> dict[str, Any]:
    """The judge's part in a result: identity, findings, and what the rules alone say."""
    judge = episode.evidence.judge
    if judge is None:
        return {}
    rules = rubric.components.get("rules", {})
    return {"judge": {**plain(judge), "rules_score": rules.get("score")}}


def score_info(
    episode: Episode, rubric: RubricResult | None, score: float, spec: TaskSpec
) -> dict[str, Any]:
    """The part of a step's ``info`` that is for trainers only.

    Args:
        episode: The record.
        rubric: The last evaluation, or ``None`` if there was none yet.
        score: Episode score in [0, 1].
        spec: Its task.

    Returns:
        ``score``; ``items``: item id -> [state, value]; ``components``: score parts; and, when the
        episode is over, ``result``. An invalid episode has neither score nor result: both are
        ``None``.
    """
    if episode.status == "invalid":
        return {"score": None, "items": {}, "components": {}, "result": None}
    if rubric is None:
        return {"score": score, "items": {}, "components": {}}
    info: dict[str, Any] = {
        "score": score,
        "items": {verdict.item: [verdict.state, verdict.value] for verdict in rubric.verdicts},
        "components": {
            **plain(dict(rubric.components)),
            "agentic": rubric.agentic,
            "task": rubric.task,
        },
    }
    if episode.status != "running":
        info["result"] = final_result(episode, rubric, score, spec)
    return info


def final_result(
    episode: Episode, rubric: RubricResult, score: float, spec: TaskSpec
) -> dict[str, Any]:
    """The final scores of an episode that has a score.

    Args:
        episode: The finished record.
        rubric: The last evaluation.
        score: Episode score in [0, 1]; 0 for a disqualified episode, whatever the rubric says.
        spec: Its task.

    Returns:
        Scores; counts; ``errors``: counts of what went wrong in cells; ``taxonomy``: kind of fault
        -> stages in which it occurred.
    """
    out = episode.status == "disqualified"
    grade = episode.evidence.grade
    return {
        "score": score,
        "agentic": 0.0 if out else rubric.agentic,
        "task": 0.0 if out and episode.focus is Stage.E2E else rubric.task,
        "stages": {s.name: 0.0 if out else r.reward for s, r in sorted(rubric.stages.items())},
        "task_ci95": None if out or grade is None else list(grade.ci95),
        "secondary": {} if out or grade is None else plain(dict(grade.secondary)),
        "false_claims": rubric.false_claims,
        "status": episode.status,
        "end_reason": episode.end_reason,
        "turns": len(episode.turns),
        "calls": len(episode.cells),
        "errors": failures_of(episode),
        "taxonomy": tally(faults(episode, rubric, spec)),
        **_read_by_judge(episode, rubric),
    }


def failures_of(episode: Episode) -> dict[str, Any]:
    """Counts of what went wrong, by kind: aggregates that may leave an evaluation."""
    limits = Counter(c.result.limit for c in episode.cells if c.result.limit is not None)
    return {
        "invalid_actions": sum(not turn.valid for turn in episode.turns),
        "failed_cells": sum(not cell.result.ok for cell in episode.cells),
        "limits": dict(sorted(limits.items())),
        "violations": dict(sorted(Counter(v.kind for v in episode.violations).items())),
    }
