"""A task of your own: a working copy of a track's task in a folder of yours, changed and checked.

The same on the command line: `bat-env tasks new cls/my_task --root my_tasks`, then
`BAT_TASKS_PATH=my_tasks bat-env tasks check cls/my_task`.
"""

from __future__ import annotations

import os
from pathlib import Path

from bat_env.tasks import load_task
from bat_env.tasks.scaffold import new_task
from bat_env.testing import task_findings


def main() -> None:
    root = Path("my_tasks")
    folder = new_task("cls/my_task", root)
    description = folder / "task.yaml"
    text = description.read_text("utf-8")
    title = next(line for line in text.splitlines() if line.startswith("title:"))
    description.write_text(text.replace(title, "title: Photographs of skin, my way"), "utf-8")

    os.environ["BAT_TASKS_PATH"] = str(root)
    task = load_task("cls/my_task")
    instance = task.instance("train", 0, "mini")
    print(f"{task.id}: {task.spec.title}; {len(instance.cases)} cases in a reduced instance")
    for rule, wrong in task_findings(task, depth="files", sandbox="local"):
        print("--" if wrong else "ok", rule, wrong)


if __name__ == "__main__":
    main()
