"""One stand for each task and backend, kept for the session."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from stand import Stand

GetStand = Callable[[str, str], Stand]


@pytest.fixture(scope="session")
def stand() -> Iterator[GetStand]:
    """``(task id, backend)`` -> its stand."""
    made: dict[tuple[str, str], Stand] = {}

    def get(task_id: str, backend: str) -> Stand:
        key = (task_id, backend)
        if key not in made:
            made[key] = Stand(task_id, backend)
        return made[key]

    yield get
    for one in made.values():
        one.end()
