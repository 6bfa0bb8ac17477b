"""Plug in your own agent: anything with `reset` and `act` plays.

This one looks at the data and hands in: it shows the loop, not skill.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym

import bat_env  # noqa: F401  (registers the environments)

LOOK = """
import os, nibabel as nib
for case in sorted(os.listdir("/data")):
    print(case, nib.load(f"/data/{case}/ct.nii.gz").shape)
"""


class Careful:
    """Looks once, then submits."""

    def reset(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> None:
        """Start an episode; `observation["text"]` is the brief."""
        self.looked = False

    def act(self, observation: Mapping[str, Any]) -> dict[str, Any]:
        """Return a tool call."""
        if self.looked:
            return {"name": "submit_results", "arguments": {}}
        self.looked = True
        return {"name": "execute_code", "arguments": {"language": "python", "code": LOOK}}


def main() -> None:
    env = gym.make("AutoMed-Seg-v0", size="mini")
    agent = Careful()
    observation, info = env.reset(seed=1)
    agent.reset(observation, info)
    over = False
    while not over:
        observation, _, terminated, truncated, info = env.step(agent.act(observation))
        print(observation["text"])
        over = terminated or truncated
    result = info["result"]  # None if the infrastructure failed: that is no zero
    print("score:", result["score"] if result else info["error"])
    env.close()


if __name__ == "__main__":
    main()
