"""Reads exported tasks with Harbor's own classes; run by Python 3.12 or newer."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from harbor.models.task.task import Task
from harbor.models.task.verifier_mode import resolve_verifier_environment_definition


def main() -> None:
    asked = json.loads(sys.stdin.read())
    found = []
    for folder in sorted(Path(asked["folder"]).iterdir()):
        task = Task(folder)
        definition = resolve_verifier_environment_definition(task.config, task.paths)
        assert definition is not None
        found.append(
            {
                "valid": Task.is_valid_dir(folder),
                "name": task.name,
                "instruction": task.instruction,
                "separate": definition.bundled_tests and definition.directory.name == "tests",
                "artifacts": [str(a) for a in task.config.artifacts],
                "agent_s": task.config.agent.timeout_sec,
                "workdir": task.config.environment.workdir,
                "solution": task.paths.discovered_solve_path is not None,
            }
        )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
