"""What the judge may look at: named files that are the episode's own work, and a list of its cells.

Nothing else of the record comes in here: no output of a cell, no grade, no truth, no verdict.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from bat_env.episode import CellRecord, Episode
from bat_env.errors import SandboxError
from bat_env.judge.fence import Frozen, frozen, frozen_lines
from bat_env.judge.items import PILOT_NOTES, RECORD, SETUP_NOTES
from bat_env.rubric.claims import MAX_JSON_BYTES, Fail, Lost, own_bytes, own_paths

READ_BACK: Final[tuple[str, ...]] = (SETUP_NOTES, PILOT_NOTES)
"""Files that only the judge reads."""
MAX_LISTED: Final = 8
"""Paths of one cell that are listed; the rest is counted."""


@dataclass(frozen=True, slots=True)
class Material:
    """Frozen copies for one request.

    Attributes:
        files: Path -> copy; the record of cells is the one named ``record``.
        absent: Path -> why there is no copy: the agent's doing.
        lost: Path -> why there is no copy: infrastructure's doing.
    """

    files: dict[str, Frozen] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """sha256 over everything that is shown."""
        rows = "\n".join(f"{path} {copy.digest}" for path, copy in sorted(self.files.items()))
        return hashlib.sha256(rows.encode()).hexdigest()


def read_back(episode: Episode, read: Callable[[str, int], bytes]) -> dict[str, str]:
    """Add the judge's own files to the evidence, if the episode wrote them.

    Args:
        episode: The record; ``evidence.files`` gets the copies.
        read: ``(path, max_bytes)`` -> content of a regular workspace file.

    Returns:
        Path -> why infrastructure could not read it.
    """
    lost = {}
    for path in READ_BACK:
        if path not in own_paths(episode) or path in episode.evidence.files:
            continue
        try:
            episode.evidence.files[path] = read(path, MAX_JSON_BYTES)
        except (FileNotFoundError, ValueError):
            continue
        except (SandboxError, OSError) as error:
            lost[path] = f"{path} could not be read back ({type(error).__name__})."
    return lost


def gather(episode: Episode, paths: Iterable[str], lost: dict[str, str] | None = None) -> Material:
    """Frozen copies of some files; a pure function of the record.

    Args:
        episode: The record at hand-in.
        paths: Workspace paths, or ``record``.
        lost: Files that infrastructure lost, path -> why.
    """
    found = Material()
    for path in dict.fromkeys(paths):
        if path == RECORD:
            found.files[path] = frozen_lines(RECORD, [_line(cell) for cell in episode.cells])
        elif lost and path in lost:
            found.lost[path] = lost[path]
        else:
            try:
                copy = frozen(path, own_bytes(episode, path))
            except Fail as missing:
                found.absent[path] = missing.message
            except Lost as missing:
                found.lost[path] = str(missing)
            else:
                if copy.empty:
                    found.absent[path] = f"{path} says nothing."
                else:
                    found.files[path] = copy
    return found


_GROUPS: Final[tuple[str, ...]] = (
    "outputs/manifest.json",
    "outputs",
    "validation/pilot",
    "validation",
    "pipeline",
    "setup",
    "plan",
)


def _group(path: str) -> str:
    return next((g for g in _GROUPS if path == g or path.startswith(f"{g}/")), "elsewhere")


def _line(cell: CellRecord) -> str:
    """A cell in one line: the host's counts first, then the paths, which are the agent's words."""
    result = cell.result
    how = "ok" if result.ok else f"failed with exit code {result.exit_code}"
    if result.limit is not None:
        how = f"failed, limit {result.limit}"
    written = [
        path
        for tree in (result.delta.created, result.delta.changed)
        for path, entry in tree.items()
        if entry.kind != "dir"
    ]
    counts = Counter(map(_group, written))
    parts = [f"{group} {counts[group]}" for group in (*_GROUPS, "elsewhere") if counts[group]]
    cases = {p.split("/")[2] for p in written if p.startswith("validation/pilot/")}
    if cases:
        parts.append(f"pilot cases {len(cases)}")
    if result.delta.deleted:
        parts.append(f"deleted {len(result.delta.deleted)}")
    listed = ", ".join(json.dumps(path, ensure_ascii=False) for path in written[:MAX_LISTED])
    more = f" and {len(written) - MAX_LISTED} more" if len(written) > MAX_LISTED else ""
    wrote = f"files written: {', '.join(parts) or 'none'}"
    return f"cell {cell.call} ({cell.language}): {how}; {wrote}; {listed}{more}".rstrip("; ")
