"""A scripted judge server, and episodes for it to read."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bat_env.episode import Episode
from bat_env.judge import Judge, JudgedContract, make_judge
from bat_env.judge.example import GOOD, example_episode
from bat_env.rubric import compile_contract
from bat_env.tasks import load_task
from bat_env.tasks.spec import TaskSpec

sys.path.insert(0, str(Path(__file__).parent))

from judge_server import ScriptedServer


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    made = ScriptedServer()
    yield made
    made.close()


@pytest.fixture
def make_judge_of(server: ScriptedServer, tmp_path: Any) -> Callable[..., Judge]:
    """A judge of the scripted server, with short waits and a cache of its own."""

    def make(**changes: Any) -> Judge:
        judge = make_judge(
            {
                "base_url": server.url,
                "model": "scripted",
                "backoff_s": 0.01,
                "timeout_s": 5.0,
                "cache_dir": str(tmp_path / "answers"),
                **changes,
            }
        )
        assert judge is not None
        return judge

    return make


@pytest.fixture(scope="session")
def spec() -> TaskSpec:
    return load_task("seg/kidney_tumor").spec


@dataclasses.dataclass
class Plan:
    """An episode at focus S1 with a plan, and its judging."""

    spec: TaskSpec
    episode: Episode

    def ask(self, judge: Judge) -> dict[str, Any]:
        """Findings by item."""
        rules = compile_contract(self.spec, tier=self.episode.tier, focus=self.episode.focus)
        contract = judge.contract(rules, self.spec)
        assert isinstance(contract, JudgedContract)
        return judge.findings(self.episode, self.spec, contract)


@pytest.fixture
def make_plan(spec: TaskSpec) -> Callable[..., Plan]:
    def make(text: str = GOOD) -> Plan:
        text = text.replace("{model}", spec.model.name).replace("{modality}", spec.modality)
        return Plan(spec, example_episode(spec, text))

    return make
