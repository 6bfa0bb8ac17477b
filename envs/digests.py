"""Write down what the generators give: ``python envs/digests.py [TASK ...]`` in a checkout.

Run it for a new task, and for a new version of one. A digest that changes without either means
that scores do not compare any more. ``--print`` writes nothing; tests run it with other Pythons.
"""

from __future__ import annotations

import argparse
import json
import os

from bat_env.tasks import load_task, task_ids
from bat_env.tasks.digests import SCHEMA_VERSION, committed, digests_path, measured
from bat_env.tasks.discovery import builtin_root


def main() -> None:
    """Measure, and write the file unless it is only asked for."""
    parser = argparse.ArgumentParser(description="Digests of what the generators give.")
    parser.add_argument("task", nargs="*", help="default: every task of this checkout")
    parser.add_argument("--print", action="store_true", help="print them, write nothing")
    given = parser.parse_args()
    tasks = [load_task(name) for name in given.task or task_ids()]
    own = [task for task in tasks if task.folder.is_relative_to(builtin_root())]
    made = {task.id: measured(task) for task in own}
    if given.print:
        print(json.dumps(made))
        return
    path = digests_path()
    kept = dict(committed()) if given.task and path.is_file() else {}
    rows = dict(sorted({**kept, **made}.items()))
    temporary = path.with_suffix(".new")
    temporary.write_text(
        json.dumps({"schema_version": SCHEMA_VERSION, "tasks": rows}, indent=1) + "\n",
        encoding="utf-8",
    )
    os.replace(temporary, path)
    print(f"{path.name}: {', '.join(made)}")


if __name__ == "__main__":
    main()
