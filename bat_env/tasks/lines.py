"""One line, one meaning: no line of a task's scripts is good in one place and a mistake in another.

A policy that practises one stage learns lines. A line that is a mistake there and right in another
stage would make that practice spoil the other stage, whatever the scores of both say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from bat_env.stages import Stage
from bat_env.tasks.discovery import Task
from bat_env.tasks.scripts import ScriptCell


@dataclass(frozen=True, slots=True)
class SharedLine:
    """A line with two meanings.

    Attributes:
        line: Its text, without indentation at the end.
        decision: The decision in which it is a mistake.
        option: The option that writes it.
        stage: Stage of the cell where it is a mistake.
        good_in: Stage of a cell of the careful script that holds it.
    """

    line: str
    decision: str
    option: str
    stage: Stage
    good_in: Stage

    def __str__(self) -> str:
        return (
            f"{self.line!r} is a mistake in {self.stage.name} ({self.decision}={self.option}) and "
            f"part of the careful script in {self.good_in.name}"
        )


def shared_lines(task: Task) -> list[SharedLine]:
    """The lines of a task that mean two things, in the order in which its decisions come.

    Compared are, tier by tier, the cells of every focus with one decision taken badly against the
    cells of the careful script. A careful cell that is run at another time is no mistake of its
    lines, and neither is a line that is missing, or at another place of its own cell.

    Args:
        task: The task.
    """
    found: dict[SharedLine, None] = {}
    for tier in task.spec.tiers:
        careful = {focus: task.script(focus=focus, tier=tier) for focus in Stage}
        good: dict[str, Stage] = {}
        for cell in _all(careful.values()):
            for line in _lines(cell):
                good.setdefault(line, cell.stage)
        whole = {cell.code for cell in _all(careful.values())}
        for decision in task.decisions:
            for option in decision.options[1:]:
                for focus in Stage:
                    cells = task.script({decision.id: option}, focus=focus, tier=tier)
                    for cell in cells:
                        if cell.code in whole:
                            continue
                        own = _nearest(cell, careful[focus])
                        for line in _lines(cell) - own:
                            if line in good:
                                shared = SharedLine(
                                    line, decision.id, option, cell.stage, good[line]
                                )
                                found[shared] = None
    return list(found)


def _all(scripts: Iterable[tuple[ScriptCell, ...]]) -> Iterator[ScriptCell]:
    for script in scripts:
        yield from script


def _lines(cell: ScriptCell) -> set[str]:
    """Lines that say something: brackets and quotes alone close what other lines opened."""
    rows = (line.rstrip() for line in cell.code.splitlines())
    return {row for row in rows if any(c.isalnum() for c in row)}


def _nearest(cell: ScriptCell, careful: tuple[ScriptCell, ...]) -> set[str]:
    """Lines of the careful cell that this one is a variant of: the one with most in common."""
    own = _lines(cell)
    return max((_lines(other) for other in careful), key=lambda ls: len(own & ls), default=set())
