"""The OpenEnv door with OpenEnv's own client over its WebSocket."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any


def test_sessions_side_by_side_score_as_direct_runs(
    drive: Callable[..., dict[str, Any]],
    scripts: dict[str, list[dict[str, Any]]],
    direct: Callable[..., dict[str, Any]],
    nothing_private: Callable[[list[str]], None],
) -> None:
    arguments = ["--port", "0", "--size", "mini", "--sandbox", "local", "--max-sessions", "3"]
    request = {"arguments": arguments, "scripts": scripts}
    answer = drive("openenv", "openenv_driver.py", request)
    for name, calls in scripts.items():
        played = answer["played"][name]
        assert played["rewards"][:-1] == [None] * len(calls)
        assert played["rewards"][-1] == direct(name)["score"]
        assert played["flags"][:-1] == [[False, False, "running"]] * (len(calls) - 1)
        assert played["flags"][-1] == [True, False, "submitted"]
        assert played["steps"] == len(calls)
    assert answer["played"]["oracle"]["rewards"][-1] > 0.7
    odd = answer["odd"]
    assert odd["index"] == 3
    assert odd["bad"][0] is False and "arguments" in odd["bad"][1]
    assert odd["truncated"] == [True, True, 0.0]
    assert "over" in odd["over"] and "Did you mean 'index'" in odd["option"]
    assert set(json.loads(answer["pages"]["schema"])["observation"]["properties"]) == {
        "done",
        "reward",
        "metadata",
        "stage",
        "text",
        "truncated",
        "status",
    }
    nothing_private(answer["messages"] + list(answer["pages"].values()))


def test_without_the_extra_one_line_says_so() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bat_env.cli", "serve", "openenv"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "openenv" in done.stderr
