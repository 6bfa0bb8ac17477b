"""How the judge enters the score: more items at the end of a rule contract, and nothing else.

- A judge item weighs half a rule item of its stage, and has no part in eta.
- It is decided at hand-in. Before that it is pending and outside of the mean, so the rewards before
  the last one are those of the rules.
- A null item drops out. Where all are null, the score is that of the rules.
- Prose alone earns nothing: a judge item counts only in a stage in which the rules found something
  that rests on truth. The verdicts of the rules are never touched.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from bat_env.episode import Episode
from bat_env.judge.items import Question, questions
from bat_env.judge.prompt import prompt_digest
from bat_env.rubric import RubricContract
from bat_env.rubric.base import Context, Item, RubricResult, StageResult, Verdict
from bat_env.stages import Stage
from bat_env.tasks.spec import TaskSpec

JUDGE_VERSION: Final = 1
"""Counted up where the rule above changes."""
JUDGE_WEIGHT: Final = 0.5
"""Of a judge item; an item of the rules in S1-S3 weighs 1."""
PROSE_ALONE: Final = "Prose alone earns nothing: nothing of this stage was found true."


@dataclass(frozen=True, slots=True)
class JudgePredicate:
    """Looks a finding up in the evidence; never asks anybody."""

    item: str

    def __call__(self, episode: Episode, ctx: Context, final: bool) -> Verdict:
        """Decide the item; never raises."""
        if not final:
            return Verdict(self.item, "pending", message="Read by the judge at hand-in.")
        known = (episode.evidence.judge or {}).get("findings")
        finding = known.get(self.item) if isinstance(known, Mapping) else None
        if not isinstance(finding, Mapping) or finding.get("state") not in ("met", "unmet"):
            why = finding.get("message") if isinstance(finding, Mapping) else ""
            return Verdict(self.item, "null", message=str(why or "The judge was not asked."))
        met = finding["state"] == "met"
        said = str(finding.get("message", ""))
        if finding.get("line"):
            said = f"{said} [{finding.get('file')}:{finding.get('line')}]".strip()
        return Verdict(self.item, "pass" if met else "fail", float(met), said)


@dataclass(frozen=True, slots=True)
class JudgedContract(RubricContract):
    """A rule contract with judge items.

    Attributes:
        rules: The contract without them.
        model: Name of the judge.
        prompt_digest: Of everything that it is asked.
    """

    rules: RubricContract
    model: str
    prompt_digest: str

    @property
    def identity(self) -> dict[str, str]:
        """What everything that a judge had a part in carries."""
        return {
            "model": self.model,
            "prompt_digest": self.prompt_digest,
            "contract_digest": self.digest,
        }

    def evaluate(self, episode: Episode, ctx: Context, final: bool) -> RubricResult:
        """Score an episode; at the end ``components["rules"]`` holds what the rules alone say."""
        # A dataclass with slots is made twice, and super() without arguments means the first one.
        result = RubricContract.evaluate(self, episode, ctx, final)
        if not final:
            return result
        alone = self.rules.evaluate(episode, ctx, final)
        rules = {
            "score": alone.score,
            "agentic": alone.agentic,
            "stage_score": {s.name: r.score for s, r in alone.stages.items()},
        }
        return dataclasses.replace(result, components={**result.components, "rules": rules})

    def _verdicts(self, episode: Episode, ctx: Context, final: bool) -> tuple[Verdict, ...]:
        ruled = self.rules._verdicts(episode, ctx, final)
        items = self.items[len(self.rules.items) :]
        if episode.status == "disqualified" or not episode.worked:
            why = ruled[0].message
            return (*ruled, *(Verdict(item.id, "fail", message=why) for item in items))
        read = [item.predicate(episode, ctx, final) for item in items]
        if final:
            pairs = zip(self.rules.items, ruled, strict=True)
            true = {i.stage for i, v in pairs if i.at_hand_in and v.state in ("pass", "null")}
            read = [
                Verdict(item.id, "fail", message=PROSE_ALONE)
                if verdict.state == "pass" and item.stage not in true
                else verdict
                for item, verdict in zip(items, read, strict=True)
            ]
        return (*ruled, *read)

    def _stage(
        self, stage: Stage, verdicts: Mapping[str, Verdict], episode: Episode
    ) -> StageResult | None:
        outside = {
            item.id: dataclasses.replace(verdicts[item.id], state="na")
            for item in self.items
            if item.source == "judge" and verdicts[item.id].state in ("pending", "null")
        }
        return RubricContract._stage(self, stage, {**verdicts, **outside}, episode)


def judge_item(question: Question) -> Item:
    """The contract item of a scored question."""
    return Item(
        id=question.id,
        stage=question.stage,
        title=f"{question.subject} explains {question.title}",
        predicate=JudgePredicate(question.id),
        weight=JUDGE_WEIGHT,
        at_hand_in=True,
        source="judge",
    )


def judged_contract(
    rules: RubricContract, spec: TaskSpec, identity: Mapping[str, Any] | None
) -> RubricContract:
    """A contract with the items of a judge.

    Args:
        rules: The contract without a judge.
        spec: The task.
        identity: Of the judge: its ``model``. ``None`` for none.

    Returns:
        ``rules`` itself where there is no judge, and at focus S4 and S5, where it reads nothing.
    """
    asked = questions(spec, rules.tier, rules.focus)
    items = tuple(judge_item(question) for question in asked if question.scored)
    if identity is None or not items:
        return rules
    model = str(identity.get("model", ""))
    prompt = prompt_digest(spec, asked)
    content = {
        "rules": rules.digest,
        "version": JUDGE_VERSION,
        "model": model,
        "prompt": prompt,
        "items": [[i.id, i.stage.name, i.title, i.weight, i.source] for i in items],
    }
    return JudgedContract(
        task=rules.task,
        tier=rules.tier,
        focus=rules.focus,
        outcome=rules.outcome,
        version=rules.version,
        items=(*rules.items, *items),
        digest=hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest(),
        rules=rules,
        model=model,
        prompt_digest=prompt,
    )
