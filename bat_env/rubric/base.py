"""Values of the rubric: items, verdicts, and the result that reward, reports and training read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from bat_env.episode import Episode
from bat_env.stages import Stage
from bat_env.tasks.instance import Instance
from bat_env.tasks.spec import TaskSpec

CONTRACT_VERSION = 1

ItemState: TypeAlias = Literal["pass", "fail", "pending", "na", "null"]
"""``pending``: scored at hand-in; ``na``: does not apply, drops out; ``null``: evidence was lost
through infrastructure, so no score may be made of it."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a predicate may look at besides the episode: the contract and the private truth."""

    spec: TaskSpec
    instance: Instance


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one item.

    Attributes:
        item: Item id, for example ``"S1.facts_true"``.
        state: See :data:`ItemState`.
        value: In [0, 1]; binary for S1-S3, a fraction for the parts of S4 and S5.
        message: One sentence for people.
        false_claim: The agent claimed something that the host proved false.
    """

    item: str
    state: ItemState
    value: float = 0.0
    message: str = ""
    false_claim: bool = False


Predicate: TypeAlias = Callable[[Episode, Context, bool], Verdict]
"""``(episode, context, final) -> Verdict``. Pure. ``final`` is true at hand-in."""


@dataclass(frozen=True, slots=True)
class Item:
    """One rubric item.

    Attributes:
        id: ``"<stage>.<name>"``.
        stage: Stage that it scores.
        weight: Within its stage: 1 for the equal-weight binary items of S1-S3, .5 in S4 and S5.
        title: What is asked, for people.
        evidence: Workspace files that must be this episode's own work before it can be confirmed;
            together over a stage's items they make eta.
        predicate: Decides it.
        at_hand_in: Truth-based or re-run: pending until hand-in.
        source: ``"host"``, or ``"judge"`` for prose that the optional LLM judge reads.
    """

    id: str
    stage: Stage
    title: str
    predicate: Predicate
    evidence: tuple[str, ...] = ()
    weight: float = 1.0
    at_hand_in: bool = False
    source: Literal["host", "judge"] = "host"


@dataclass(frozen=True, slots=True)
class StageResult:
    """``reward = eta * score`` of one stage, each in [0, 1]; ``None`` when evidence is null."""

    stage: Stage
    score: float | None
    eta: float
    reward: float | None


@dataclass(frozen=True, slots=True)
class RubricResult:
    """A scored episode.

    Attributes:
        digest: Digest of the contract that produced it.
        verdicts: All items, in contract order.
        stages: Applicable stages (one in stage focus, five in E2E).
        agentic: Weighted mean of stage rewards, or ``None``.
        task: Task score, or ``None`` (not graded, or does not apply).
        score: Episode score in [0, 1], a multiple of 2**-20; ``None`` when evidence is null.
        false_claims: Number of claims proved false.
    """

    digest: str
    verdicts: tuple[Verdict, ...]
    stages: Mapping[Stage, StageResult]
    agentic: float | None
    task: float | None
    score: float | None
    false_claims: int = 0
    components: Mapping[str, Any] = field(default_factory=dict)
