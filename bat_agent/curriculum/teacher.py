"""The Curriculum Teacher: a domain-shift detector and the report of a round, by rules.

It compares two distributions over (track, stage): what the round trained on, and what the
controller scores say is still missing. Both are made of aggregates, and so is its report.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from bat_agent.curriculum.gate import GateResult
from bat_agent.curriculum.rounds import RoundPlan
from bat_agent.curriculum.scores import STAGE_NAMES, ControllerScores
from bat_env.stages import STAGE_WEIGHTS, Stage

SCHEMA_VERSION: Final = 1
Spread: TypeAlias = Literal["equal", "needed"]
"""How a round's groups are spread over the tracks."""
FORGETTING: Final = 0.02
"""A score this far below its best so far is flagged."""


@dataclass(frozen=True, slots=True)
class CellShift:
    """One (track, stage): its share of training and of what is missing, both in [0, 1]."""

    track: str
    stage: str
    trained: float
    needed: float
    score: float

    @property
    def gap(self) -> float:
        """Needed minus trained: positive where the round trained too little."""
        return self.needed - self.trained


@dataclass(frozen=True, slots=True)
class ShiftReport:
    """The detector's findings.

    Attributes:
        total_variation: Half the L1 distance of the two distributions, in [0, 1].
        jensen_shannon: Their Jensen-Shannon distance (base 2), in [0, 1].
        cells: Every (track, stage), largest gap first.
        forgetting: ``stage`` or ``track`` name -> drop from its best so far, where flagged.
    """

    total_variation: float
    jensen_shannon: float
    cells: tuple[CellShift, ...]
    forgetting: Mapping[str, float]


def trained_distribution(plan: RoundPlan) -> dict[tuple[str, str], float]:
    """Share of the round's groups per (track, stage).

    An end-to-end group counts for all five stages by their weights in the agentic score.
    """
    mass: dict[tuple[str, str], float] = {}
    for draw in plan.draws:
        track, focus = draw.state.track, draw.state.focus
        shares = (
            {stage.name: weight for stage, weight in STAGE_WEIGHTS.items()}
            if focus == Stage.E2E.name
            else {focus: 1.0}
        )
        for stage, share in shares.items():
            mass[(track, stage)] = mass.get((track, stage), 0.0) + share
    total = sum(mass.values())
    return {key: value / total for key, value in mass.items()} if total else {}


def needed_distribution(scores: ControllerScores) -> dict[tuple[str, str], float]:
    """Share of the missing score per (track, stage): weight times (1 - score), normalised."""
    mass = {
        (track, stage): STAGE_WEIGHTS[Stage[stage]] * (1.0 - value)
        for track, stages in scores.track_stages.items()
        for stage, value in stages.items()
    }
    total = sum(mass.values())
    return {key: value / total for key, value in mass.items()} if total > 0.0 else {}


def track_shares(scores: ControllerScores) -> dict[str, float]:
    """Share of the next round's groups for each track, by what is missing; they add up to 1.

    Half of a round goes to all tracks alike, so that none is forgotten; the other half by the
    missing score of each (:func:`needed_distribution`).
    """
    needed: dict[str, float] = dict.fromkeys(scores.track_stages, 0.0)
    for (track, _), share in needed_distribution(scores).items():
        needed[track] += share
    total = sum(needed.values()) or 1.0
    equal = 1.0 / max(1, len(needed))
    return {
        track: 0.5 * equal + 0.5 * (share / total if any(needed.values()) else equal)
        for track, share in needed.items()
    }


def detect_shift(
    plan: RoundPlan, scores: ControllerScores, best: ControllerScores | None = None
) -> ShiftReport:
    """Measure how far a round's training lay from what evaluation asks for.

    Args:
        plan: The states of the round.
        scores: Controller scores of the policy after it.
        best: Per-score maxima so far (see :func:`best_so_far`); ``None`` flags nothing.
    """
    trained, needed = trained_distribution(plan), needed_distribution(scores)
    keys = sorted(set(trained) | set(needed))
    cells = [
        CellShift(
            track,
            stage,
            trained.get((track, stage), 0.0),
            needed.get((track, stage), 0.0),
            scores.track_stages.get(track, {}).get(stage, scores.stages.get(stage, 0.0)),
        )
        for track, stage in keys
    ]
    forgetting: dict[str, float] = {}
    if best is not None:
        pairs = [
            *((name, best.stages.get(name), scores.stages.get(name)) for name in STAGE_NAMES),
            *((t, best.tracks.get(t), scores.tracks.get(t)) for t in sorted(best.tracks)),
            ("task", best.task, scores.task),
        ]
        for name, before, now in pairs:
            if before is not None and now is not None and before - now > FORGETTING:
                forgetting[name] = before - now
    return ShiftReport(
        total_variation=0.5 * sum(abs(c.trained - c.needed) for c in cells) if needed else 0.0,
        jensen_shannon=_jensen_shannon(cells) if needed else 0.0,
        cells=tuple(sorted(cells, key=lambda c: (-c.gap, c.track, c.stage))),
        forgetting=forgetting,
    )


def best_so_far(best: ControllerScores | None, scores: ControllerScores) -> ControllerScores:
    """Per-score maximum of two evaluations; counts and pairing are those of the newer."""
    if best is None:
        return scores
    stages = {s: max(best.stages.get(s, 0.0), v) for s, v in scores.stages.items()}
    tracks = {t: max(best.tracks.get(t, 0.0), v) for t, v in scores.tracks.items()}
    track_stages = {
        t: {s: max(best.track_stages.get(t, {}).get(s, 0.0), v) for s, v in row.items()}
        for t, row in scores.track_stages.items()
    }
    return ControllerScores(
        overall=max(best.overall, scores.overall),
        agentic=max(best.agentic, scores.agentic),
        task=max(best.task, scores.task),
        stages=stages,
        tracks=tracks,
        track_stages=track_stages,
        episodes=scores.episodes,
        completed=scores.completed,
        failures=scores.failures,
        pairing=scores.pairing,
    )


def round_report(
    plan: RoundPlan,
    before: ControllerScores,
    after: ControllerScores,
    shift: ShiftReport,
    decision: GateResult,
    *,
    fallback: str | None = None,
) -> tuple[dict[str, Any], str]:
    """The round's report as JSON values and as Markdown. Equal inputs give equal bytes."""
    value = {
        "schema_version": SCHEMA_VERSION,
        "round": plan.round_id,
        "target": plan.target,
        "plan_digest": plan.digest,
        "mixture": plan.mixture,
        "reused_states": plan.reused,
        "before": before.to_json(),
        "after": after.to_json(),
        "gate": decision.to_json(),
        "fallback": fallback,
        "shift": {
            "total_variation": shift.total_variation,
            "jensen_shannon": shift.jensen_shannon,
            "cells": [
                {
                    "track": c.track,
                    "stage": c.stage,
                    "trained": c.trained,
                    "needed": c.needed,
                    "score": c.score,
                    "gap": c.gap,
                }
                for c in shift.cells
            ],
            "forgetting": dict(shift.forgetting),
        },
    }
    return value, _markdown(plan, before, after, shift, decision, fallback)


def _markdown(
    plan: RoundPlan,
    before: ControllerScores,
    after: ControllerScores,
    shift: ShiftReport,
    decision: GateResult,
    fallback: str | None,
) -> str:
    rows = [
        ("Overall", before.overall, after.overall),
        ("Agentic", before.agentic, after.agentic),
        ("Task", before.task, after.task),
        *((s, before.stages[s], after.stages.get(s, math.nan)) for s in sorted(before.stages)),
    ]
    lines = [
        f"# Round {plan.round_id}: {'promoted' if decision.promoted else 'held'}",
        "",
        f"Target stage: {plan.target} ({Stage[plan.target].title}). {len(plan.draws)} groups in "
        f"{plan.steps} batches; {plan.reused} of them repeat a state of this round.",
        "",
        "| score | before | after | change |",
        "|---|---:|---:|---:|",
        *(f"| {name} | {a:.3f} | {b:.3f} | {b - a:+.3f} |" for name, a, b in rows),
        "",
        "## Gate",
        "",
        "| check | value | limit | result |",
        "|---|---:|---:|---|",
        *(
            f"| {c.name}{f' ({c.detail})' if c.detail else ''} | {c.value:+.3f} | {c.limit:.2f} "
            f"| {'pass' if c.passed else 'FAIL'} |"
            for c in decision.checks
        ),
        "",
        "## Domain shift",
        "",
        f"Distance between what was trained and what is still missing: total variation "
        f"{shift.total_variation:.3f}, Jensen-Shannon {shift.jensen_shannon:.3f}.",
        "",
        "| track | stage | score | trained | needed | gap |",
        "|---|---|---:|---:|---:|---:|",
        *(
            f"| {c.track} | {c.stage} | {c.score:.3f} | {c.trained:.3f} | {c.needed:.3f} "
            f"| {c.gap:+.3f} |"
            for c in shift.cells
        ),
        "",
        "Forgetting: "
        + (", ".join(f"{k} -{v:.3f}" for k, v in shift.forgetting.items()) or "none flagged")
        + ".",
    ]
    if fallback:
        lines += ["", f"Fallback: {fallback}"]
    return "\n".join(lines) + "\n"


def _jensen_shannon(cells: list[CellShift]) -> float:
    total = 0.0
    for cell in cells:
        middle = (cell.trained + cell.needed) / 2.0
        for share in (cell.trained, cell.needed):
            if share > 0.0:
                total += 0.5 * share * math.log2(share / middle)
    return math.sqrt(max(0.0, total))
