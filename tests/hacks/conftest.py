"""One stand for each task and backend, closed after the matrix: idle sandboxes are not alone."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from stand import Stand

GetStand = Callable[..., Stand]
HELD = 4
"""Stands at a time; each holds a sandbox, and containers are large."""


@pytest.fixture(scope="module")
def stand() -> Iterator[GetStand]:
    """``(task id, backend, tier)`` -> its stand."""
    made: dict[tuple[str, str, str], Stand] = {}

    def get(task_id: str, backend: str, tier: str = "lite") -> Stand:
        key = (task_id, backend, tier)
        if key not in made:
            while len(made) >= HELD:
                made.pop(next(iter(made))).end()
            made[key] = Stand(*key)
        return made[key]

    yield get
    for one in made.values():
        one.end()
