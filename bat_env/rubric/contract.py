"""The compiled contract: which items an episode is scored by, and the arithmetic over them.

``evaluate`` is a pure function of the episode record, the contract and the private truth. It never
raises, whatever bytes an agent wrote.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import json
import math
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, Final

from bat_env.episode import CellRecord, Episode
from bat_env.errors import unknown_name
from bat_env.rubric import build, claims, infer, plan, setup, submit, validate
from bat_env.rubric.base import (
    CONTRACT_VERSION,
    Context,
    Item,
    RubricResult,
    StageResult,
    Verdict,
)
from bat_env.rubric.claims import matching, own_paths
from bat_env.sandbox.base import CellResult, Delta
from bat_env.stages import OUTCOMES, Stage, agentic, overall, quantize
from bat_env.tasks.spec import TaskSpec, TierSpec

NO_WORK: Final[str] = "Nothing earns before one successful cell has changed the workspace."
HANDED: Final[str] = "What was handed over met this already."
FORM_ALONE: Final[str] = "Order alone earns nothing: nothing else of this stage was found true."


def _items(spec: TaskSpec, tier: TierSpec, recovery: bool) -> tuple[Item, ...]:
    """The items of every track: what differs between tasks stands in their task.yaml."""
    return (
        *plan.items(spec, tier),
        *setup.items(spec),
        *validate.items(spec, recovery=recovery),
        *infer.items(spec),
        *submit.items(spec),
    )


# CPython 3.11 keeps the depth of a syntax tree per interpreter: two threads that convert trees at
# once make each other fail ("AST constructor recursion depth mismatch").
_TREES = threading.Lock()


def _code_digest(module: ModuleType) -> str:
    """Digest of a module's code without comments, docstrings and layout."""
    with _TREES:
        return _locked_code_digest(module)


@functools.cache
def _locked_code_digest(module: ModuleType) -> str:
    tree = ast.parse(inspect.getsource(module))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            kept = [
                n
                for n in body
                if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))
            ]
            node.body = kept or [ast.Pass()]  # type: ignore[attr-defined]
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class RubricContract:
    """The items by which one kind of episode is scored.

    Attributes:
        task: Task id.
        tier: ``"lite"``, ``"standard"`` or ``"pro"``.
        focus: The scored stage, or E2E for all five.
        outcome: Stage Bank outcome, or ``None``.
        version: Version of the contract's rules.
        items: In order of stages.
        digest: sha256 over the items, the constants they use and the code that decides them.
    """

    task: str
    tier: str
    focus: Stage
    outcome: str | None
    version: int
    items: tuple[Item, ...]
    digest: str

    def evaluate(self, episode: Episode, ctx: Context, final: bool) -> RubricResult:
        """Score an episode, at a step or at hand-in.

        Args:
            episode: The record; not changed.
            ctx: Contract and private truth of its task.
            final: Whether the episode was handed in. Before that, items that rest on truth or on
                re-runs are pending and count as 0.

        Returns:
            The verdicts and scores. ``score`` is ``None`` only at hand-in and only where
            infrastructure lost evidence.
        """
        verdicts = self._verdicts(episode, ctx, final)
        by_item = {v.item: v for v in verdicts}
        stages = {}
        for stage in sorted({item.stage for item in self.items}):
            result = self._stage(stage, by_item, episode)
            if result is not None:
                stages[stage] = result
        task = self._task(episode, ctx, final)
        rewards = {stage: result.reward for stage, result in stages.items()}
        agentic_score = agentic(rewards)
        score: float | None
        if episode.status == "disqualified" or not episode.worked:
            score = 0.0
        elif self.focus is not Stage.E2E:
            score = rewards.get(self.focus, 0.0)
        else:
            score = overall(0.0 if not final else task, agentic_score)
        return RubricResult(
            digest=self.digest,
            verdicts=verdicts,
            stages=stages,
            agentic=agentic_score,
            task=task,
            score=None if score is None else quantize(score),
            false_claims=sum(v.false_claim for v in verdicts),
            components=_components(verdicts, stages),
        )

    def _verdicts(self, episode: Episode, ctx: Context, final: bool) -> tuple[Verdict, ...]:
        if episode.status == "disqualified":
            why = "Disqualified by a second violation."
            return tuple(Verdict(item.id, "fail", message=why) for item in self.items)
        if not episode.worked:
            return tuple(Verdict(item.id, "fail", message=NO_WORK) for item in self.items)
        verdicts = tuple(item.predicate(episode, ctx, final) for item in self.items)
        if not final:
            return verdicts
        return self._without_hollow_form(self._without_handed(verdicts, episode, ctx))

    def _without_handed(
        self, verdicts: tuple[Verdict, ...], episode: Episode, ctx: Context
    ) -> tuple[Verdict, ...]:
        """Items of S1 and S2 that what a bank state handed over met, and still does, drop out.

        To write a file again that was right before is no work, whatever else is changed in it. What
        was mended is, also where the rest of what was handed over is left as it is.
        """
        evidence = episode.evidence
        if evidence.handed is None and "handed" not in evidence.lost:
            return verdicts
        found = list(verdicts)
        for stage in (Stage.S1, Stage.S2):
            rows = [n for n, item in enumerate(self.items) if item.stage is stage]
            for n in rows:
                found[n] = _handed_verdict(self.items[n], episode, ctx)
            told = [n for n in rows if self.items[n].at_hand_in]
            if told and all(found[n].state == "na" for n in told):
                for n in rows:
                    found[n] = replace(found[n], state="na", value=0.0, message=HANDED)
        return tuple(found)

    def _without_hollow_form(self, verdicts: tuple[Verdict, ...]) -> tuple[Verdict, ...]:
        """Items of order count where something that rests on truth holds in the same stage.

        Without that, files of any content in the right order would be paid for.
        """
        rows = list(zip(self.items, verdicts, strict=True))
        hollow = {
            stage
            for stage in {item.stage for item in self.items}
            if (told := [v.state for i, v in rows if i.stage is stage and i.at_hand_in])
            and not any(state in ("pass", "null") for state in told)
        }
        return tuple(
            replace(v, state="fail", value=0.0, message=FORM_ALONE)
            if item.stage in hollow and v.state == "pass"
            else v
            for item, v in rows
        )

    def _stage(
        self, stage: Stage, verdicts: Mapping[str, Verdict], episode: Episode
    ) -> StageResult | None:
        """Score, eta and reward of a stage; ``None`` when no item of it applies."""
        rows = [(i, verdicts[i.id]) for i in self.items if i.stage is stage]
        rows = [(item, v) for item, v in rows if v.state != "na"]
        if not rows:
            return None
        handed = stage in (Stage.S1, Stage.S2) and episode.evidence.handed is not None
        seen = as_own(episode) if handed else episode
        eta = evidence_share(seen, [item for item, _ in rows])
        if any(v.state == "null" for _, v in rows):
            return StageResult(stage, None, eta, None)
        weight = sum(item.weight for item, _ in rows)
        score = sum(item.weight * v.value for item, v in rows) / weight
        return StageResult(stage, score, eta, eta * score)

    def _task(self, episode: Episode, ctx: Context, final: bool) -> float | None:
        """Task score from this episode's own outputs; E2E at hand-in only."""
        if self.focus is not Stage.E2E or not final:
            return None
        if episode.status == "disqualified" or not episode.worked:
            return 0.0
        grade = episode.evidence.grade
        if grade is None:
            return None
        own = own_paths(episode)
        path = ctx.spec.output.path
        foreign = [c for c in ctx.instance.cases if path.format(case=c) not in own]
        if foreign and episode.evidence.grade_own is not None:
            score = episode.evidence.grade_own.score
        elif all(grade.per_case.get(c, 0.0) == 0.0 for c in foreign):
            score = grade.score
        else:
            score = sum(
                grade.per_case.get(c, 0.0) for c in ctx.instance.cases if c not in foreign
            ) / max(1, len(ctx.instance.cases))
        return min(1.0, max(0.0, score)) if math.isfinite(score) else None


def _handed_verdict(item: Item, episode: Episode, ctx: Context) -> Verdict:
    evidence = episode.evidence
    if evidence.handed is None:
        return Verdict(item.id, "null", message=evidence.lost["handed"])
    verdict = item.predicate(as_own(episode), ctx, True)
    if not item.at_hand_in or verdict.state != "pass":
        return verdict
    if item.id == "S2.predict_runs" and evidence.cured:
        return verdict
    if item.predicate(as_handed(episode), ctx, True).state != "pass":
        return verdict
    return Verdict(item.id, "na", message=HANDED)


def as_handed(episode: Episode) -> Episode:
    """A bank state as if an episode had ended with what it holds, by its own work."""
    evidence = episode.evidence
    assert evidence.handed is not None
    return replace(
        as_own(replace(episode, cells=[])),
        current=episode.initial,
        evidence=replace(
            evidence.handed,
            versions=evidence.versions,
            probe_expected=evidence.probe_expected,
        ),
    )


def as_own(episode: Episode) -> Episode:
    """An episode as if it had written what it started from, in a cell before its first."""
    made = CellRecord(-1, -1, "python", "", CellResult(0, delta=Delta(created=episode.initial)))
    handed, evidence = episode.evidence.handed, episode.evidence
    if handed is not None and evidence.probe_rerun is None:
        evidence = replace(evidence, probe_rerun=handed.probe_rerun)
    return replace(episode, initial={}, cells=[made, *episode.cells], evidence=evidence)


def evidence_share(episode: Episode, items: list[Item]) -> float:
    """Eta: share of the required evidence that is a regular file and this episode's own work.

    Args:
        episode: The record.
        items: Applicable items of one stage.

    Returns:
        A value in [0, 1]; 1 when nothing is required.
    """
    needed = dict.fromkeys(pattern for item in items for pattern in item.evidence)
    if not needed:
        return 1.0
    own = own_paths(episode)
    return sum(bool(matching(own, pattern)) for pattern in needed) / len(needed)


def _components(
    verdicts: tuple[Verdict, ...], stages: Mapping[Stage, StageResult]
) -> dict[str, Any]:
    return {
        "eta": {s.name: r.eta for s, r in stages.items()},
        "stage_score": {s.name: r.score for s, r in stages.items()},
        "stage_reward": {s.name: r.reward for s, r in stages.items()},
        "errors": {v.item: v.message for v in verdicts if v.state in ("fail", "null")},
        "false_claims": [v.item for v in verdicts if v.false_claim],
    }


def compile_contract(
    spec: TaskSpec, *, tier: str, focus: Stage, outcome: str | None = None
) -> RubricContract:
    """Compile the rubric of a kind of episode.

    Args:
        spec: The task.
        tier: One of the task's tiers.
        focus: The scored stage, or E2E.
        outcome: Stage Bank outcome of the start state, or ``None``.

    Raises:
        UnknownNameError: If the tier or the outcome is not known.
    """
    granted = next((t for name, t in spec.tiers.items() if name == tier), None)
    if granted is None:
        raise unknown_name("tier", tier, spec.tiers, hint=f"They are the tiers of {spec.id}.")
    if outcome is not None and outcome not in OUTCOMES:
        raise unknown_name("outcome", outcome, OUTCOMES)
    recovery = outcome == "recovery" and focus is Stage.S3
    items = _items(spec, granted, recovery)
    if focus is not Stage.E2E:
        items = tuple(item for item in items if item.stage is focus)
    content = {
        "version": CONTRACT_VERSION,
        "task": spec.id,
        "tier": tier,
        "focus": focus.name,
        "outcome": outcome,
        "items": [
            [i.id, i.stage.name, i.title, i.weight, list(i.evidence), i.at_hand_in] for i in items
        ],
        "constants": {
            "output": spec.output.model_dump(mode="json"),
            "model": spec.model.model_dump(mode="json"),
            "pilot": spec.pilot.model_dump(mode="json"),
            "metric": spec.metric.model_dump(mode="json"),
            "facts": [
                {key: fact.model_dump(mode="json") for key, fact in spec.facts.items()},
                {key: fact.model_dump(mode="json") for key, fact in spec.postprocessing.items()},
                list(spec.inputs),
                list(spec.packages),
            ],
            "tier": [granted.candidates, granted.plan_image],
            "failed_setup_cells": spec.budgets.failed_setup_cells,
            "floor": spec.floor,
        },
        "code": [
            _code_digest(module)
            for module in (
                build,
                claims,
                plan,
                setup,
                validate,
                infer,
                submit,
                sys.modules[__name__],
            )
        ],
    }
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return RubricContract(spec.id, tier, focus, outcome, CONTRACT_VERSION, items, digest)
