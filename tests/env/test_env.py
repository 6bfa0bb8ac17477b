"""The episode loop on real sandboxes: contract, rewards, budgets, endings, determinism."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bat_env.env import AutoMedEnv, public_info
from bat_env.stages import SCORE_QUANTUM
from bat_env.testing import BAD_ACTIONS, check_environment, play
from bat_env.tools import execute_call, submit_call
from bat_env.trajectory import TokenRecord, read_trajectory
from bat_env.wrappers import RecordTrajectory, TextAction

MakeEnv = Callable[..., AutoMedEnv]
WRITE = execute_call("python", "open('note.txt', 'w').write('x')")
BACKENDS = ["local", pytest.param("docker", marks=pytest.mark.docker)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", ["ansi", "rgb_array"])
def test_conformance(backend: str, mode: str) -> None:
    check_environment(
        lambda: gym.make("AutoMed-Seg-v0", sandbox=backend, size="mini", render_mode=mode)
    )


def test_the_careful_script_scores_and_rewards_sum(
    make_env: MakeEnv, oracle_actions: list[Any], tmp_path: Path
) -> None:
    env = make_env(trajectory_dir=tmp_path, render_mode="rgb_array")
    observation, info = env.reset(seed=3)
    assert observation["stage"] == 5 and "kidney" in observation["text"].lower()
    assert info["turns_left"] == 24 and info["status"] == "running"
    assert info["split"] == "train" and info["size"] == "mini"
    empty = env.render()
    rewards = []
    for action in oracle_actions:
        env.annotate(TokenRecord(completion_token_ids=[1, 2, 3]))
        observation, reward, terminated, truncated, info = env.step(action)
        assert observation in env.observation_space
        assert len(observation["text"]) <= env.budgets.observation_chars
        rewards.append(reward)
    assert terminated and not truncated
    result = info["result"]
    assert result["score"] == sum(rewards) == info["score"] >= 0.8
    assert result["status"] == "submitted" and set(result["stages"]) == {
        "S1",
        "S2",
        "S3",
        "S4",
        "S5",
    }
    assert result["errors"]["failed_cells"] == 0 and result["false_claims"] == 0
    assert 0 <= result["task_ci95"][0] <= result["task"] <= result["task_ci95"][1] <= 1
    assert sum(reward > 0 for reward in rewards) >= 3, "rewards must arrive along the way"
    drawn = env.render()
    assert isinstance(drawn, np.ndarray) and isinstance(empty, np.ndarray)
    assert drawn.dtype == np.uint8 and drawn.shape[2] == 3 and drawn.shape == empty.shape
    assert (drawn != empty).any(), "the outputs must be drawn in"
    read = read_trajectory(env.trajectory_path or "")
    assert read.rewards == rewards and read.result == json.loads(json.dumps(result))
    assert read.steps[1]["metrics"]["completion_token_ids"] == [1, 2, 3]
    with pytest.raises(gym.error.ResetNeeded, match="over"):
        env.step(submit_call())


def test_nop_scores_zero(make_env: MakeEnv) -> None:
    steps = play(make_env(), [submit_call()])
    assert steps[-1][2] and steps[-1][4]["result"]["score"] == 0.0


def test_looking_around_earns_nothing(make_env: MakeEnv) -> None:
    env = make_env()
    env.action_space.seed(0)
    steps = play(env, [env.action_space.sample() for _ in range(4)] + [submit_call()])
    assert [step[1] for step in steps] == [0.0] * 5


def test_infos_are_json_and_hide_the_score_from_agents(make_env: MakeEnv) -> None:
    env = make_env()
    _, info = env.reset(seed=0)
    assert public_info(info) == info
    for action in (WRITE, None, submit_call()):
        info = env.step(action)[4]
        json.dumps(info)
        shown = public_info(info)
        assert not {"score", "items", "components", "result"} & set(shown)
        assert {"valid", "error", "turns_left", "calls_left"} <= set(shown)


@pytest.mark.parametrize("action", BAD_ACTIONS)
def test_a_bad_action_is_an_observation_and_costs_the_turn(make_env: MakeEnv, action: Any) -> None:
    env = make_env()
    env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step(action)
    assert observation["text"].startswith("Invalid action: ")
    assert (reward, terminated, truncated, info["valid"]) == (0.0, False, False, False)
    assert (info["turns_left"], info["calls_left"]) == (23, 23)


def test_code_over_the_limit_is_refused(make_env: MakeEnv) -> None:
    env = make_env()
    env.reset(seed=0)
    limit = env.budgets.code_chars
    info = env.step(execute_call("python", "#" * (limit + 1)))[4]
    assert f"at most {limit}" in info["error"]
    assert env.step(execute_call("python", "#" * limit))[4]["valid"]


def test_turns_run_out(make_env: MakeEnv) -> None:
    env = make_env()
    steps = play(env, [WRITE] + [None] * 40)
    assert len(steps) == 24
    *_, (observation, _, terminated, truncated, info) = steps
    assert truncated and not terminated
    assert info["result"]["end_reason"] == "turns" and info["status"] == "truncated"
    assert sum(step[1] for step in steps) == info["result"]["score"]
    assert "left: 0 turns" in observation["text"]


def test_calls_run_out(make_env: MakeEnv) -> None:
    env = make_env()
    steps = play(env, [execute_call("bash", "true")] * 30)
    assert len(steps) == 24
    assert "only submit_results remains" in steps[22][0]["text"]
    assert steps[23][3] and steps[23][4]["result"]["end_reason"] == "calls"
    assert len(env.episode.cells) == 23


def test_truncate_grades_what_is_there(
    make_env: MakeEnv, oracle_actions: list[Any], tmp_path: Path
) -> None:
    env = make_env(trajectory_dir=tmp_path)
    steps = play(env, oracle_actions[:2], seed=1)
    observation, reward, terminated, truncated, info = env.truncate("tokens")
    assert truncated and not terminated
    assert info["result"]["end_reason"] == "tokens" and info["turns_left"] == 22
    assert sum(step[1] for step in steps) + reward == info["result"]["score"] > 0
    assert observation in env.observation_space
    read = read_trajectory(env.trajectory_path or "")
    assert sum(read.rewards) == info["result"]["score"] and read.status == "truncated"
    assert read.steps[-1]["source"] == "system" and "tokens" in read.steps[-1]["message"]
    with pytest.raises(gym.error.ResetNeeded):
        env.truncate("tokens")


def test_observations_name_files_limits_and_cuts(make_env: MakeEnv) -> None:
    env = make_env(limits={"cell_timeout_s": 3.0})
    env.reset(seed=0)
    code = "import os\nos.makedirs('a/b')\nopen('a/b/c.txt', 'w').write('12345')\nprint('x' * 9999)"
    text = env.step(execute_call("python", code))[0]["text"]
    assert "created: a/b/c.txt (5 B)" in text
    assert "characters cut" in text and len(text) <= 2048
    text = env.step(execute_call("bash", "rm -r a; echo oops >&2; exit 3"))[0]["text"]
    assert text.startswith("exit code: 3\nstderr:\noops\n")
    assert "deleted: a" in text
    text = env.step(execute_call("bash", "sleep 60"))[0]["text"]
    assert "limit: timeout" in text


def test_cells_keep_no_variables_and_are_seeded_by_their_index(make_env: MakeEnv) -> None:
    code = "import random\nprint(random.random(), 'kept' in globals())\nkept = 1"
    actions = [execute_call("python", code)] * 2
    one, two = (play(make_env(), actions, seed=9) for _ in range(2))
    assert one[0][0]["text"] == two[0][0]["text"]
    first, second = (step[0]["text"].splitlines()[2] for step in one)
    assert first.endswith(" False") and second.endswith(" False") and first != second


def test_equal_seed_and_actions_give_equal_everything(
    make_env: MakeEnv, oracle_actions: list[Any]
) -> None:
    actions = [oracle_actions[0], None, *oracle_actions[1:]]
    env = make_env()
    runs = [play(env, actions, seed=11), play(make_env(), actions, seed=11)]
    assert len(runs[0]) == len(actions)
    for one, two in zip(*runs, strict=True):
        assert data_equivalence(one, two, exact=True)
    other = play(env, actions[:1], seed=12)
    assert other[0][4]["instance_digest"] != runs[0][0][4]["instance_digest"]


def test_index_and_size_pick_the_instance(make_env: MakeEnv) -> None:
    env = make_env()
    _, one = env.reset(seed=1, options={"index": 5})
    _, two = env.reset(seed=2, options={"index": 5})
    assert one["instance_digest"] == two["instance_digest"] and one["index"] == 5
    assert one["workspace_digest"] == two["workspace_digest"]
    _, dev = make_env(split="dev").reset(seed=1, options={"index": 5})
    assert dev["instance_digest"] != one["instance_digest"]
    _, full = env.reset(seed=1, options={"index": 5, "size": "full"})
    assert full["size"] == "full"


pieces = st.one_of(
    st.sampled_from([*BAD_ACTIONS[:3], WRITE, execute_call("bash", "exit 1")]),
    st.integers(0, 30),
)


@settings(
    max_examples=6,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(pieces, max_size=7), st.integers(0, 3), st.booleans())
def test_step_rewards_sum_to_the_final_score_exactly(
    make_env: MakeEnv, oracle_actions: list[Any], sequence: list[Any], seed: int, submit: bool
) -> None:
    cells = oracle_actions[:-1]
    actions = [cells[p % len(cells)] if isinstance(p, int) else p for p in sequence]
    env = make_env()
    steps = play(env, actions + ([submit_call()] if submit else []), seed=seed)
    rewards = [step[1] for step in steps]
    if not submit:
        _, reward, *_, info = env.truncate("test")
        rewards.append(reward)
    else:
        info = steps[-1][4]
    score = info["result"]["score"]
    assert sum(rewards) == score
    assert (score / SCORE_QUANTUM).is_integer() and 0.0 <= score <= 1.0


def _vector_thunk(seed: int) -> Callable[[], gym.Env[Any, Any]]:
    def make() -> gym.Env[Any, Any]:
        return gym.make(
            "bat_env:AutoMed-Seg-v0", sandbox="local", size="mini", on_sandbox_error="truncate"
        )

    return make


@pytest.mark.parametrize("kind", [SyncVectorEnv, lambda e: AsyncVectorEnv(e, shared_memory=False)])
def test_vector_environments(kind: Any) -> None:
    env = kind([_vector_thunk(i) for i in range(2)])
    try:
        observations, infos = env.reset(seed=4)
        assert len(observations["text"]) == 2 and list(observations["stage"]) == [5, 5]
        assert list(infos["status"]) == ["running", "running"]
        env.action_space.seed(0)
        observations, *_ = env.step(env.action_space.sample())
        assert all(text.startswith("exit code: ") for text in observations["text"])
        *_, infos = env.step((None, WRITE))
        assert list(infos["valid"]) == [False, True]
        _, _, terminated, truncated, infos = env.step((submit_call(), None))
        assert list(terminated) == [True, False] and not any(truncated)
        env.step((WRITE, WRITE))
    finally:
        env.close()


def test_specs_pickle_and_round_trip_through_json(make_env: MakeEnv) -> None:
    env = make_env(limits={"memory_mb": 1024}, distribution=None)
    spec = env.spec
    assert spec is not None
    assert pickle.loads(pickle.dumps(spec)) == spec
    again = EnvSpec.from_json(spec.to_json())
    assert again.kwargs == spec.kwargs and again.entry_point == "bat_env.env:AutoMedEnv"


def test_text_action(make_env: MakeEnv, tmp_path: Path) -> None:
    env = RecordTrajectory(TextAction(make_env()), tmp_path, agent="texts")
    env.reset(seed=0)
    info = env.step("I look.\n```bash\necho hi\n```\n")[4]
    assert info["valid"]
    assert env.step("```perl\n1\n```")[4]["error"].startswith('Argument "language"')
    assert not env.step("hmm")[4]["valid"]
    assert env.step("Done.\nSUBMIT\n")[2]
    read = read_trajectory(env.recorder.path or "")
    assert read.status == "submitted" and read.steps[1]["message"].startswith("I look.")
    assert EnvSpec.from_json(env.spec.to_json()).additional_wrappers  # type: ignore[union-attr]


def test_ansi_scoreboard(make_env: MakeEnv) -> None:
    env = make_env(render_mode="ansi")
    env.reset(seed=0)
    assert "score 0.000" in str(env.render())
    env.step(WRITE)
    text = str(env.render())
    assert "S1." in text and "turn 1/24" in text
    assert make_env().render() is None


def test_close_is_idempotent_and_reset_revives(make_env: MakeEnv) -> None:
    env = make_env()
    env.reset(seed=0)
    env.close()
    env.close()
    env.reset(seed=0)
    assert env.step(WRITE)[4]["valid"]
