"""Instances that the rules look at."""

from __future__ import annotations

from bat_env.tasks import Instance, Task
from bat_env.tasks.instance import Size, Split


def drawn(task: Task, split: Split = "dev", count: int = 6, size: Size = "mini") -> list[Instance]:
    """The first instances of a split."""
    return [task.instance(split, index, size) for index in range(count)]
