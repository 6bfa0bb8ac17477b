"""Every task folder found keeps every rule: a sample of the episodes here, all of them if slow.

``bat-env tasks check`` is the same; tests/tasks/test_task_rules.py looks at the rules themselves.
"""

from __future__ import annotations

import pytest

from bat_env.task_rules import Depth
from bat_env.tasks import load_task, task_ids
from bat_env.testing import task_findings


def _findings(task_id: str, depth: Depth) -> list[str]:
    rows = task_findings(load_task(task_id), depth=depth, sandbox="local")
    return [f"{rule}: {wrong}" for rule, wrong in rows if wrong]


@pytest.mark.parametrize("task_id", task_ids())
def test_a_folder_keeps_its_rules(task_id: str) -> None:
    assert _findings(task_id, "quick") == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("task_id", task_ids())
def test_a_folder_keeps_all_rules_in_all_sizes_and_tiers(task_id: str) -> None:
    assert _findings(task_id, "all") == []
