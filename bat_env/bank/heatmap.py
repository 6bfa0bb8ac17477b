"""The 126 cells of a Stage Bank at a glance, for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rich.table import Table
from rich.text import Text

from bat_env.stages import OUTCOMES, Stage

_SHADES: Final = ("on grey11", "on dark_green", "on green4", "on green3", "on chartreuse3")
"""Backgrounds from an empty cell to one with as many states as any."""
ORDER: Final = (Stage.E2E, Stage.S1, Stage.S2, Stage.S3, Stage.S4, Stage.S5)


def shade(count: int, most: int) -> int:
    """How full a cell is, 0 to 4: 0 is empty, 4 has as many states as any."""
    if count == 0:
        return 0
    return max(1, round(4 * count / max(1, most)))


def heatmap(grid: Mapping[str, Mapping[str, Mapping[str, int]]], tracks: tuple[str, ...]) -> Table:
    """A table: a row for each track, a column for each focus and outcome.

    Args:
        grid: track -> focus name -> outcome -> states.
        tracks: Rows; a track that the bank has nothing of is a row of empty cells.
    """
    most = max((n for t in grid.values() for f in t.values() for n in f.values()), default=0)
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold", pad_edge=False)
    table.add_column("")
    for focus in ORDER:
        table.add_column(f"{focus.name}\n{' '.join(f'{name[0]:>2}' for name in OUTCOMES)}")
    for track in tracks:
        cells = []
        for focus in ORDER:
            row = Text()
            for outcome in OUTCOMES:
                count = grid.get(track, {}).get(focus.name, {}).get(outcome, 0)
                style = _SHADES[shade(count, most)]
                row.append(f"{count or '.':>2}", style=f"white {style}" if count else style)
                row.append(" ")
            cells.append(row)
        table.add_row(track, *cells)
    return table
