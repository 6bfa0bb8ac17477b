"""The scoreboard of an episode for people; :mod:`bat_env.montage` draws its pictures."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Final

from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from bat_env.episode import Episode
from bat_env.rubric.base import RubricResult
from bat_env.tasks.spec import TaskSpec
from bat_env.terminal import Terminal

_MAX_OUTPUT_BYTES: Final = 64 << 20
MARKS: Final[Mapping[str, tuple[str, str]]] = {
    "pass": ("pass", "green"),
    "fail": ("fail", "red"),
    "pending": ("open", "yellow"),
    "na": ("n/a", "bright_black"),
    "null": ("lost", "magenta"),
}
"""Item state -> word and colour."""


def outputs_of(
    episode: Episode, spec: TaskSpec, read: Callable[[str, int], bytes | None]
) -> dict[str, bytes]:
    """Case id -> output file as it is now, as far as there is one.

    Args:
        episode: The record; at the end its evidence holds the files.
        spec: Says where outputs lie.
        read: ``(path, max_bytes)`` -> content of a workspace file, or ``None``.
    """
    found = {}
    for case in episode.cases:
        path = spec.output.path.format(case=case)
        data = episode.evidence.files.get(path)
        if data is None and path in episode.current:
            data = read(path, _MAX_OUTPUT_BYTES)
        if data is not None:
            found[case] = data
    return found


def scoreboard(
    episode: Episode, rubric: RubricResult | None, score: float, spec: TaskSpec, width: int = 96
) -> str:
    """The state of an episode as a text table with ANSI colours.

    Args:
        episode: The record.
        rubric: The last evaluation, or ``None`` before the first step.
        score: Episode score in [0, 1].
        spec: For title and budgets.
        width: Columns.
    """
    items = Table(expand=True, show_edge=False, pad_edge=False)
    for name, ratio in (("item", 3), ("state", 1), ("value", 1), ("", 5)):
        items.add_column(name, ratio=ratio, overflow="fold")
    for verdict in rubric.verdicts if rubric is not None else ():
        label, colour = MARKS[verdict.state]
        items.add_row(
            Text(verdict.item),
            Text(label, style=colour),
            f"{verdict.value:.2f}" if verdict.state in ("pass", "fail") else "",
            Text(verdict.message + (" (false claim)" if verdict.false_claim else "")),
        )
    stages = ""
    if rubric is not None:
        parts = [
            f"{stage.name} {'null' if r.reward is None else format(r.reward, '.2f')}"
            for stage, r in sorted(rubric.stages.items())
        ]
        stages = "   ".join(parts)
    used = (
        f"turn {len(episode.turns)}/{spec.budgets.turns}   call {len(episode.cells)}/"
        f"{spec.budgets.calls}   {episode.status} {episode.end_reason}"
    )
    head = Text(f"score {score:.3f}   {stages}\n{used}")
    title = f"{episode.task} · {episode.focus.name} {episode.focus.title} · {episode.tier}"
    stream = io.StringIO()
    console = Terminal(file=stream, force_terminal=True, width=width, color_system="standard")
    console.print(Panel(Group(head, Text(""), items), title=Text(title)))
    return stream.getvalue()
