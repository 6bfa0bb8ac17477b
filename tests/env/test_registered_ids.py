"""The seven tracks as Gymnasium ids: each passes Gymnasium's own checker without a warning."""

from __future__ import annotations

import warnings

import gymnasium as gym
import pytest
from gymnasium.utils.env_checker import check_env

import bat_env
from bat_env.tasks import load_suite, load_task, task_ids

SEVEN = {
    "AutoMed-Seg-v0",
    "AutoMed-Enh-v0",
    "AutoMed-Det-v0",
    "AutoMed-Cls-v0",
    "AutoMed-VQA-v0",
    "AutoMed-Report-v0",
    "AutoMed-Synth-v0",
}
LITE = {task.spec.track: task for task in map(load_task, task_ids()) if task.spec.lite}


def test_the_seven_ids_are_registered_and_have_a_task() -> None:
    assert set(bat_env.TRACK_IDS.values()) == SEVEN
    frozen = {entry.task.split("/")[0] for entry in load_suite("lite").entries}
    assert {i for i in SEVEN if i in gym.registry} == SEVEN
    assert set(LITE) == set(bat_env.TRACK_IDS) == frozen


@pytest.mark.parametrize("track", sorted(LITE))
def test_the_id_of_a_track_passes_the_checker(track: str) -> None:
    # The checker resets a dozen times: reduced instances, the same code.
    name = bat_env.TRACK_IDS[track]
    small = gym.make(name, sandbox="local", size="mini", render_mode="rgb_array")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(small.unwrapped)
    small.close()
    env = gym.make(name, sandbox="local", render_mode="rgb_array")
    try:
        _, info = env.reset(seed=3)
        assert info["task"] == LITE[track].id and info["size"] == "full"
        assert env.spec is not None and env.spec.id == bat_env.TRACK_IDS[track]
    finally:
        env.close()
