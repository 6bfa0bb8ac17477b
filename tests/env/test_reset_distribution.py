"""Environments that start where a distribution says, alone, vectorised and under Ray."""

from __future__ import annotations

import functools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from bat_env.bank import Bank, StageState
from bat_env.config import lite_task
from bat_env.env import AutoMedEnv
from bat_env.errors import BankError, ConfigError
from bat_env.wrappers import ResetDistribution

CELLS = ("seg/S1/success", "seg/S1/failure", "seg/E2E/failure", "det/S1/success")


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bare states: how they are drawn is all that is looked at."""
    folder = tmp_path_factory.mktemp("bank")
    with Bank.open(folder, create=True) as opened:
        for cell in CELLS:
            track, focus, outcome = cell.split("/")
            task = lite_task(track)
            for index in range(2):
                opened.add(
                    StageState.model_validate(
                        {
                            "track": track,
                            "task": task.id,
                            "task_digest": task.digest,
                            "focus": focus,
                            "outcome": outcome,
                            "index": 40 + index,
                            "instance_digest": "",
                        }
                    ),
                    {"notes.txt": cell.encode()},
                )
    return folder


def make(bank: Path, env_id: str = "AutoMed-Bank-v0", **kwargs: Any) -> gym.Env[Any, Any]:
    return gym.make(env_id, bank=str(bank), sandbox="local", **kwargs)


def drawn(env: gym.Env[Any, Any], resets: int, seed: int = 0) -> list[str]:
    """Cells of so many starts, without a sandbox."""
    inner = env.unwrapped
    assert isinstance(inner, AutoMedEnv)
    from bat_env.config import ResetOptions

    gym.Env.reset(inner, seed=seed)
    starts = [inner._starter.draw(ResetOptions(), inner.np_random) for _ in range(resets)]
    return ["/".join(start.state.cell) for start in starts if start.state is not None]


def test_starts_follow_the_distribution_and_the_seed(bank: Path) -> None:
    env = make(bank)
    assert set(drawn(env, 40)) == set(CELLS)
    env.unwrapped.set_distribution({"S1": 3, "E2E": 1, "failure": 1, "success": 1})  # type: ignore
    counts = Counter(drawn(env, 200))
    assert 0.65 < sum(n for c, n in counts.items() if "/S1/" in c) / 200 < 0.85
    assert drawn(env, 12) == drawn(env, 12) != drawn(env, 12, seed=1)
    env.unwrapped.set_distribution([CELLS[3]])  # type: ignore[attr-defined]
    assert set(drawn(env, 5)) == {CELLS[3]}
    observation, info = env.reset(seed=4)
    state = info["state_id"]
    assert (info["stage"], info["outcome"], info["task"]) == ("S1", "success", "det/wrist_lesion")
    assert env.reset(seed=4)[1]["state_id"] == state and observation["stage"] == 0
    assert env.unwrapped.workspace()["notes.txt"] == CELLS[3].encode()  # type: ignore
    with pytest.raises(BankError, match="fits this reset"):
        env.reset(options={"stage": "E2E"})
    env.close()


def test_a_track_draws_from_the_bank_once_a_distribution_is_set(bank: Path) -> None:
    env = make(bank, "AutoMed-Seg-v0")
    inner: Any = env.unwrapped
    assert drawn(env, 1) == []
    inner.set_distribution("uniform")
    assert set(drawn(env, 30)) == set(CELLS[:3])
    for bad, error in (
        ({"det": 1}, ConfigError),
        (["det/S1/success"], ConfigError),
        ({"S1": 0}, ConfigError),
    ):
        with pytest.raises(error):
            inner.set_distribution(bad)
    assert inner.distribution == "uniform", "a refused one changes nothing"
    inner.distribution = {"S5": 1}
    with pytest.raises(BankError, match="asks for S5"):
        env.reset(seed=0)
    inner.set_distribution(None)
    assert drawn(env, 1) == []
    env.close()


def test_the_spec_carries_the_distribution(bank: Path) -> None:
    env = make(bank, distribution={"s1": 2, "recovery": 0, "failure": 1})
    env.unwrapped.set_distribution({"seg/s1/failure": 1})  # type: ignore[attr-defined]
    spec = env.unwrapped.spec
    assert spec is not None and spec.kwargs["distribution"] == {"seg/S1/failure": 1.0}
    again = gym.make(EnvSpec.from_json(spec.to_json()))
    assert set(drawn(again, 4)) == {"seg/S1/failure"}
    wrapped = ResetDistribution(make(bank), {"S1": 1})
    assert wrapped.spec is not None
    wrapped.set_distribution(["seg/E2E/failure"])
    text = wrapped.spec.to_json()
    assert json.loads(text)["additional_wrappers"][-1]["kwargs"] == {
        "distribution": ["seg/E2E/failure"]
    }
    third = gym.make(EnvSpec.from_json(text))
    assert set(drawn(third, 4)) == {"seg/E2E/failure"}
    for made in (env, again, wrapped, third):
        made.close()


@pytest.mark.parametrize(
    "kind", [SyncVectorEnv, functools.partial(AsyncVectorEnv, shared_memory=False)]
)
def test_a_vector_of_environments_is_steered_together(bank: Path, kind: Any) -> None:
    env = kind([functools.partial(make, bank) for _ in range(2)])
    try:
        env.call("set_distribution", {"seg/S1/failure": 1})
        _, infos = env.reset(seed=3)
        assert list(infos["stage"]) == ["S1", "S1"] and list(infos["outcome"]) == ["failure"] * 2
        assert all(isinstance(state, str) for state in infos["state_id"])
        env.set_attr("distribution", [{"det": 1}, {"E2E": 1}])
        assert [dict(d) for d in env.get_attr("distribution")] == [{"det": 1.0}, {"E2E": 1.0}]
        _, infos = env.reset(seed=3)
        assert list(infos["stage"]) == ["S1", "E2E"]
    finally:
        env.close()
