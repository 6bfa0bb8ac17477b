"""The leaderboard row of an evaluation: Overall with its interval, and each track, times 100."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.table import Table

TRACKS: Final[Mapping[str, str]] = {
    "seg": "Seg",
    "enh": "Enh",
    "det": "Det",
    "cls": "Cls",
    "vqa": "VQA",
    "report": "Report",
    "synth": "Synth",
}
"""Track -> heading, in the order of the columns."""

LEADERBOARD_WIDTH: Final = 120
"""Characters that a row needs."""

ABSENT: Final = "-"
"""A track that the suite does not have, or a score that does not exist."""


def leaderboard_row(summary: Mapping[str, Any]) -> dict[str, str]:
    """Heading -> cell of one row.

    Args:
        summary: :meth:`Evaluation.summary <bat_agent.evaluation.Evaluation.summary>`.
    """
    bounds = summary["ci95"]["overall"]
    return {
        "Agent": str(summary["agent"]),
        "Overall": _shown(summary["overall"]),
        "95 %": ABSENT if bounds is None else f"{_shown(bounds[0])} - {_shown(bounds[1])}",
        "Agentic": _shown(summary["agentic"]),
        "Task": _shown(summary["task"]),
        **{heading: _shown(summary["tracks"].get(track)) for track, heading in TRACKS.items()},
    }


def leaderboard(summaries: Sequence[Mapping[str, Any]], title: str) -> Table:
    """A table of rows, the best Overall first.

    Args:
        summaries: One for each agent.
        title: Shown above.
    """
    table = Table(title=title, title_justify="left")
    headings = ["Agent", "Overall", "95 %", "Agentic", "Task", *TRACKS.values()]
    for heading in headings:
        justify = "left" if heading == "Agent" else "right"
        table.add_column(heading, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for summary in sorted(summaries, key=lambda s: -(s["overall"] or 0.0)):
        row = leaderboard_row(summary)
        table.add_row(*(row[heading] for heading in headings))
    return table


def _shown(score: float | None) -> str:
    return ABSENT if score is None else f"{100 * score:.1f}"
