"""What a cell need not pay for: modules that every prediction imports, pages that it gave back."""

from __future__ import annotations

import json
from collections.abc import Callable

from bat_env.sandbox import CellResult, Sandbox
from bat_env.stages import Stage
from bat_env.tasks import load_task, stage_files, task_ids

Run = Callable[..., CellResult]

_NEW = """
import json as _json
print("NEW" + _json.dumps(sorted(set(__import__("sys").modules) - _before)))
"""

_FAULTS = """
import resource
import numpy as np


def layers():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        held = [np.ones(3 << 17) for _ in range(8)]  # 3 MiB each
        del held
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


print(layers(), layers())
"""


_ROOM = """
import os


def used():
    room = os.statvfs("/workspace")
    return (room.f_blocks - room.f_bfree) * room.f_frsize // 4096


start = used()
for number in range(50):
    with open(f"small{number}", "wb") as file:
        file.write(b"x")
with open("grown", "wb", buffering=0) as file:
    for _ in range(400):
        file.write(bytes(3000))
print(used() - start)
"""


def test_files_take_no_more_room_than_they_fill(walled: Sandbox, python: Run) -> None:
    """However large the pages are that the kernel may give to them."""
    assert int(python(walled, _ROOM).stdout) == 50 + -(-400 * 3000 // 4096)


def test_the_zygote_has_what_every_workflow_imports(sandbox: Sandbox, python: Run) -> None:
    for name in task_ids():
        task = load_task(name)
        drawn = task.instance("train", 0, "mini")
        sandbox.reset(stage_files(task, drawn, "lite", Stage.E2E))
        for cell in task.script():
            code = f"_before = set(__import__('sys').modules)\n{cell.code}\n{_NEW}"
            ran = python(sandbox, code, timeout_s=120.0)  # what it takes is not the question here
            assert ran.ok, (ran.limit, ran.stderr)
            assert json.loads(ran.stdout.rpartition("NEW")[2]) == [], (name, cell.stage)


def test_freed_blocks_are_used_again(sandbox: Sandbox, python: Run) -> None:
    first, second = map(int, python(sandbox, _FAULTS).stdout.split())
    pages = 8 * (3 << 20) // 4096  # 6144: what one of the ten rounds touches
    assert first < 2 * pages, "every round asked for its blocks anew"
    assert second < pages / 10


def test_agent_code_meets_no_module_of_the_worker(sandbox: Sandbox, python: Run) -> None:
    code = "import sys; print([n for n in sys.modules if n.startswith('bat_')])"
    assert python(sandbox, code).stdout == "[]\n"
