"""A small chain environment that speaks the suite's interface: dict observations, tool calls.

Each turn names a colour; painting it is right and earns ``1 / length``. The known optimum is 1.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from bat_env.errors import SandboxError
from bat_env.sandbox import Cell, Limits, shared_pool
from bat_env.spaces import ToolCall, Unicode

COLOURS = ("red", "green", "blue", "black")
ENV_ID = "ToyChain-v0"


def cell(colour: str) -> dict[str, Any]:
    code = f"import paint\npaint.use('{colour}')"
    return {"name": "execute_code", "arguments": {"language": "python", "code": code}}


class ToyChain(gym.Env[dict[str, Any], Any]):
    """Options: ``fail_at`` (turn that dies of infrastructure), ``fails`` (how often in all),
    ``drift`` (resets differ: a broken environment), ``hang`` (a step is a cell that sleeps)."""

    failures = 0
    resets = 0

    def __init__(self, length: int = 4, max_turns: int = 6, render_mode: str | None = None) -> None:
        self.observation_space = gym.spaces.Dict(stage=gym.spaces.Discrete(6), text=Unicode())
        self.action_space = ToolCall()
        self.length, self.max_turns, self.render_mode = length, max_turns, render_mode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.options = options or {}
        type(self).resets += 1
        rng = np.random.default_rng(seed)
        self.goal = [COLOURS[i] for i in rng.integers(0, len(COLOURS), self.length)]
        self.done, self.turn, self.status = 0, 0, "running"
        text = f"Paint what you are asked to paint.\n{self._ask()}"
        digest = hashlib.sha256(text.encode()).hexdigest()
        if self.options.get("drift"):
            digest = str(type(self).resets)
        return {"stage": 5, "text": text}, {"workspace_digest": digest, "status": "running"}

    def _ask(self) -> str:
        return f"next: {self.goal[self.done]}\n"

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        if self.turn == self.options.get("fail_at") and type(self).failures < self.options["fails"]:
            type(self).failures += 1
            raise SandboxError("the toy sandbox died, as asked")
        if self.options.get("hang"):
            limits = Limits(memory_mb=512, workspace_mb=16, tmp_mb=8)
            with shared_pool("local", limits, 1).lease() as sandbox:
                Path(self.options["hang"]).touch()
                sandbox.run(Cell("bash", "sleep 100"))
        self.turn += 1
        code = action["arguments"].get("code", "") if isinstance(action, dict) else ""
        right = code == cell(self.goal[self.done])["arguments"]["code"]
        note = "ok\n" if right else "wrong\n"
        if not isinstance(action, dict):
            note = "That was no tool call.\n"
        self.done += 1
        over = self.done == self.length
        submitted = isinstance(action, dict) and action["name"] == "submit_results"
        truncated = not over and self.turn >= self.max_turns
        text = note + ("" if over else self._ask())
        return self._answer(text, float(right) / self.length, over or submitted, truncated)

    def truncate(self, reason: str) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        return self._answer(f"Cut: {reason}.\n", 0.0, False, True)

    def _answer(
        self, text: str, reward: float, terminated: bool, truncated: bool
    ) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self.status = "submitted" if terminated else "truncated" if truncated else "running"
        info: dict[str, Any] = {"status": self.status}
        if terminated or truncated:
            info["result"] = {"ended": True}
        return {"stage": 5, "text": text}, reward, terminated, truncated, info


def register() -> None:
    if ENV_ID not in gym.registry:
        gym.register(ENV_ID, entry_point=ToyChain)
