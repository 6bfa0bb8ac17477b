"""Freeze the held-out suites: ``python envs/suites/freeze.py`` from a source checkout.

Run it when a track has its Lite task: the suites of all tracks take in the Lite tasks that are
there. An instance that was frozen before must not change: scores of a suite must stay comparable.
Final suites count from held-out index 0, the controller's from CONTROLLER_START, so that they
share no instance. The demo has suites of its own task, so that its scores do not follow new tasks.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from bat_env.tasks import Task, load_task, task_ids
from bat_env.tasks.discovery import builtin_root
from bat_env.tasks.suite import CONTROLLER_START, check_refrozen, freeze

DEMO, LITE = "seg/kidney_tumor", None
SUITES = {
    "lite": (LITE, "full", 0, 10),
    "lite-mini": (LITE, "mini", 0, 10),
    "lite-mini-controller": (LITE, "mini", CONTROLLER_START, 10),
    "seg": (DEMO, "full", 0, 24),
    "seg-mini": (DEMO, "mini", 0, 24),
    "seg-mini-controller": (DEMO, "mini", CONTROLLER_START, 24),
}
"""Name -> task (None: the Lite task of each track), size, first index, instances of each task."""
TRACKS = ("seg", "enh", "det", "cls", "vqa", "report", "synth")


def lite_tasks() -> list[Task]:
    """The Lite tasks of this checkout, in the order of the tracks."""
    tasks = [load_task(name) for name in task_ids()]
    own = [t for t in tasks if t.spec.lite and t.folder.is_relative_to(builtin_root())]
    return sorted(own, key=lambda task: TRACKS.index(task.spec.track))


def main() -> None:
    """Write every suite beside this file."""
    parser = argparse.ArgumentParser(description="Freeze the held-out suites.")
    parser.add_argument("--replace", action="store_true", help="frozen instances may change")
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent)
    given = parser.parse_args()
    made = {}
    for name, (task, size, start, count) in SUITES.items():
        tasks = lite_tasks() if task is None else [load_task(task)]
        made[name] = freeze(name, tasks, size, start, count)
        path = given.folder / f"{name}.json"
        if path.is_file() and not given.replace:
            check_refrozen(json.loads(path.read_text("utf-8")), made[name])
    for name, manifest in made.items():
        path = given.folder / f"{name}.json"
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        os.replace(temporary, path)
        tracks = {entry["task"]: 0 for entry in manifest["entries"]}
        print(f"{path.name}: {len(manifest['entries'])} instances of {', '.join(tracks)}")


if __name__ == "__main__":
    main()
