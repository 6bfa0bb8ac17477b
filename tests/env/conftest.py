"""Shared environments of these tests: real sandboxes, the small instance size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import pytest

from bat_env.env import AutoMedEnv
from bat_env.stages import Stage
from bat_env.tasks import load_task
from bat_env.tools import execute_call, submit_call

MakeEnv = Callable[..., AutoMedEnv]


@pytest.fixture
def make_env() -> Iterator[MakeEnv]:
    """Makes environments and closes them."""
    made: list[gym.Env[Any, Any]] = []

    def make(**kwargs: Any) -> AutoMedEnv:
        env = gym.make("AutoMed-Seg-v0", **{"sandbox": "local", "size": "mini", **kwargs})
        made.append(env)
        inner = env.unwrapped
        assert isinstance(inner, AutoMedEnv)
        return inner

    yield make
    for env in made:
        env.close()


@pytest.fixture(scope="session")
def oracle_actions() -> list[dict[str, Any]]:
    """The careful script, end to end, with the hand-in."""
    cells = load_task("seg/kidney_tumor").script(focus=Stage.E2E)
    return [execute_call(cell.language, cell.code) for cell in cells] + [submit_call()]
