"""Trivial outputs: what a submission reaches without looking at a picture.

Their scores are measured on dev instances, stored as ``floors`` in task.yaml, and must stay at or
below 0.10.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from bat_env.metrics.floors import trivial_outputs
from bat_env.tasks import task_of
from bat_env.tasks.instance import Instance

# A grid of boxes where forearm bones use to lie, as shares of width and height: centres, sides.
PLACES = tuple((x, y) for x in (0.3, 0.42, 0.58, 0.7) for y in (0.6, 0.7, 0.8))
SIDES = {
    "fracture": (0.24, 0.12),
    "bone_lesion": (0.16, 0.15),
    "periosteal_reaction": (0.1, 0.2),
    "metal": (0.12, 0.18),
}


def outputs(instance: Instance) -> Mapping[str, dict[str, bytes]]:
    """Method -> {workspace path: file}: no box, whole pictures, mean boxes, and a grid of boxes."""
    spec = task_of(__file__).spec
    grid = {}
    for case in instance.cases:
        width, height = instance.facts["size_px"][case]
        boxes = [
            {
                "class": name,
                "score": 0.5,
                "x1": (x - a / 2) * width,
                "y1": (y - b / 2) * height,
                "x2": (x + a / 2) * width,
                "y2": (y + b / 2) * height,
            }
            for name, (a, b) in SIDES.items()
            for x, y in PLACES
        ]
        grid[spec.output.path.format(case=case)] = json.dumps({"boxes": boxes}).encode()
    return {**trivial_outputs(__file__, instance), "grid": grid}
