"""Freeze the held-out suites: ``python envs/suites/freeze.py`` from a source checkout.

Run it only together with a new task version: scores of a frozen suite must stay comparable.
Final suites count from held-out index 0, the controller's from CONTROLLER_START, so that they
share no instance.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from bat_env.tasks.discovery import load_task
from bat_env.tasks.suite import CONTROLLER_START, freeze

TASK, COUNT = "seg/kidney_tumor", 24
SUITES = {
    "lite": ("full", 0),
    "lite-mini": ("mini", 0),
    "lite-mini-controller": ("mini", CONTROLLER_START),
}


def main() -> None:
    """Write every suite beside this file."""
    for name, (size, start) in SUITES.items():
        manifest = freeze(name, load_task(TASK), size, start, COUNT)
        path = Path(__file__).with_name(f"{name}.json")
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        os.replace(temporary, path)
        print(f"{path.name}: {len(manifest['entries'])} instances")


if __name__ == "__main__":
    main()
