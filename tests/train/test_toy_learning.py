"""The whole update path learns a bandit and a chain with known optima."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import toy_bandit
import toy_chain
import toy_training

from bat_agent.grpo import HEALTH, train_grpo
from bat_agent.policy import load_policy
from bat_agent.rollout import ResetSpec, run_policy

pytestmark = pytest.mark.train


def score(checkpoint: Path, env_id: str, episodes: int = 64) -> float:
    rows = run_policy(
        load_policy(checkpoint),
        [ResetSpec(env_id, 9000 + i) for i in range(episodes)],
        temperature=0.7,
        seed=5,
        max_live=32,
        env_threads=2,
    )
    return sum(r.episode.reward or 0.0 for r in rows) / len(rows)


def test_grpo_learns_the_toy_bandit(toy_start: Path, tmp_path: Path) -> None:
    toy_bandit.register()
    before = score(toy_start, toy_bandit.ENV_ID)
    plan = [[ResetSpec(toy_bandit.ENV_ID, 8 * s + g) for g in range(8)] for s in range(20)]
    began = time.process_time()
    final = train_grpo(toy_start, plan, tmp_path / "round", toy_training.PRESET)
    seconds = time.process_time() - began
    after = score(final, toy_bandit.ENV_ID)
    print(f"toy bandit: {before:.3f} -> {after:.3f} in {seconds:.0f} CPU-seconds")
    assert before < 0.8
    assert after >= 0.95
    assert seconds < 60


def test_grpo_learns_the_toy_chain(toy_start: Path, tmp_path: Path) -> None:
    before = score(toy_start, toy_chain.ENV_ID)
    began = time.process_time()
    final = train_grpo(toy_start, toy_training.plan(60), tmp_path / "round", toy_training.PRESET)
    seconds = time.process_time() - began
    after = score(final, toy_chain.ENV_ID)
    print(f"toy chain: {before:.3f} -> {after:.3f} in {seconds:.0f} CPU-seconds")
    assert 0.3 < before < 0.9
    assert after >= 0.95
    assert seconds < 60
    assert (tmp_path / "round" / HEALTH).is_file()
