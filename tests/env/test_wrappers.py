"""The wrappers, alone and on top of each other, on real episodes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from bat_env.env import AutoMedEnv
from bat_env.errors import ConfigError
from bat_env.tools import execute_call
from bat_env.trajectory import read_trajectory
from bat_env.wrappers import RecordTrajectory, TextAction, TimeLimit

MakeEnv = Callable[..., AutoMedEnv]


def play(env: gym.Env[Any, Any], actions: list[Any]) -> tuple[list[float], tuple[Any, ...]]:
    env.reset(seed=3)
    rewards = []
    for action in actions:
        step = env.step(action)
        rewards.append(float(step[1]))
        if step[2] or step[3]:
            break
    return rewards, step


def test_fewer_turns_end_the_episode_and_grade_it(
    make_env: MakeEnv, oracle_actions: list[Any]
) -> None:
    inner = make_env()
    env = TimeLimit(inner, 3)
    for _ in range(2):  # the count starts anew with each episode
        rewards, (observation, _, terminated, truncated, info) = play(env, oracle_actions)
        assert len(rewards) == 3 and truncated and not terminated
        assert sum(rewards) == info["result"]["score"] > 0
        assert (info["status"], inner.episode.end_reason) == ("truncated", "turns")
        assert "exit code" in observation["text"] and "ended: turns" in observation["text"]
        assert observation in env.observation_space
    expected = make_env()
    expected.reset(seed=3)
    for action in oracle_actions[:3]:
        expected.step(action)
    assert expected.truncate("turns")[4]["result"]["score"] == info["result"]["score"]


def test_an_earlier_end_stays_what_it_was(make_env: MakeEnv, oracle_actions: list[Any]) -> None:
    env = TimeLimit(make_env(), 2)
    rewards, (_, _, terminated, truncated, info) = play(env, oracle_actions[-1:])
    assert (rewards, terminated, truncated, info["status"]) == ([0.0], True, False, "submitted")


def test_another_environment_is_cut_by_the_flag() -> None:
    env = TimeLimit(gym.make("CartPole-v1", disable_env_checker=True), 2)
    env.reset(seed=0)
    assert [env.step(0)[3] for _ in range(2)] == [False, True]
    env.close()


@pytest.mark.parametrize("turns", [0, -1, 1.5, "3", True])
def test_turns_are_a_whole_number(turns: Any, make_env: MakeEnv) -> None:
    with pytest.raises(ConfigError, match="max_turns"):
        TimeLimit(make_env(), turns)


@pytest.mark.parametrize("record_outside", [True, False])
def test_all_three_together(record_outside: bool, make_env: MakeEnv, tmp_path: Path) -> None:
    env: gym.Env[Any, Any] = TextAction(make_env())
    if record_outside:
        env = RecordTrajectory(TimeLimit(env, 2), tmp_path, agent="texts")
    else:
        env = TimeLimit(RecordTrajectory(env, tmp_path, agent="texts"), 2)
    rewards, step = play(env, ["```python\nopen('a', 'w').write('x')\n```", "No code at all."])
    assert len(rewards) == 2 and step[3] and sum(rewards) == step[4]["result"]["score"]
    (file,) = tmp_path.glob("*.json")
    written = read_trajectory(file)
    assert written.status == "truncated" and "texts" in file.read_text()


def test_wrapped_environments_can_be_made_again(make_env: MakeEnv, tmp_path: Path) -> None:
    gym_env = gym.make("AutoMed-Seg-v0", size="mini", sandbox="local")
    env = RecordTrajectory(TimeLimit(TextAction(gym_env), 5), tmp_path)
    spec = env.spec
    env.close()
    assert spec is not None
    again = gym.make(spec)
    assert isinstance(again, RecordTrajectory) and again.get_wrapper_attr("_most") == 5
    assert execute_call("python", "1") not in again.action_space
    again.close()
