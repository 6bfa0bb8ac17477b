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


def _text(*claims: str) -> bytes:
    """A report that makes these claims and denies every other finding."""
    findings = task_of(__file__).spec.metric.params["findings"]
    denied = [f"No {name}." for name in findings if not any(name in claim for claim in claims)]
    return (" ".join(("Frontal chest radiograph.", *claims, *denied)) + "\n").encode()


def _by_name(case: str) -> bytes:
    """One finding on one side that the name of the case decides."""
    findings = task_of(__file__).spec.metric.params["findings"]
    digest = hashlib.sha256(case.encode()).digest()
    name = list(findings)[digest[0] % len(findings)]
    side = ("Left", "Right")[digest[1] % 2] if findings[name]["lateral"] else "There is"
    return _text(f"{side} {name}.")


def outputs(instance: Instance) -> Mapping[str, dict[str, bytes]]:
    """Method -> {workspace path: file}: the metric's, usual claims, one by the case's name."""
    constant = {
        "denied": _text(),
        "heart": _text("There is cardiomegaly."),
        "effusion": _text("Bilateral pleural effusion."),
    }
    path = task_of(__file__).spec.output.path
    own = {
        name: {path.format(case=case): text for case in instance.cases}
        for name, text in constant.items()
    }
    own["by_name"] = {path.format(case=case): _by_name(case) for case in instance.cases}
    return {**trivial_outputs(__file__, instance), **own}
