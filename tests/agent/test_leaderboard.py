"""The leaderboard row: every track has a column, whatever the suite holds."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from bat_agent.evaluation import CellScore, Evaluation
from bat_agent.leaderboard import ABSENT, LEADERBOARD_WIDTH, TRACKS, leaderboard, leaderboard_row
from bat_env import TRACK_IDS


def cell(track: str, overall: float | None, index: int = 0) -> CellScore:
    values: dict[str, Any] = {"agentic": overall, "task_score": overall}
    return CellScore(f"{track}/t", track, index, index, 1, "submitted", overall, **values)


def evaluation(agent: str, **scores: float | None) -> Evaluation:
    cells = tuple(cell(track, score) for track, score in scores.items())
    return Evaluation(agent, "lite", "d" * 64, cells)


def test_every_track_has_a_column() -> None:
    assert list(TRACKS) == list(TRACK_IDS)


def test_a_row_is_in_percent_with_an_interval() -> None:
    row = leaderboard_row(evaluation("oracle", seg=1.0, vqa=0.5, synth=0.756).summary())
    assert row["Agent"] == "oracle" and row["Overall"] == "75.2" and row["Seg"] == "100.0"
    assert row["VQA"] == "50.0" and row["Synth"] == "75.6"
    assert [row[name] for name in ("Enh", "Det", "Cls", "Report")] == [ABSENT] * 4
    low, _, high = row["95 %"].partition(" - ")
    assert float(low) <= 75.2 <= float(high)


def test_nothing_scored_is_no_zero() -> None:
    row = leaderboard_row(evaluation("dead", seg=None).summary())
    assert {row[name] for name in row if name != "Agent"} == {ABSENT}


def test_rows_are_one_line_each_the_best_first() -> None:
    scores = dict.fromkeys(TRACKS, 1.0)
    shown = [evaluation("a_weak_agent", seg=0.25), evaluation("a_strong_agent", **scores)]
    buffer = io.StringIO()
    console = Console(file=buffer, width=LEADERBOARD_WIDTH)
    console.print(leaderboard([each.summary() for each in shown], "lite"))
    lines = [line for line in buffer.getvalue().splitlines() if "_agent" in line]
    assert len(lines) == 2 and "a_strong_agent" in lines[0] and lines[0].count("100.0") == 12
