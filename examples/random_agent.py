"""A random agent: harmless probes for four turns, then what is there is graded."""

from __future__ import annotations

import gymnasium as gym

import bat_env  # noqa: F401  (registers the environments)
from bat_env.wrappers import TimeLimit


def main() -> None:
    env = TimeLimit(gym.make("AutoMed-Seg-v0", size="mini"), 4)
    env.action_space.seed(0)
    env.reset(seed=0)
    over = False
    while not over:
        action = env.action_space.sample()
        observation, reward, terminated, truncated, info = env.step(action)
        print(action["arguments"]["code"].splitlines()[-1], "->", f"reward {reward:+.3f}")
        over = terminated or truncated
    print(observation["text"].splitlines()[-1])
    print("status:", info["status"])
    env.close()


if __name__ == "__main__":
    main()
