"""Trivial outputs: what a submission reaches without looking at a picture.

Their scores are measured on dev instances, stored as ``floors`` in task.yaml, and must stay at or
below 0.10.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from bat_env.metrics.floors import trivial_outputs
from bat_env.tasks import task_of
from bat_env.tasks.instance import Instance


def outputs(instance: Instance) -> Mapping[str, dict[str, bytes]]:
    """Method -> {workspace path: file}: each class everywhere, and one by the case's name."""
    classes = list(task_of(__file__).spec.output.labels.values())
    rows = ["case,label"]
    for case in instance.cases:
        rows.append(f"{case},{classes[hashlib.sha256(case.encode()).digest()[0] % len(classes)]}")
    by_name = {"outputs/predictions.csv": ("\n".join(rows) + "\n").encode()}
    return {**trivial_outputs(__file__, instance), "by_name": by_name}
