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
    """Show why an episode scored what it did: every item, with its evidence.

    Exit code 1: a file that was named cannot be explained, or none of those in a folder.
    """
    from bat_env.explain import explained, explanation
    from bat_env.terminal import Terminal

    done, left = 0, dict[str, str]()
    for file in _all(trajectories):
        try:
            read, scored = _scored(file)
        except BatError as error:
            left[str(file)] = str(error)
            continue
        done += 1
        if as_json:
            print(json.dumps(explained(read, scored)))
        else:
            Terminal().print(explanation(read, scored))
    for path, why in left.items():
        typer.echo(_line(path, why), err=True)
    if not done or _named(trajectories) & left.keys():
        raise typer.Exit(1)


def rescore(
    trajectories: Annotated[
        list[Path], typer.Argument(help="Trajectory files, or folders of them.")
    ],
    as_json: AsJson = False,
) -> None:
    """Score stored episodes again from their evidence, and compare with what was recorded.

    Rewards, scores, return, status and the final result are compared. Exit code 1: something is
    not what the evidence gives, or a file that was named, or all of a folder, cannot be scored.
    """
    from bat_env.recorded import differences

    rows: list[dict[str, Any]] = []
    for path in _all(trajectories):
        try:
            read, scored = _scored(path)
        except BatError as error:
            rows.append({"path": str(path), "same": None, "why": str(error)})
            continue
        found = differences(read, scored)
        rubric = "" if scored.same_rubric else " (played under another rubric)"
        why = "; ".join(found) + rubric if found else ""
        rows.append({"path": str(path), "same": not found, "why": why})
    alike, other = (sum(row["same"] is kind for row in rows) for kind in (True, False))
    if as_json:
        print(json.dumps({"same": alike, "different": other, "episodes": rows}))
    else:
        for row in rows:
            if row["same"] is not True:
                print(_line(row["path"], row["why"]))
        unread = len(rows) - alike - other
        print(f"{alike} the same, {other} different, {unread} without evidence")
    unscored = {row["path"] for row in rows if row["same"] is None}
    if other or not alike or _named(trajectories) & unscored:
        raise typer.Exit(1)


def _line(path: str, why: str) -> str:
    return visible(why if path in why else f"{path}: {why}")


def _named(paths: list[Path]) -> set[str]:
    return {str(path) for path in paths if not path.is_dir()}


def _all(paths: list[Path]) -> list[Path]:
    files = list(_files(paths))
    if not files:
        raise BatError(f"No trajectories in {', '.join(map(str, paths))}.")
    return files


def _files(paths: list[Path]) -> Iterator[Path]:
    for path in paths:
        yield from sorted(path.rglob("*.json")) if path.is_dir() else [path]


def _scored(path: Path) -> tuple[Trajectory, Rescored]:
    from bat_env.evidence import rescore as again
    from bat_env.trajectory import read_trajectory

    read = read_trajectory(path)
    return read, again(read.evidence)
