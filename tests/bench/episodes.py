"""CPU seconds of oracle episodes, of one training step's rollouts, and how well a wave overlaps."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
from measure import Row, tree_cpu_s
from sampling import sampling_rows

import bat_env
from bat_agent.agents.scripted import OracleAgent
from bat_env.bank import Bank
from bat_env.stages import OUTCOMES, WORK_STAGES, Stage

RUN = Path(os.environ.get("BAT_BENCH_RUN", "runs/demo"))
"""A finished `make demo`: its bank and its trained policy are what the training rows use."""

STEP = [*(["S3"] * 16), *[s for s in ("S1", "S2", "S4", "S5") for _ in range(2)], *(["E2E"] * 8)]
"""Focus of the 32 rows of 8 groups x 4; doubled to 64 rollouts: half target, quarter mix, E2E."""


def _play(env: gym.Env[Any, Any], agent: OracleAgent, seed: int, options: dict[str, Any]) -> float:
    observation, info = env.reset(seed=seed, options=options)
    agent.reset(observation, info)
    score, over = 0.0, False
    while not over:
        observation, reward, terminated, truncated, _ = env.step(agent.act(observation))
        score, over = score + float(reward), terminated or truncated
    return score


def _bank() -> Bank | None:
    folder = RUN / "bank"
    if not folder.is_dir():
        print(f"{folder} is absent (run `make demo` first): stage-focus and training rows left out")
        return None
    return Bank.open(folder)


def _cost(env: gym.Env[Any, Any], options: list[dict[str, Any]]) -> list[float]:
    agent, costs = OracleAgent(), []
    for seed, option in enumerate(options):
        before = tree_cpu_s()
        _play(env, agent, seed, option)
        costs.append(tree_cpu_s() - before)
    return costs


def episode_rows() -> list[Row]:
    """CPU seconds of one episode: host, sandbox, verifier and grader together."""
    bank = _bank()
    env = gym.make(bat_env.TRACK_IDS["seg"], size="mini", sandbox="local", bank=bank)
    rows = []
    try:
        _cost(env, [{}, {}])  # warm: interpreter, spares, grader
        e2e = statistics.median(_cost(env, [{}] * 7))
        rows.append(
            Row("Oracle, E2E surrogate", e2e, "CPU-s", bound="<= 1.5 CPU-s", holds=e2e <= 1.5)
        )
        if bank is not None:
            for stage in WORK_STAGES:
                options = [{"stage": stage.name, "outcome": o} for o in OUTCOMES for _ in range(2)]
                one = statistics.median(_cost(env, options))
                name = f"Oracle, {stage.name} focus"
                rows.append(Row(name, one, "CPU-s", bound="<= .5 CPU-s", holds=one <= 0.5))
            options = [{"stage": Stage.parse(s).name} for s in STEP for _ in range(2)]
            step = sum(_cost(env, options))
            rows.append(
                Row("64 oracle rollouts, 4/2/2 mix", step, "CPU-s", bound="<= 48", holds=step <= 48)
            )
    finally:
        env.close()
    return rows


def training_rows() -> list[Row]:
    """Wall time of a policy's rollout waves against their CPU time spread over all cores."""
    bank = _bank()
    checkpoint = RUN / "sft" / "final"
    if bank is None or not checkpoint.is_dir():
        return []
    from bat_agent.policy import load_policy
    from bat_agent.rollout import ResetSpec, run_policy
    from bat_agent.rollout.waves import WaveStats

    states = {s: bank.query(focus=Stage.parse(s), size="mini") for s in set(STEP)}
    kwargs = {"bank": str(RUN / "bank"), "sandbox": "local", "on_sandbox_error": "truncate"}
    specs = [
        ResetSpec("AutoMed-Seg-v0", 1, {"state_id": states[s][i % len(states[s])].state_id}, kwargs)
        for i, s in enumerate(STEP)
    ]
    policy = load_policy(checkpoint)
    run_policy(policy, specs[:4], temperature=0.7, seed=1)
    stats = WaveStats()
    before, start = tree_cpu_s(), time.perf_counter()
    run_policy(policy, specs, temperature=0.7, seed=2, stats=stats)
    wall, cpu = time.perf_counter() - start, tree_cpu_s() - before
    ideal = cpu / (os.cpu_count() or 1)
    return [
        Row(
            "32 policy rollouts: wall time against CPU time / cores",
            wall,
            "s",
            ideal,
            wall / ideal,
            "<= 1.25x",
            wall / ideal <= 1.25,
        ),
        *sampling_rows(checkpoint, specs, "Tiny policy, 32 rollouts"),
    ]
