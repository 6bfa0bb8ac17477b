"""Four episodes side by side: random probes against environments that share warm sandboxes."""

from __future__ import annotations

from gymnasium.vector import AutoresetMode, SyncVectorEnv

from bat_env.env import AutoMedEnv


def make() -> AutoMedEnv:
    return AutoMedEnv(track="seg", size="mini", on_sandbox_error="truncate")


def main() -> None:
    envs = SyncVectorEnv([make] * 4, autoreset_mode=AutoresetMode.DISABLED)
    envs.action_space.seed(0)
    observations, _ = envs.reset(seed=0)
    print("stages:", observations["stage"])
    for _ in range(3):
        observations, rewards, _, _, _ = envs.step(envs.action_space.sample())
        print("rewards:", rewards)
        print(observations["text"][0].splitlines()[0])
    envs.close()


if __name__ == "__main__":
    main()
