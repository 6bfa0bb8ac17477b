"""What every door is measured by: one scripted episode, played directly in Python."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bat_env.env import AutoMedEnv
from bat_env.tasks import load_task
from bat_env.tools import execute_call, submit_call

TASK, INDEX, SEED = "seg/kidney_tumor", 11, 3


@dataclasses.dataclass(frozen=True)
class Direct:
    """An episode of the scripted expert without any door.

    Attributes:
        actions: Its calls, the hand-in included.
        texts: What the environment answered.
        brief: Reset observation.
        result: Final result.
        secrets: Name -> text that must cross no door.
    """

    actions: list[dict[str, Any]]
    texts: list[str]
    brief: str
    result: dict[str, Any]
    secrets: dict[str, str]

    def leaks(self, text: str) -> list[str]:
        """Names of what is private and in ``text``."""
        return [name for name, secret in self.secrets.items() if secret in text]


@pytest.fixture(scope="session")
def direct(repo_root: Path) -> Direct:
    env = AutoMedEnv(task=TASK, size="mini", sandbox="local")
    cells = load_task(TASK).script()
    actions = [execute_call(cell.language, cell.code) for cell in cells] + [submit_call()]
    try:
        observation, info = env.reset(seed=SEED, options={"index": INDEX})
        brief, texts, secrets = str(observation["text"]), [], {}
        for action in actions:
            observation, _, _, _, info = env.step(action)
            texts.append(str(observation["text"]))
        instance = env.instance
        secrets = {
            "instance seed": str(instance.seed),
            "episode seed": str(env.episode.seed),
            "instance digest": instance.digest,
            "rubric digest": info["rubric_digest"],
            "workspace digest": info["workspace_digest"],
            "score": str(info["result"]["score"]),
            "task score": str(info["result"]["task"]),
            "checkout": str(repo_root),
            "interpreter": sys.prefix,
            "home of the user": os.environ["BAT_HOME"],
            "reward": '"reward"',
            "verdicts": "S1.plan_first",
        }
        for case, volumes in instance.facts["volumes_ml"].items():
            secrets |= {f"{k} volume of {case}": f"{v:.4f}"[:7] for k, v in volumes.items() if v}
    finally:
        env.close()
    return Direct(actions, texts, brief, info["result"], secrets)


@pytest.fixture
def trajectories(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "trajectories"
