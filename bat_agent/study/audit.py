"""Is a policy paid for what is not so? Its held-out episodes, scored again from their evidence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bat_env.errors import BatError
from bat_env.evidence import rescore
from bat_env.explain import explained
from bat_env.trajectory import read_trajectory

EPISODES: Final = 20


def audit(trajectories: Path, episodes: int = EPISODES) -> dict[str, Any]:
    """Explain a spread of recorded episodes.

    Args:
        trajectories: Folder of the trajectory files of one evaluation.
        episodes: How many, spread evenly over the files in order of name.

    Returns:
        ``episodes`` that were explained; ``false_claims``: items whose claim the host proved false;
        ``paid``: those of them that earned something; ``changed``: episodes whose score, made again
        from the evidence, is not the recorded one. The last two are 0 where rewards believe the
        evidence alone.

    Raises:
        BatError: If there is no trajectory, or one cannot be read.
    """
    files = sorted(trajectories.rglob("*.json"))
    if not files:
        raise BatError(f"Expected recorded episodes in {trajectories}, found none.")
    chosen = spread(files, episodes)
    false: list[Mapping[str, Any]] = []
    changed = 0
    for file in chosen:
        read = read_trajectory(file)
        scored = rescore(read.evidence)
        facts = explained(read, scored)
        false += [item for item in facts["items"] if item["false_claim"]]
        changed += scored.score != sum(read.rewards)
    return {
        "episodes": len(chosen),
        "false_claims": len(false),
        "paid": sum((item["value"] or 0.0) > 0.0 for item in false),
        "changed": changed,
    }


def spread(files: Sequence[Path], count: int) -> list[Path]:
    """``count`` of the files, or all, at equal distances."""
    step = max(1.0, len(files) / count)
    return [files[math.floor(i * step)] for i in range(min(count, len(files)))]
