"""Outputs that need no look at an image score next to nothing, and the truth everything."""

from __future__ import annotations

import statistics
from collections.abc import Container
from typing import Final

from bat_env.grader import shared_grader
from bat_env.metrics.floors import cases_of
from bat_env.metrics.truths import true_files
from bat_env.task_rules.drawn import drawn
from bat_env.tasks import Task

MAX_FLOOR: Final = 0.10
MIN_TRUTH: Final = 0.99
_FEW: Final = 6
_MANY: Final = 24
"""Instances that are asked: first, and where those say that an output scores too much."""


def full_marks(task: Task) -> None:
    """The truth, handed in as an agent would write it, is valid and scores 1."""
    grader = shared_grader()
    for made in drawn(task, count=2):
        grade = grader.grade(task, made, true_files(task.spec, cases_of(made)))
        assert all(grade.valid.values()), f"The truth is no valid output: {dict(grade.messages)}."
        assert grade.score >= MIN_TRUTH, f"The truth itself scores {grade.score:.3f}."


def floors(task: Task) -> None:
    """Trivial outputs score at most .10, and what task.yaml says of them within the noise.

    Six instances may say otherwise by chance, as those of a copied task do: then more decide.
    """
    for method, stated in task.spec.floors.items():
        assert stated <= MAX_FLOOR, f"Floor {method} is {stated}, more than {MAX_FLOOR}."
    grader = shared_grader()
    totals: dict[str, list[float]] = {}

    def measure(count: int, methods: Container[str] | None = None) -> None:
        for made in drawn(task, count=count):
            for method, files in task.trivial_outputs(made).items():
                if methods is None or method in methods:
                    totals.setdefault(method, []).append(grader.grade(task, made, files).score)

    measure(_FEW)
    high = [method for method, values in totals.items() if sum(values) > MAX_FLOOR * len(values)]
    for method in high:
        del totals[method]
    if high:
        measure(_MANY, high)
    means = {method: sum(values) / len(values) for method, values in totals.items()}
    shown = {method: round(value, 3) for method, value in means.items()}
    assert set(means) == set(task.spec.floors), f"floors in task.yaml must be measured: {shown}"
    for method, value in means.items():
        stated = task.spec.floors[method]
        error = statistics.stdev(totals[method]) / len(totals[method]) ** 0.5
        chance = error if method in high else 0.0
        assert value <= MAX_FLOOR + chance, f"Trivial output {method} scores {value:.3f}."
        slack = max(0.02, 3 * error)
        assert value <= stated + slack, f"{method} scores {value:.3f}, floors says {stated}."
