"""Demonstrations: scripted episodes with a per-decision mixture of careful and careless options.

Imitating them alone stays mediocre on purpose: each decision is good with a fixed probability,
independent of the others, so that no single demonstration shows the whole careful workflow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from bat_env.bank.sampler import balanced_order
from bat_env.bank.state import Outcome, StageState, digest_of
from bat_env.bank.styles import USUAL, styled
from bat_env.stages import Stage
from bat_env.tasks import Task
from bat_env.tasks.instance import Size
from bat_env.tasks.scripts import ScriptCell

_REDRAWS: Final = 12


@dataclass(frozen=True)
class DemoPlan:
    """One demonstration to be executed.

    Attributes:
        task, tier, size, index: Where.
        focus, outcome, state_id: The bank state it starts from; without one, from scratch.
        seed: Episode seed.
        choices: Decision id -> option, of the decisions that matter for this focus.
        source_trajectory: Groups demonstrations that share a past.
        style: How the cells are written.
        teacher: Careful work throughout, to be kept only if every stage's items pass.
    """

    task: str
    tier: str
    size: Size
    index: int
    focus: Stage
    outcome: Outcome | None
    state_id: str | None
    seed: int
    choices: Mapping[str, str]
    source_trajectory: str
    style: str = USUAL
    teacher: bool = False

    @property
    def cell(self) -> tuple[str, ...]:
        """Where a refusal is counted."""
        return (self.task, self.size, self.tier, self.focus.name, "demonstration")

    def job_id(self, task_digest: str) -> str:
        """Names the plan: equal plans of an equal task are done once."""
        key = [
            task_digest,
            self.source_trajectory,
            self.tier,
            self.size,
            self.index,
            self.focus.name,
            self.state_id,
            self.seed,
            dict(self.choices),
        ]
        if self.teacher:
            key += ["teacher", self.style]
        return "demo-" + digest_of(key)[:24]

    def cells(self, task: Task) -> tuple[ScriptCell, ...]:
        """The script to play."""
        script = task.script(
            dict(self.choices), focus=self.focus, tier=self.tier, outcome=self.outcome
        )
        return styled(task, script, self.style)

    def told(self) -> dict[str, str]:
        """The choices as a demonstration records them: a teacher's style is one more."""
        return {**self.choices, "style": self.style} if self.teacher else dict(self.choices)


def plan_demonstrations(
    task: Task,
    states: Sequence[StageState],
    *,
    tier: str,
    size: Size,
    indices: Sequence[int],
    count: int,
    p_good: float,
    e2e_share: float,
    seed: int,
) -> list[DemoPlan]:
    """Draw what to demonstrate; equal arguments give equal plans.

    Args:
        task: The task.
        states: Admitted states of it; stages are drawn evenly over their cells.
        tier: Tier of everything.
        size: Size of everything.
        indices: Training instances for starts from scratch.
        count: How many.
        p_good: Probability of the good option at each decision; else uniform over the others.
        e2e_share: Share of demonstrations that run the whole workflow from scratch.
        seed: Source of all randomness.
    """
    # Not the task's digest: a word in a README must not change what is demonstrated.
    name = f"{task.id} {task.spec.version} {size}"
    rng = np.random.default_rng([seed, 0xDE40, *name.encode()])
    effective = {
        (focus, outcome): relevant(task, focus, tier, outcome)
        for focus in Stage
        for outcome in ("success", "recovery", "failure", None)
    }
    # A state that is only "from scratch" again would double the starts from scratch.
    usable = [s for s in states if not (s.focus is Stage.E2E and s.outcome == "success")]
    whole = round(count * e2e_share) if usable else count
    plans: list[DemoPlan] = []
    seen: set[tuple[Any, ...]] = set()
    queue: list[StageState] = []
    for number in range(count):
        from_scratch = (number * whole) // count < ((number + 1) * whole) // count
        if from_scratch or not usable:
            index, state = int(indices[int(rng.integers(len(indices)))]), None
            focus, outcome = Stage.E2E, None
        else:
            if not queue:
                queue = balanced_order(rng, usable)[::-1]
            state = queue.pop()
            index, focus, outcome = state.index, state.focus, state.outcome
        start = index if state is None else state.state_id
        for _ in range(_REDRAWS):
            choices = _draw(rng, task, effective[focus, outcome], p_good)
            key = (start, *task.script(choices, focus=focus, tier=tier, outcome=outcome))
            if key not in seen:
                seen.add(key)
                break
        else:
            continue
        past = [index, *sorted(choices.items())] if state is None else _past(state)
        plans.append(
            DemoPlan(
                task=task.spec.id,
                tier=tier,
                size=size,
                index=index,
                focus=focus,
                outcome=outcome,
                state_id=None if state is None else state.state_id,
                seed=int(rng.integers(2**31)),
                choices=choices,
                source_trajectory=digest_of([task.spec.id, tier, size, *past])[:16],
            )
        )
    return plans


def plan_trajectories(
    task: Task,
    *,
    tier: str,
    size: Size,
    indices: Sequence[int],
    styles: Sequence[str],
    count: int,
    seed: int,
) -> list[DemoPlan]:
    """Teacher trajectories: the careful workflow from scratch, in each style.

    Args:
        task: The task.
        tier: Tier of everything.
        size: Size of everything.
        indices: Training instances; each is worked on in one style.
        styles: Styles.
        count: Trajectories of each style.
        seed: Source of the episode seeds.
    """
    plans = []
    for number in range(count * len(styles)):
        index = int(indices[0]) + number
        key = [seed, task.id, tier, size, index, styles[number % len(styles)]]
        plans.append(
            DemoPlan(
                task=task.id,
                tier=tier,
                size=size,
                index=index,
                focus=Stage.E2E,
                outcome=None,
                state_id=None,
                seed=int(digest_of(["teacher seed", *key])[:7], 16),
                choices={},
                source_trajectory=digest_of([task.id, tier, size, index, "teacher"])[:16],
                style=styles[number % len(styles)],
                teacher=True,
            )
        )
    return plans


def relevant(task: Task, focus: Stage, tier: str, outcome: str | None) -> tuple[str, ...]:
    """Decisions that change the script of a focus, in the order of the workflow."""
    base = task.script(focus=focus, tier=tier, outcome=outcome)
    return tuple(
        decision.id
        for decision in task.decisions
        if any(
            task.script({decision.id: option}, focus=focus, tier=tier, outcome=outcome) != base
            for option in decision.options[1:]
        )
    )


def _draw(
    rng: np.random.Generator, task: Task, wanted: Sequence[str], p_good: float
) -> dict[str, str]:
    choices = {}
    for decision in task.decisions:
        if decision.id not in wanted:
            continue
        others = decision.options[1:]
        good = rng.random() < p_good
        other = others[int(rng.integers(len(others)))] if others else decision.good
        choices[decision.id] = decision.good if good else other
    return choices


def _past(state: StageState) -> list[Any]:
    """States cut from one replayed trajectory share it."""
    return [state.index, state.fault]
