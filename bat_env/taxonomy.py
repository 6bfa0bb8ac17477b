"""What went wrong in an episode, by kind and stage: from evidence, never from what was said.

The five kinds are those of the benchmark family that this suite follows. Several may occur in one
episode; none of them is scored.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from bat_env.episode import CellRecord, Episode
from bat_env.rubric.base import RubricResult
from bat_env.rubric.validate import first_batch_call
from bat_env.stages import Stage
from bat_env.tasks.spec import TaskSpec

Kind: TypeAlias = Literal["understanding", "setup", "verification", "execution", "deliverable"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

_OF_STAGE: Final[dict[Stage, Kind]] = {
    Stage.S1: "understanding",
    Stage.S2: "setup",
    Stage.S3: "verification",
    Stage.S4: "execution",
    Stage.S5: "deliverable",
}
_FORM: Final = frozenset({"S1.plan_first", "S1.plan_image"})
"""Items of S1 about the form of what was handed in, not about what was understood."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that went wrong.

    Attributes:
        kind: One of the five.
        stage: Where it belongs.
        source: The rubric item, ``"cell <call>"``, ``"case <id>"`` or ``"episode"``.
        message: One sentence for people.
    """

    kind: Kind
    stage: str
    source: str
    message: str


def faults(episode: Episode, rubric: RubricResult, spec: TaskSpec) -> tuple[Fault, ...]:
    """Everything that went wrong, in order of stages; cells in order of time.

    - understanding: what the plan says of data, model or contract is missing or not true;
    - setup: environment, model or pipeline do not work, or are not as recorded;
    - verification: the pilot, or what was recorded of it;
    - execution: cells that failed or met a limit, outputs that are missing or cannot be made again;
    - deliverable: outputs that break the contract, manifest, plan's form, nothing handed in.
    """
    found = [*_items(rubric), *_cells(episode, spec), *_outputs(episode, spec), *_ending(episode)]
    order = {kind: number for number, kind in enumerate(KINDS)}
    return tuple(sorted(found, key=lambda fault: (fault.stage, order[fault.kind])))


def _items(rubric: RubricResult) -> Iterable[Fault]:
    for verdict in rubric.verdicts:
        if verdict.state != "fail":
            continue
        name = verdict.item.partition(".")[0]
        if name not in Stage.__members__:
            continue
        kind = "deliverable" if verdict.item in _FORM else _OF_STAGE[Stage[name]]
        yield Fault(kind, name, verdict.item, verdict.message)


def _cells(episode: Episode, spec: TaskSpec) -> Iterable[Fault]:
    batch = first_batch_call(episode, spec)
    for cell in episode.cells:
        if cell.result.ok:
            continue
        if episode.focus is not Stage.E2E:
            stage = episode.focus.name
        else:
            stage = "S4" if batch is not None and cell.call >= batch else _place(cell)
        why = (
            f"met the limit {cell.result.limit}"
            if cell.result.limit is not None
            else f"ended with exit code {cell.result.exit_code}"
        )
        yield Fault("execution", stage, f"cell {cell.call}", f"Cell {cell.call} {why}.")


def _place(cell: CellRecord) -> str:
    """The stage whose files a failed cell wrote, or set-up, where most cells fail."""
    written = [*cell.result.delta.created, *cell.result.delta.changed]
    tops = {path.partition("/")[0] for path in written}
    for top, stage in (("plan", "S1"), ("validation", "S3"), ("outputs", "S4")):
        if top in tops:
            return stage
    return "S2"


def _outputs(episode: Episode, spec: TaskSpec) -> Iterable[Fault]:
    grade = episode.evidence.grade
    if grade is None:
        return
    for case, valid in grade.valid.items():
        if not valid:
            message = grade.messages.get(case, "missing")
            there = spec.output.path.format(case=case) in episode.current
            kind: Kind = "deliverable" if there else "execution"
            yield Fault(kind, "S4", f"case {case}", f"The output of {case} is not valid: {message}")


def _ending(episode: Episode) -> Iterable[Fault]:
    if episode.status == "truncated":
        why = f"Nothing was handed in: the episode was cut short ({episode.end_reason})."
        stage = "S5" if episode.focus is Stage.E2E else episode.focus.name
        yield Fault("deliverable", stage, "episode", why)
    for violation in episode.violations:
        yield Fault("execution", "S4", "episode", f"Violation {violation.kind}: {violation.detail}")


def tally(found: Iterable[Fault]) -> dict[str, list[str]]:
    """Kind -> stages in which it occurred, for tables; every kind is there."""
    table: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for fault in found:
        if fault.stage not in table[fault.kind]:
            table[fault.kind].append(fault.stage)
    return {kind: sorted(stages) for kind, stages in table.items()}
