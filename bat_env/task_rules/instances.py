"""Instances: separate splits, no name of another task, variety, normal cases, determinism."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import chain
from typing import Final

from bat_env.task_rules.drawn import drawn
from bat_env.tasks import Task, load_task, task_ids
from bat_env.tasks.digests import committed, measured
from bat_env.tasks.discovery import builtin_root
from bat_env.tasks.instance import SPLITS
from bat_env.tasks.spec import TaskSpec


def splits(task: Task) -> None:
    """train, dev and heldout share no seed, no fictional value and no case id."""
    fiction = _worlds_of(task.spec)
    seeds = {split: {task.seed(split, i) for i in range(500)} for split in SPLITS}  # type: ignore[arg-type]
    ids = {
        split: set(chain(*(d.cases for d in drawn(task, split, 4))))  # type: ignore[arg-type]
        for split in SPLITS
    }
    for what, groups in (("fictional value", fiction), ("seed", seeds), ("case id", ids)):
        total = set().union(*groups.values())
        assert len(total) == sum(map(len, groups.values())), f"Two splits share a {what}."


def world(task: Task) -> None:
    """No name of this task's world stands in another split of another task.

    What one task holds out would otherwise be seen in another one's training.
    """
    for other in (load_task(name).spec for name in task_ids() if name != task.id):
        for split, values in _worlds_of(task.spec).items():
            for theirs, others in _worlds_of(other).items():
                shared = sorted(values & others) if split != theirs else []
                assert not shared, (
                    f"Fictional value {shared[0]!r} of {split} stands in {theirs} of {other.id} "
                    "too. Choose another one in task.yaml."
                )


def _worlds_of(spec: TaskSpec) -> dict[str, set[str]]:
    """Split -> every fictional value."""
    return {
        split: {value for row in rows for value in row.values()}
        for split, rows in spec.fiction.items()
    }


def variety(task: Task) -> None:
    """Instances differ; case ids are random and carry the prefix; the probe is unseen."""
    tails = set()
    for made in drawn(task):
        assert made.probe_case not in made.cases, "The probe case must not be a case."
        assert len(set(made.cases)) == len(made.cases) >= 2, "At least two different cases."
        prefix = made.fiction["prefix"] + "-"
        for case in made.cases:
            assert case.startswith(prefix), f"Case id {case} must start with {prefix}."
            tails.add(case.removeprefix(prefix))
    assert len(tails) >= 12, "Case ids must be random."
    assert len({d.digest for d in drawn(task)}) == 6, "Two indices give one instance."
    for key in task.spec.facts:
        values = {json.dumps(d.facts[key], sort_keys=True) for d in drawn(task)}
        assert len(values) > 1, f"Fact {key} is the same in every instance."


def normal_cases(task: Task) -> None:
    """Cases without any finding exist, where the track has findings."""
    spec = task.spec
    lesion = spec.metric.params.get("lesion")
    free = diseased = False
    for made in drawn(task):
        for case in made.cases:
            if spec.track == "seg" and lesion:
                found = bool(made.facts["volumes_ml"][case][lesion])
            elif spec.track in ("det", "report"):
                truth = json.loads(made.private[f"{case}/{spec.truth_name}"])
                found = bool(truth["boxes" if spec.track == "det" else "findings"])
            else:
                return
            free, diseased = free or not found, diseased or found
    assert free and diseased, "Cases with and without a finding must exist."


_MEASURE: Final = """\
import json, sys
from bat_env.tasks import load_task
from bat_env.tasks.digests import measured
print(json.dumps(measured(load_task(sys.argv[1]))))
"""


def determinism(task: Task) -> None:
    """The same instances come out here, in another process, and when they were written down."""
    here = measured(task)
    places = [str(task.folder.parent.parent), os.environ.get("BAT_TASKS_PATH", "")]
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, task.id],
        env={
            **os.environ,
            "PYTHONHASHSEED": "7",
            "BAT_TASKS_PATH": os.pathsep.join(filter(None, places)),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and json.loads(done.stdout) == here, (
        f"generate() is not deterministic across processes. {done.stderr[-300:]}"
    )
    if task.folder.is_relative_to(builtin_root()):
        written = committed().get(task.id)
        assert written is not None, (
            f"envs/digests.json does not have the task. Run: python envs/digests.py {task.id}"
        )
        changed = [name for name, digest in here.items() if written.get(name) != digest]
        assert not changed, (
            f"generate() gives another instance {changed[0]} than envs/digests.json says. Restore "
            f"it, or make a new version and run: python envs/digests.py {task.id}"
        )
