"""One turn of an episode: a cell that runs and goes on record, and what the agent reads."""

from __future__ import annotations

from typing import Final, cast

from bat_env.episode import CellRecord, Episode, Violation
from bat_env.feedback import cell_text, notice_text, show_path
from bat_env.sandbox.base import Cell, Language, Limits
from bat_env.tasks.spec import Budgets
from bat_env.tools import ValidCall
from bat_env.workbench import Workbench, cell_seed

WARNINGS: Final = 1
"""Violations that only warn."""


def run_cell(
    call: ValidCall,
    turn: int,
    *,
    episode: Episode,
    bench: Workbench,
    limits: Limits,
    budgets: Budgets,
) -> str:
    """Run a cell, put it on record, and say what the agent reads.

    Args:
        call: The code.
        turn: Number of the turn, which is on record already.
        episode: The record.
        bench: Where it runs.
        limits: Of the sandbox.
        budgets: Of the task.

    Raises:
        SandboxError: If the infrastructure failed.
    """
    number = len(episode.cells)
    cell = Cell(cast("Language", call.language), call.code, cell_seed(episode.seed, number))
    ran = bench.run(cell, min(limits.cell_timeout_s, budgets.cell_timeout_s))
    episode.cells.append(CellRecord(turn, number, cell.language, cell.code, ran.result))
    episode.current = ran.manifest
    notes = []
    for kind, detail in ran.violations:
        episode.violations.append(Violation(kind, turn, detail))
        left = WARNINGS - len(episode.violations)
        what = "the next one ends the episode with score 0" if left >= 0 else "score 0"
        notes.append(f"violation ({kind}): {show_path(detail)[:200]}; {what}")
    return cell_text(
        ran.result,
        turns_left=budgets.turns - len(episode.turns),
        calls_left=budgets.calls - len(episode.cells),
        limit=budgets.observation_chars,
        notes=notes,
    )


def notice(message: str, *, episode: Episode, budgets: Budgets) -> str:
    """What the agent reads where no cell ran."""
    return notice_text(
        message,
        turns_left=budgets.turns - len(episode.turns),
        calls_left=budgets.calls - len(episode.cells),
        limit=budgets.observation_chars,
    )
