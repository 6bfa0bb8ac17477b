"""A hand-in costs the host little; ``make bench`` measures its share of an episode."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))

import hand_in

MOST_CPU_S = 0.5
"""Ten times what it takes; the grader and the sandboxes are processes of their own."""


def test_a_hand_in_takes_little_of_the_hosts_time() -> None:
    (cost,) = hand_in.measure("seg/kidney_tumor", "mini", "local", episodes=1)
    assert 0.0 < cost.clean < cost.episode
    assert cost.cpu < MOST_CPU_S
