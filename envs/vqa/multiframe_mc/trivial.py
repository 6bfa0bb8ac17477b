"""Trivial outputs: what a submission reaches without looking at a frame.

Their scores are measured on dev instances, stored as ``floors`` in task.yaml, and must stay at or
below 0.10.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from bat_env.metrics.floors import trivial_outputs
from bat_env.tasks.instance import Instance

LETTERS = "ABCD"
FAVOURITES = ("frame 1", "both walls", "30 to 40 %")


def _favourite(options: Mapping[str, str]) -> str:
    """The letter of the first favourite text among the options, else the first letter."""
    of = {text: letter for letter, text in options.items()}
    return next((of[text] for text in FAVOURITES if text in of), LETTERS[0])


def outputs(instance: Instance) -> Mapping[str, dict[str, bytes]]:
    """Method -> {workspace path: file}: the metric's, a usual text, or a letter by the name."""
    favourite, by_name = ["case,answer"], ["case,answer"]
    for case in instance.cases:
        options = json.loads(instance.public[f"{case}/question.json"])["options"]
        favourite.append(f"{case},{_favourite(options)}")
        by_name.append(f"{case},{LETTERS[hashlib.sha256(case.encode()).digest()[1] % 4]}")
    made = {"favourite": favourite, "by_name": by_name}
    own = {
        name: {"outputs/answers.csv": ("\n".join(rows) + "\n").encode()}
        for name, rows in made.items()
    }
    return {**trivial_outputs(__file__, instance), **own}
