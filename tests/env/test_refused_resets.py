"""A refused reset changes nothing, and nothing that was opened is left open."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from bat_env import BANK_ID
from bat_env.env import AutoMedEnv
from bat_env.errors import BatError, ConfigError, SandboxUnavailableError
from bat_env.image import connect
from bat_env.tools import execute_call, validate_call

HELLO = execute_call("bash", "echo hello")

REFUSED: list[dict[str, Any]] = [
    {"options": {"task": "kidney"}},
    {"options": {"stage": "S3"}},
    {"options": {"stage": "S9"}},
    {"options": "S3"},
    {"seed": -1},
    {"seed": 9, "options": {"task": "kidney"}},
]


@pytest.fixture
def env(tmp_path: Path) -> Any:
    made = gym.make("AutoMed-Seg-v0", sandbox="Local", size="mini", bank=tmp_path)
    yield made
    made.close()


def test_steps_work_after_a_first_reset_that_was_refused(env: gym.Env[Any, Any]) -> None:
    with pytest.raises(ConfigError):
        env.reset(options={"task": "kidney"})
    with pytest.raises(BatError, match="bank build"):
        env.reset(options={"stage": "S3"})
    env.reset(seed=0)
    observation = env.step(HELLO)[0]
    assert "hello" in observation["text"]
    assert gym.spec(BANK_ID).disable_env_checker


def test_a_refused_reset_keeps_the_episode_and_the_generator(env: gym.Env[Any, Any]) -> None:
    env.reset(seed=3)
    env.step(HELLO)
    inner = env.unwrapped
    assert isinstance(inner, AutoMedEnv)
    episode, state = inner.episode, inner.np_random.bit_generator.state
    for arguments in REFUSED:
        with pytest.raises((BatError, gym.error.Error)):
            env.reset(**arguments)
        assert inner.episode is episode and episode.status == "running"
        assert inner.np_random.bit_generator.state == state and inner.np_random_seed == 3
    env.step(execute_call("bash", "ls"))
    assert len(episode.turns) == 2


def test_nothing_is_left_open(tmp_path: Path) -> None:
    script = (
        "import gymnasium as gym, bat_env, gc\n"
        "env = gym.make('AutoMed-Seg-v0', size='mini')\n"
        "env.reset(seed=0)\n"
        "env.close()\n"
        "from bat_env.sandbox.pool import close_pools\n"
        "from bat_env.sandbox.embedded import close_workers\n"
        "close_pools(); close_workers(); gc.collect()\n"
    )
    variables = {k: v for k, v in os.environ.items() if k != "BAT_SANDBOX"}
    out = subprocess.run(
        [sys.executable, "-W", "always::ResourceWarning", "-X", "dev", "-c", script],
        env={**variables, "DOCKER_HOST": f"unix://{tmp_path}/none.sock"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert out.returncode == 0, out.stderr
    assert "ResourceWarning" not in out.stderr, out.stderr


def test_a_missing_daemon_is_told_without_the_libraries_wrapping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(SandboxUnavailableError, match=r"none\.sock \(No such file or directory\)"):
        connect(5.0)


def test_articles_fit_their_noun() -> None:
    call = {"name": "execute_code", "arguments": {"language": "bash", "code": object()}}
    assert "got an object" in str(validate_call(call, 100))
