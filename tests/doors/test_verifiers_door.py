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
    # Side by side: one hands in, one stops in the middle and is graded all the same.
    given = {"oracle": scripts["oracle"], "gives up": scripts["oracle"][:2]}
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
            assert played[name]["ok"] and played[name]["reward"] == info["result"]["score"], name
    finally:
        env.close()
    assert played["oracle"]["reward"] > 0.7 > played["gives up"]["reward"] > 0
    listed = [json.loads(text)["tools"] for text in answer["log"] if '"tools"' in text]
    for tools in listed:
        assert sorted(tool["name"] for tool in tools) == ["execute_code", "submit_results"]
    nothing_private(answer["log"])
