"""Which states to try: the deterministic list of candidates of a build."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from bat_env.bank.faults import Past, pasts
from bat_env.bank.state import Outcome, digest_of
from bat_env.bank.styles import USUAL
from bat_env.bank.wording import PLAIN
from bat_env.rubric import compile_contract
from bat_env.stages import Stage
from bat_env.tasks import Task
from bat_env.tasks.instance import Size
from bat_env.tasks.naming import VARIED_FROM

BUILDER_VERSION: Final = 1
ROUNDS: Final = 3
"""A cell has this many times the wanted states as candidates."""
_INDEX_BASE: Final = 1 << 30
"""The bank's own stretch of the training namespace starts here."""


@dataclass(frozen=True)
class StateJob:
    """One candidate to make and judge."""

    task: str
    tier: str
    size: Size
    past: Past
    index: int
    seed: int
    rubric_digest: str
    replay_again: bool
    briefs: str = PLAIN

    @property
    def cell(self) -> tuple[str, ...]:
        """(task, size, tier, focus name, outcome)."""
        return (self.task, self.size, self.tier, self.past.focus.name, self.past.outcome)

    def job_id(self, task_digest: str) -> str:
        """Names the job: equal arguments and an equal task give an equal name."""
        key = [
            BUILDER_VERSION,
            task_digest,
            *self.cell,
            self.past.fault_id,
            [stage.name for stage in self.past.stages],
            self.index,
            self.seed,
            self.rubric_digest,
        ]
        form = (self.past.style, self.briefs)
        if form != (USUAL, PLAIN):
            key += form
        return "state-" + digest_of(key)[:24]


def instance_indices(seed: int, count: int, briefs: str = PLAIN) -> list[int]:
    """Consecutive training indices that a build with this seed starts from.

    Args:
        seed: Of the build.
        count: How many.
        briefs: Worlds whose briefs are not plain name their cases in schemes of their own, too.
    """
    base = _INDEX_BASE if briefs == PLAIN else VARIED_FROM
    start = int(digest_of(["bank instances", seed])[:6], 16)
    return [base + start * 16 + i for i in range(count)]


def candidates(
    task: Task,
    size: Size,
    tier: str,
    focus: Stage,
    outcome: Outcome,
    indices: Sequence[int],
    per_cell: int,
    seed: int,
    styles: Sequence[str] = (USUAL,),
    briefs: str = PLAIN,
) -> list[StateJob]:
    """Candidates of one cell, in the order in which they are tried.

    A mistake starts on the same instances, in the same style, in every cell, so that its replayed
    beginning serves the recovery and the failure states of several stages. Success states differ by
    their instance alone and take as many as they need, beyond ``indices`` if they must.
    """
    options = pasts(task, focus, outcome, tier)
    contract = compile_contract(task.spec, tier=tier, focus=focus, outcome=outcome)
    order = {mistake.id: i for i, mistake in enumerate(task.mistakes)}
    jobs: list[StateJob] = []
    for number in range(per_cell * ROUNDS if options else 0):
        past = options[(number + 2 * int(focus)) % len(options)]
        lap = number // len(options)
        if past.fault is None:
            index, turn = indices[0] + number, number
        else:
            turn = order[past.fault.id] + 3 * lap
            index = indices[turn % len(indices)]
        past = replace(past, style=styles[turn % len(styles)])
        job = StateJob(
            task=task.spec.id,
            tier=tier,
            size=size,
            past=past,
            index=index,
            seed=seed,
            rubric_digest=contract.digest,
            replay_again=number % 4 == 0,
            briefs=briefs,
        )
        if all((j.past, j.index) != (job.past, job.index) for j in jobs):
            jobs.append(job)
    return jobs


def by_instance(jobs: Sequence[StateJob]) -> list[list[StateJob]]:
    """One group an instance, large ones first; within it, shared beginnings side by side."""
    groups: Mapping[tuple[Any, ...], list[StateJob]] = defaultdict(list)
    for job in jobs:
        groups[job.task, job.size, job.tier, job.index].append(job)
    ordered = [
        sorted(group, key=lambda j: (j.past.fault_id, len(j.past.stages), j.cell))
        for _, group in sorted(groups.items())
    ]
    return sorted(ordered, key=len, reverse=True)
