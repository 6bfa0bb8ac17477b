"""A bandit of four arms that speaks the suite's interface: one turn, a fixed pay for each arm.

Nothing in the observation says which arm is best; the known optimum is 1.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import toy_chain

from bat_env.spaces import ToolCall, Unicode

ENV_ID = "ToyBandit-v0"
PAYS = {"red": 0.3, "green": 0.1, "blue": 1.0, "black": 0.6}


class ToyBandit(gym.Env[dict[str, Any], Any]):
    def __init__(self, render_mode: str | None = None) -> None:
        self.observation_space = gym.spaces.Dict(stage=gym.spaces.Discrete(6), text=Unicode())
        self.action_space = ToolCall()
        self.render_mode = render_mode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        text = "Paint what you are asked to paint.\n"
        return {"stage": 5, "text": text}, {"workspace_digest": "", "status": "running"}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        code = action["arguments"].get("code", "") if isinstance(action, dict) else ""
        pays = {toy_chain.cell(arm)["arguments"]["code"]: pay for arm, pay in PAYS.items()}
        info = {"status": "submitted", "result": {"ended": True}}
        return {"stage": 5, "text": "ok\n"}, pays.get(code, 0.0), True, False, info

    def truncate(self, reason: str) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        info = {"status": "truncated", "result": {"ended": True}}
        return {"stage": 5, "text": f"Cut: {reason}.\n"}, 0.0, False, True, info


def register() -> None:
    if ENV_ID not in gym.registry:
        gym.register(ENV_ID, entry_point=ToyBandit)
