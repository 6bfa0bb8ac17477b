"""Every task folder found keeps every rule: a sample of the episodes here, all of them if slow.

``bat-env tasks check`` is the same; tests/tasks/test_task_rules.py looks at the rules themselves.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

import pytest

from bat_env.task_rules import Depth
from bat_env.tasks import load_task, task_ids
from bat_env.testing import task_findings

PROCESSES = 2


def _findings(task_id: str, depth: Depth) -> list[str]:
    rows = task_findings(load_task(task_id), depth=depth, sandbox="local")
    return [f"{rule}: {wrong}" for rule, wrong in rows if wrong]


class Checking(threading.Thread):
    """Checks some folders in a process of its own: an episode's CPU time is that of a whole tree.

    One process for several tasks keeps its sandboxes warm from one to the next.
    """

    def __init__(self, tasks: Sequence[str]) -> None:
        super().__init__(daemon=True)
        self.found: dict[str, Future[str]] = {task: Future() for task in tasks}
        """Task -> what the check has printed of it, when it is done with it."""
        command = [sys.executable, "-m", "bat_env.cli", "tasks", "check", *tasks]
        self.process = subprocess.Popen(
            [*command, "--quick", "--sandbox", "local"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def run(self) -> None:
        assert self.process.stdout is not None
        waiting, said = list(self.found), ""
        for line in self.process.stdout:
            words = line.split()
            if len(words) > 1 and words[0] in ("ok", "--") and words[1] in waiting[1:]:
                self.found[waiting.pop(0)].set_result(said)
                said = ""
            said += line
        self.process.wait()
        for task in waiting:
            self.found[task].set_result(said)
            said = "the check ended before it came to this task"


@pytest.fixture(scope="module")
def checks() -> Iterator[dict[str, Future[str]]]:
    """The quick check of every folder, in a few processes at a time."""
    running = [Checking(task_ids()[n::PROCESSES]) for n in range(PROCESSES)]
    for checking in running:
        checking.start()
    yield {task: future for checking in running for task, future in checking.found.items()}
    for checking in running:
        checking.process.kill()
        checking.join()


@pytest.mark.parametrize("task_id", task_ids())
def test_a_folder_keeps_its_rules(task_id: str, checks: dict[str, Future[str]]) -> None:
    said = checks[task_id].result()
    assert "\n--  " not in f"\n{said}" and f"ok  {task_id}  repair" in said, said


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("task_id", task_ids())
def test_a_folder_keeps_all_rules_in_all_sizes_and_tiers(task_id: str) -> None:
    assert _findings(task_id, "all") == []
