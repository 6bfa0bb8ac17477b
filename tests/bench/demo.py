"""What the last `make demo` cost, as its own results say: nothing is run here."""

from __future__ import annotations

import json

from episodes import RUN
from measure import Row

MIB_GB = 2**20 / 1e9


def rows() -> list[Row]:
    """Memory at the peak, disk and wall time of the demo against what is promised."""
    file = RUN / "results.json"
    usage = json.loads(file.read_text()).get("usage") if file.is_file() else None
    if usage is None:
        print(f"{file} does not say what a run cost (run `make demo` first): demo rows left out")
        return []
    whose = " (without containers)" if usage["containers"] else ""
    figures = (
        (f"Demo, memory at the peak{whose}", usage["peak_memory_mb"] * MIB_GB, "GB", 4.0),
        ("Demo, disk", usage["disk_mb"] * MIB_GB, "GB", 5.0),
        (f"Demo, wall time in {usage['starts']} start(s)", usage["wall_s"] / 60, "min", 20.0),
        ("Demo, CPU time", usage["cpu_s"] / 60, "min", None),
    )
    return [
        Row(
            name,
            value,
            unit,
            bound="" if bound is None else f"<= {bound:g} {unit}",
            holds=None if bound is None else value <= bound,
        )
        for name, value, unit, bound in figures
    ]
