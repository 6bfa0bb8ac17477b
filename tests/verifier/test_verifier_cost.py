"""A hand-in costs the host little; ``make bench`` measures its share of an episode."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))

import hand_in
import pytest

from bat_env.grader.client import ServerProcess

MOST_CPU_S = 0.5
"""Ten times what it takes; the grader and the sandboxes are processes of their own."""
MOST_REQUESTS = 12
"""To the grader in one episode of an expert, each in a child of its own."""


@pytest.mark.parametrize("task_id", ["seg/kidney_tumor", "cls/skin_lesion"])
def test_a_hand_in_takes_little_of_the_hosts_time(
    task_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    request = ServerProcess.request

    def counted(self: ServerProcess, header: Any, *rest: Any) -> Any:
        asked.append(header["op"])
        return request(self, header, *rest)

    monkeypatch.setattr(ServerProcess, "request", counted)
    (cost,) = hand_in.measure(task_id, "mini", "local", episodes=1)
    assert 0.0 < cost.clean < cost.episode
    assert cost.cpu < MOST_CPU_S
    assert len(asked) <= 2 * MOST_REQUESTS, asked
