"""Rollouts: repeatable, independent of how many run at once, honest about infrastructure."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import toy_chain
import toy_training
from gymnasium.envs.registration import EnvSpec

from bat_agent.grpo import RolloutFunction
from bat_agent.policy import load_policy
from bat_agent.policy.sampling import ModelSampler
from bat_agent.rollout import (
    EnvPool,
    EpisodeResult,
    ResetSpec,
    RolloutRow,
    WaveStats,
    run_agent,
    run_policy,
)
from bat_agent.rollout.waves import run_rows
from bat_env.errors import ConfigError
from bat_env.sandbox import Limits, SandboxPool
from bat_env.sandbox.budget import Budget

pytestmark = pytest.mark.train
SPECS = [ResetSpec(toy_chain.ENV_ID, 300 + i) for i in range(12)]


def tokens(rows: list[Any]) -> list[list[int]]:
    return [r.completion_ids for r in rows]


def test_equal_seeds_give_equal_rollouts_at_any_width(toy_start: Path) -> None:
    policy = load_policy(toy_start)
    stats = WaveStats()
    wide = run_policy(policy, SPECS, temperature=1.0, seed=1, max_live=16, stats=stats)
    narrow = run_policy(policy, SPECS, temperature=1.0, seed=1, max_live=3)
    other = run_policy(policy, SPECS, temperature=1.0, seed=2, max_live=16)
    assert tokens(wide) == tokens(narrow) != tokens(other)
    assert [r.episode.reward for r in wide] == [r.episode.reward for r in narrow]
    assert 0 < stats.waves <= 6 and stats.sampled_tokens == sum(sum(r.env_mask) for r in wide)


def test_the_cache_changes_nothing(toy_start: Path) -> None:
    policy = load_policy(toy_start)
    rows = {}
    for reuse in (True, False):
        sampler = ModelSampler(
            policy.model, policy.codec.stop_ids, policy.codec.pad_id, reuse_cache=reuse
        )
        rows[reuse] = run_rows(
            sampler, policy.codec, SPECS, limits=policy.limits, temperature=1.2, seed=(4,)
        )
    assert tokens(rows[True]) == tokens(rows[False])
    for a, b in zip(rows[True], rows[False], strict=True):
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)


class Holding(toy_chain.ToyChain):
    """Holds a sandbox of a small pool from its reset to its end."""

    pool: SandboxPool
    held: Any = None

    @property
    def places(self) -> int:
        return self.pool.places

    def reset(self, **how: Any) -> Any:
        self.held = self.held or self.pool.acquire(timeout_s=20)
        return super().reset(**how)

    def _answer(self, *parts: Any) -> Any:
        if any(parts[2:]):
            self.pool.release(self.held)
            self.held = None
        return super()._answer(*parts)


def test_a_wave_is_no_wider_than_the_memory(
    toy_start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of a wave wait for each other: one without a sandbox would never get one."""
    limits = Limits(memory_mb=512, workspace_mb=16, tmp_mb=8)
    budget = Budget(1, watch=False)
    pool = SandboxPool("local", limits, 1, budget=budget, preload=())
    budget.total_mb = 5 * pool.need_mb
    monkeypatch.setattr(Holding, "pool", pool, raising=False)
    monkeypatch.setitem(gym.registry, "Holding-v0", EnvSpec("Holding-v0", entry_point=Holding))
    specs = [ResetSpec("Holding-v0", 300 + i) for i in range(8)]
    stats = WaveStats()
    try:
        rows = run_policy(
            load_policy(toy_start), specs, temperature=1.0, seed=1, max_live=8, stats=stats
        )
    finally:
        pool.close()
    free = run_policy(load_policy(toy_start), SPECS[:8], temperature=1.0, seed=1)
    assert tokens(rows) == tokens(free)
    assert stats.retries == 0 and all(row.episode.reward is not None for row in rows)
    assert pool.places == 3 and stats.waves >= 3


def test_greedy_needs_no_seed(toy_start: Path) -> None:
    policy = load_policy(toy_start)
    a = run_policy(policy, SPECS, temperature=0.0, seed=1)
    b = run_policy(policy, SPECS, temperature=0.0, seed=2)
    assert tokens(a) == tokens(b)


@pytest.mark.parametrize(("fails", "lost"), [(1, 0), (10**6, 1)])
def test_infrastructure_is_retried_once_then_dropped(
    toy_start: Path, fails: int, lost: int
) -> None:
    toy_chain.ToyChain.failures = 0
    sick = ResetSpec(toy_chain.ENV_ID, 300, {"fail_at": 1, "fails": fails})
    policy = load_policy(toy_start)
    stats = WaveStats()
    rows = run_policy(policy, [SPECS[0], sick, SPECS[1]], temperature=1.0, seed=1, stats=stats)
    assert [r.episode.reward is None for r in rows] == [False, bool(lost), False]
    assert stats.retries == 1
    if lost:
        assert rows[1].episode.status == "invalid" and "toy sandbox died" in rows[1].episode.error
        assert rows[1].completion_ids and not any(rows[1].env_mask)


def test_a_prompt_over_its_budget_is_an_error(toy_start: Path) -> None:
    from dataclasses import replace

    policy = load_policy(toy_start)
    limits = replace(policy.limits, prompt=3)
    with pytest.raises(ConfigError, match="at most 3 tokens"):
        run_policy(policy, SPECS[:1], temperature=0.0, seed=0, limits=limits)


def test_reset_specs_are_canonical_and_read_back() -> None:
    a = ResetSpec("X-v0", 3, {"b": 1, "a": {"z": 1, "y": 2}})
    b = ResetSpec("X-v0", 3, {"a": {"y": 2, "z": 1}, "b": 1})
    assert a.to_json() == b.to_json()
    assert ResetSpec.from_json(a.to_json()) == a
    with pytest.raises(ConfigError, match="reset specification"):
        ResetSpec.from_json("{}")


class Painter:
    """Reads what is asked; fails now and then."""

    def reset(self, observation: Any, info: Any) -> None:
        assert "result" not in info

    async def act(self, observation: Any) -> Any:
        return toy_chain.cell(observation["text"].rsplit("next: ", 1)[1].strip())


def test_agents_run_in_threads() -> None:
    toy_chain.ToyChain.failures = 0
    specs = [*SPECS[:5], ResetSpec(toy_chain.ENV_ID, 1, {"fail_at": 0, "fails": 10**6})]
    seen: list[int] = []
    results = run_agent(Painter, specs, workers=3, progress=lambda n, total, e: seen.append(n))
    assert [r.reward for r in results] == [1.0] * 5 + [None]
    assert seen == [1, 2, 3, 4, 5, 6]
    assert results[0].turns == 4 and results[-1].status == "invalid"


@pytest.fixture
def ctrl_c(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Options of an episode whose cell sleeps; Ctrl-C comes once it does."""
    # Whoever runs the tests in the background ignores SIGINT.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    begun = tmp_path / "begun"

    def press() -> None:
        deadline = time.monotonic() + 60
        while not begun.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    yield {"hang": str(begun)}
    thread.join()
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("who", ["policy", "agent"])
def test_ctrl_c_ends_the_cells_that_run(who: str, toy_start: Path, ctrl_c: dict[str, str]) -> None:
    specs = [ResetSpec(toy_chain.ENV_ID, seed, ctrl_c) for seed in (300, 301, 302)]
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        if who == "policy":
            run_policy(load_policy(toy_start), specs, temperature=0.0, seed=0, env_threads=2)
        else:
            run_agent(Painter, specs, workers=2)
    assert time.monotonic() - began < 60  # a cell would take 100 s


def test_presets_share_one_schema() -> None:
    from bat_agent.grpo import grpo_arguments
    from bat_agent.presets import PRESETS

    for preset in PRESETS.values():
        arguments = grpo_arguments(preset, Path("x"), steps=1, seed=0)
        assert arguments["loss_type"] == "grpo" and arguments["scale_rewards"] == "none"
        assert arguments["beta"] == 0.006 and arguments["num_generations"] == 4
    assert toy_training.PRESET.model.tiny is not None


def test_a_row_that_runs_out_of_tokens_keeps_the_configured_share() -> None:
    def row(reward: float | None, cut: bool) -> RolloutRow:
        spec = ResetSpec(toy_chain.ENV_ID, 1)
        return RolloutRow(EpisodeResult(spec, reward, None, "truncated"), cut=cut)

    for share in (1.0, 0.25, 0.0):
        preset = toy_training.PRESET.updated(grpo={"cut_reward_share": share})
        function = RolloutFunction(None, preset, 0, EnvPool())  # type: ignore[arg-type]
        assert function._score(row(0.5, cut=True)) == 0.5 * share
        assert function._score(row(0.5, cut=False)) == 0.5
        assert function._score(row(None, cut=True)) is None, "lost is never zero"
