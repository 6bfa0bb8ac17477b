"""Which past a state has: the stages replayed before it, and the mistake made in them.

success: what came before is consistent, by the oracle. recovery: a listed mistake was made, and a
check has exposed it. failure: the same mistake, unexposed. Nothing comes before S1 and E2E, so
there the mistake sits in a plan or a set-up that is already in the workspace.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from bat_env.bank.state import Outcome
from bat_env.bank.styles import USUAL, styled
from bat_env.stages import Stage
from bat_env.tasks import Task
from bat_env.tasks.scripts import Mistake, ScriptCell

_S1, _S2, _S3, _S4 = Stage.S1, Stage.S2, Stage.S3, Stage.S4

_BEFORE: Final[Mapping[Stage, tuple[Stage, ...]]] = MappingProxyType(
    {
        Stage.S1: (),
        Stage.S2: (_S1,),
        Stage.S3: (_S1, _S2),
        Stage.S4: (_S1, _S2, _S3),
        Stage.S5: (_S1, _S2, _S3, _S4),
        Stage.E2E: (),
    }
)

# Per focus: stages replayed, and the stages in which the mistake must be made. A faulty set-up in
# an S2 state is S2's own work, done badly and to be redone; later stages inherit its predict.py.
_FAULTY: Final[Mapping[Stage, tuple[tuple[tuple[Stage, ...], frozenset[Stage]], ...]]] = (
    MappingProxyType(
        {
            Stage.S1: (((_S1,), frozenset({_S1})),),
            Stage.S2: (((_S1, _S2), frozenset({_S2})),),
            Stage.S3: (((_S1, _S2), frozenset({_S2})),),
            Stage.S4: (((_S1, _S2, _S3), frozenset({_S2})),),
            Stage.S5: (((_S1, _S2, _S3, _S4), frozenset({_S2, _S4})),),
            Stage.E2E: (((_S1,), frozenset({_S1})), ((_S1, _S2), frozenset({_S2}))),
        }
    )
)

_INHERITS: Final = frozenset({Stage.S3, Stage.S4, Stage.S5})
"""Stages that build on predict.py or outputs: a mistake reaches them if it costs task score."""


@dataclass(frozen=True)
class Past:
    """How the workspace of a state comes about.

    Attributes:
        focus, outcome: The cell that it is for.
        stages: Stages of the script that are replayed.
        fault: The mistake made in them, or ``None``.
        style: How the cells are written.
    """

    focus: Stage
    outcome: Outcome
    stages: tuple[Stage, ...]
    fault: Mistake | None = None
    style: str = USUAL

    @property
    def fault_id(self) -> str:
        """Id of the mistake, or ``""``."""
        return "" if self.fault is None else self.fault.id

    def cells(self, task: Task, tier: str) -> tuple[ScriptCell, ...]:
        """The script cells to replay, in order."""
        choices = {} if self.fault is None else dict(self.fault.choices)
        script = task.script(choices, focus=Stage.E2E, tier=tier)
        return tuple(
            # The whole script is styled, so that states of all stages share their beginnings.
            cell
            for cell in styled(task, script, self.style)
            if cell.stage in self.stages
        )

    def redone(self) -> tuple[Stage, ...]:
        """Replayed stages whose work the focus does again."""
        return tuple(stage for stage in self.stages if self.focus in (stage, Stage.E2E))


def pasts(task: Task, focus: Stage, outcome: Outcome, tier: str) -> tuple[Past, ...]:
    """Every past that a state of this cell may have, in a fixed order.

    A mistake serves where all of its decisions are in replayed stages, at least one in a stage
    whose work the focus inherits or redoes, and it changes a replayed cell. Recovery needs a check.
    """
    if outcome == "success":
        return (Past(focus, outcome, _BEFORE[focus]),)
    stage_of = {decision.id: decision.stage for decision in task.decisions}
    found = []
    for replayed, faulty in _FAULTY[focus]:
        clean = Past(focus, outcome, replayed).cells(task, tier)
        for mistake in task.mistakes:
            made_in = {stage_of[decision] for decision in mistake.choices if decision in stage_of}
            past = Past(focus, outcome, replayed, mistake)
            if (
                made_in
                and made_in <= set(replayed)
                and made_in & faulty
                and (focus not in _INHERITS or "task" in mistake.costs)
                and (outcome == "failure" or mistake.check)
                and past.cells(task, tier) != clean
            ):
                found.append(past)
    return tuple(found)
