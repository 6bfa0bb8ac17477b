"""Scores of finished evaluations against their stored evidence: rescored, and compared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from bat_agent.evaluation import CellScore, Evaluation
from bat_agent.files import read_json
from bat_env.errors import BatError, ConfigError
from bat_env.evidence import rescore
from bat_env.trajectory import read_trajectory

OUTCOMES: Final = ("same", "different", "unknown", "unscored")
Outcome: TypeAlias = Literal["same", "different", "unknown", "unscored"]
"""``"unknown"``: its trajectory is not there or holds no evidence. ``"unscored"``: it has no score
that could be compared."""


@dataclass(frozen=True, slots=True)
class Verified:
    """One cell of an evaluation.

    Attributes:
        evaluation: File of the evaluation, from the folder that was asked about.
        task, index: Which instance.
        outcome: What came of the comparison.
        recorded: Score in the evaluation, or ``None``.
        found: Score by its evidence, or ``None``.
        why: What differs or is missing, or "".
    """

    evaluation: str
    task: str
    index: int
    outcome: Outcome
    recorded: float | None
    found: float | None
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def verify(run: Path) -> list[Verified]:
    """Score every episode of the evaluations in a folder again, from its stored evidence.

    Nothing is played: no sandbox is needed, and the grader's findings are part of the evidence.

    Args:
        run: A run folder, or any folder with files of ``bat-agent eval --out`` and the trajectories
            of ``--trajectories`` somewhere in it.

    Returns:
        A row for each cell of each evaluation that recorded trajectories.

    Raises:
        ConfigError: If there is no such folder, or no such evaluation in it.
    """
    if not run.is_dir():
        raise ConfigError(f"Expected a folder with evaluations, there is no folder {run}.")
    rows = []
    for file, evaluation in _evaluations(run):
        shown = file.relative_to(run).as_posix()
        rows += [_cell(shown, cell, _trajectory(run, file, cell)) for cell in evaluation.cells]
    if not rows:
        raise ConfigError(
            f"There is no evaluation with trajectories in {run}. Run `bat-agent eval` with --out "
            "and --trajectories into it, or name the folder of a finished run."
        )
    return rows


def _evaluations(run: Path) -> Iterator[tuple[Path, Evaluation]]:
    for file in sorted(run.rglob("*.json")):
        try:
            if not {"cells", "target_digest"} <= read_json(file, schema_version=1).keys():
                continue
        except ConfigError:  # another kind of file
            continue
        evaluation = Evaluation.load(file)
        if any(cell.trajectory for cell in evaluation.cells):
            yield file, evaluation


def _trajectory(run: Path, file: Path, cell: CellScore) -> Path | None:
    """Where the trajectory of a cell lies: in the evaluation's own folder, else anywhere in it."""
    if not cell.trajectory:
        return None
    own = file.with_suffix("") / cell.trajectory
    return own if own.is_file() else next(run.rglob(cell.trajectory), None)


def _cell(evaluation: str, cell: CellScore, file: Path | None) -> Verified:
    def row(outcome: Outcome, found: float | None = None, why: str = "") -> Verified:
        return Verified(evaluation, cell.task, cell.index, outcome, cell.overall, found, why)

    if cell.overall is None:
        return row("unscored")
    if file is None:
        return row("unknown", why="its trajectory is not there")
    try:
        scored = rescore(read_trajectory(file).evidence)
    except BatError as error:
        return row("unknown", why=str(error))
    out = scored.episode.status == "disqualified"
    stages = {s.name: 0.0 if out else r.reward for s, r in scored.rubric.stages.items()}
    wrong = [
        f"{name} {was} is {stages.get(name)}"
        for name, was in cell.stages.items()
        if was != stages.get(name)
    ]
    if scored.score != cell.overall:
        wrong.insert(0, f"score {cell.overall} is {scored.score}")
    rubric = "" if scored.same_rubric else "; it was played under another rubric"
    if wrong:
        return row("different", scored.score, ", ".join(wrong) + rubric)
    return row("same", scored.score)
