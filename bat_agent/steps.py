"""The step log of a training run: one JSON object per optimiser step, in order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

LOG: Final = "steps.jsonl"


def read_steps(out_dir: str | Path) -> list[dict[str, float]]:
    """The step log of a run, in order; a line that a kill cut short is dropped."""
    file = Path(out_dir) / LOG
    if not file.is_file():
        return []
    steps = []
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            steps.append(json.loads(line))
        except ValueError:
            continue
    return steps
