"""The verifiers door with verifiers' own environment, tool servers and scoring."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from bat_env.env import AutoMedEnv


def test_scripted_harness_scores_as_direct_runs(
    drive: Callable[..., dict[str, Any]],
    scripts: dict[str, list[dict[str, Any]]],
    nothing_private: Callable[[list[str]], None],
) -> None:
    kwargs = {"sandbox": "local", "size": "mini"}
    given = {**scripts, "gives up": scripts["oracle"][:2]}
    answer = drive("verifiers", "verifiers_driver.py", {"env_kwargs": kwargs, "scripts": given})
    played = answer["played"]
    start = json.loads(played["oracle"]["start"])
    env = AutoMedEnv(**kwargs)
    try:
        for name, calls in given.items():
            env.reset(seed=start["seed"], options=start["options"])
            for call in calls:
                info = env.step(call)[-1]
            if info["status"] == "running":
                info = env.truncate("stopped")[-1]
            assert played[name]["errors"] == []
            assert set(played[name]["rewards"]) == {info["result"]["score"]}, name
            assert all(played[name]["ok"])
    finally:
        env.close()
    assert played["oracle"]["rewards"][0] > 0.7
    tools = json.loads(answer["log"][1])["tools"]
    assert sorted(tool["name"] for tool in tools) == ["execute_code", "submit_results"]
    nothing_private(answer["log"])
