"""`make bench`: speed and size as ratios against named baselines measured in the same run.

Writes ``docs/results/bench.json``. Each row has the figure, the baseline, the ratio and the bound
that the project promises; the exit code is 1 when a bound does not hold. Absolute times belong to
the machine that made them; ratios are what to compare.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import demo
import episodes
import hand_in
import imports
import isolation
from measure import Row
from rich.console import Console
from rich.table import Table

SCHEMA_VERSION = 1
PARTS: dict[str, Callable[[], list[Row]]] = {
    "import": imports.rows,
    "docker": isolation.docker_rows,
    "local": isolation.local_rows,
    "episodes": episodes.episode_rows,
    "verifier": hand_in.rows,
    "training": episodes.training_rows,
    "demo": demo.rows,
}


@dataclass(frozen=True)
class Machine:
    """What the figures were measured on; no name of it."""

    cores: int
    python: str
    system: str


def _machine() -> Machine:
    return Machine(os.cpu_count() or 1, platform.python_version(), platform.system())


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=sorted(PARTS), default=sorted(PARTS))
    parser.add_argument("--out", type=Path, default=Path("docs/results/bench.json"))
    arguments = parser.parse_args()
    console = Console(stderr=True)
    rows: list[Row] = []
    for name in [p for p in PARTS if p in arguments.only]:
        console.print(f"[dim]measuring {name} ...[/]")
        rows += PARTS[name]()
    table = Table("figure", "value", "baseline", "ratio", "bound", "holds")
    for row in rows:
        baseline = "" if row.baseline is None else f"{row.baseline:.4g}"
        ratio = "" if row.ratio is None else f"{row.ratio:.3g}"
        holds = {True: "yes", False: "[red]NO[/]", None: "-"}[row.holds]
        table.add_row(row.name, f"{row.value:.4g} {row.unit}", baseline, ratio, row.bound, holds)
    console.print(table)
    report = {
        "schema_version": SCHEMA_VERSION,
        "command": "make bench",
        "date": datetime.now(UTC).date().isoformat(),
        "machine": asdict(_machine()),
        "rows": [row.to_json() for row in rows],
    }
    if set(arguments.only) == set(PARTS):
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        temporary = arguments.out.with_suffix(".tmp")
        temporary.write_text(json.dumps(report, indent=1) + "\n")
        temporary.replace(arguments.out)
    return int(any(row.holds is False for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
