"""``bat-env explain`` and ``bat-env rescore``: episodes looked at again, from their files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bat_env.errors import BatError
from bat_env.plain import visible

if TYPE_CHECKING:
    from bat_env.evidence import Rescored
    from bat_env.trajectory import Trajectory

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def explain(
    trajectories: Annotated[
        list[Path], typer.Argument(help="Trajectory files, or folders of them.")
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object a trajectory, a line each.")
    ] = False,
) -> None:
    """Show why an episode scored what it did: every item, with its evidence."""
    from bat_env.explain import explained, explanation
    from bat_env.terminal import Terminal

    files = list(_files(trajectories))
    if not files:
        raise BatError(f"No trajectories in {', '.join(map(str, trajectories))}.")
    for file in files:
        read, scored = _scored(file)
        if as_json:
            print(json.dumps(explained(read, scored)))
        else:
            Terminal().print(explanation(read, scored))


def rescore(
    trajectories: Annotated[
        list[Path], typer.Argument(help="Trajectory files, or folders of them.")
    ],
    as_json: AsJson = False,
) -> None:
    """Score stored episodes again from their evidence, and compare with what was recorded.

    Exit code 1: an episode scores something else, or a file that was named cannot be scored.
    """
    rows: list[dict[str, Any]] = []
    for path in _files(trajectories):
        try:
            read, scored = _scored(path)
        except BatError as error:
            rows.append({"path": str(path), "same": None, "why": str(error)})
            continue
        same = list(scored.rewards) == read.rewards
        rubric = "" if scored.same_rubric else " (played under another rubric)"
        why = "" if same else f"recorded {sum(read.rewards)}, now {scored.score}{rubric}"
        rows.append({"path": str(path), "same": same, "why": why})
    if not rows:
        raise BatError(f"No trajectories in {', '.join(map(str, trajectories))}.")
    alike, other = (sum(row["same"] is kind for row in rows) for kind in (True, False))
    if as_json:
        print(json.dumps({"same": alike, "different": other, "episodes": rows}))
    else:
        for row in rows:
            if row["same"] is not True:
                print(visible(f"{row['path']}: {row['why']}"))
        unread = len(rows) - alike - other
        print(f"{alike} the same, {other} different, {unread} without evidence")
    named = {str(path) for path in trajectories if not path.is_dir()}
    if other or any(row["same"] is None and row["path"] in named for row in rows):
        raise typer.Exit(1)


def _files(paths: list[Path]) -> Iterator[Path]:
    for path in paths:
        yield from sorted(path.rglob("*.json")) if path.is_dir() else [path]


def _scored(path: Path) -> tuple[Trajectory, Rescored]:
    from bat_env.evidence import rescore as again
    from bat_env.trajectory import read_trajectory

    read = read_trajectory(path)
    return read, again(read.evidence)
