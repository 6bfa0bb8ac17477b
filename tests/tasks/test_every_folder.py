"""Every task folder found keeps every rule: a sample of the episodes here, all of them if slow.

``bat-env tasks check`` is the same; tests/tasks/test_task_rules.py looks at the rules themselves.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from bat_env.task_rules import Depth
from bat_env.tasks import load_task, task_ids
from bat_env.testing import task_findings


def _findings(task_id: str, depth: Depth) -> list[str]:
    rows = task_findings(load_task(task_id), depth=depth, sandbox="local")
    return [f"{rule}: {wrong}" for rule, wrong in rows if wrong]


def _check(task_id: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: an episode's CPU time is that of a whole process tree."""
    command = [sys.executable, "-m", "bat_env.cli", "tasks", "check", task_id, "--quick"]
    return subprocess.run(
        [*command, "--sandbox", "local"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.fixture(scope="module")
def checks() -> Iterator[dict[str, Future[subprocess.CompletedProcess[str]]]]:
    """The quick check of every folder, two at a time."""
    with ThreadPoolExecutor(2) as pool:
        yield {task_id: pool.submit(_check, task_id) for task_id in task_ids()}


@pytest.mark.parametrize("task_id", task_ids())
def test_a_folder_keeps_its_rules(
    task_id: str, checks: dict[str, Future[subprocess.CompletedProcess[str]]]
) -> None:
    done = checks[task_id].result()
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"ok  {task_id}" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("task_id", task_ids())
def test_a_folder_keeps_all_rules_in_all_sizes_and_tiers(task_id: str) -> None:
    assert _findings(task_id, "all") == []
