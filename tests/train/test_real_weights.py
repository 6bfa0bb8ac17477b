"""A real pretrained chat model through the whole path: opt-in, `make smoke-llm`.

SmolLM2-135M is imitated into the form of our tool calls by a few updates, then plays a held-out
episode of the real environment and takes one GRPO step, by the same codec, rollouts and trainers as
the large presets. Nothing is expected of its scores; all is expected of the machinery: exact
tokens, exact log-probabilities, a step that moves the weights, most of its time in the model.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from bat_agent.agents.base import AgentSource
from bat_agent.evaluate import evaluate
from bat_agent.grpo import HEALTH, make_trainer, train_grpo
from bat_agent.policy import load_policy
from bat_agent.presets import Preset, load_preset
from bat_agent.rollout import EnvPool, ResetSpec
from bat_agent.sft import train_sft
from bat_agent.steps import read_steps
from bat_env.bank import Bank
from bat_env.bank.build import build
from bat_env.trajectory import read_trajectory

MODEL = os.environ.get("BAT_SMOKE_MODEL", "")
TASK = "seg/kidney_tumor"
GROUPS, ROLLOUTS = 2, 4

pytestmark = [
    pytest.mark.train,
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not Path(MODEL or "/none").is_dir(), reason="opt-in: make smoke-llm"),
]


@pytest.fixture(scope="module")
def preset() -> Preset:
    return load_preset("qwen3.5-9b-8gpu").updated(
        model={"pretrained": MODEL, "dtype": "float32"},
        rollout={
            "max_turn_tokens": 192,
            "max_completion_tokens": 1024,
            "max_prompt_tokens": 2500,
            "max_live": GROUPS * ROLLOUTS,
        },
        sft={
            "learning_rate": 2e-4,
            "steps": 12,
            "batch_rows": 4,
            "micro_batch_rows": 1,
            "max_row_tokens": 2600,
        },
        grpo={
            "learning_rate": 1e-5,
            "groups_per_batch": GROUPS,
            "rollouts_per_group": ROLLOUTS,
            "micro_batch_rows": 1,
            "steps_per_round": 1,
        },
        system={
            "use_cpu": True,
            "processes": 1,
            "use_vllm": False,
            "vllm": {},
            "fsdp": "",
            "fsdp_config": {},
            "gradient_checkpointing": False,
        },
    )


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Starts at S1, whose work is a plan: short enough for a small model."""
    path = tmp_path_factory.mktemp("smoke") / "bank"
    build(
        path, tasks=[TASK], stages=["S1"], per_cell=1, demos=24, e2e_share=0.0, instances=3,
        backend="local",
    )  # fmt: skip
    return path


@pytest.fixture(scope="module")
def start(bank: Path, preset: Preset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_sft(bank, tmp_path_factory.mktemp("smoke-sft"), preset, seed=0)


@pytest.fixture(scope="module")
def specs(bank: Path) -> list[ResetSpec]:
    with Bank.open(bank) as opened:
        states = opened.query(size="mini")[:GROUPS]
    kwargs = {"bank": str(bank), "sandbox": "local"}
    return [ResetSpec("AutoMed-Seg-v0", 1, {"state_id": s.state_id}, kwargs) for s in states]


def test_it_plays_a_held_out_episode(start: Path, tmp_path: Path) -> None:
    found = evaluate(
        AgentSource("SmolLM2", checkpoint=start),
        suite="seg-mini",
        repeats=1,
        sandbox="local",
        trajectory_dir=tmp_path,
    )
    assert found.invalid == 0 and len(found.cells) == 1
    (cell,) = found.cells
    assert cell.overall is not None and 0.0 <= cell.overall <= 1.0 and cell.tokens > 0
    (trajectory,) = tmp_path.rglob("*.json")
    assert read_trajectory(trajectory).result is not None


def test_one_grpo_step(start: Path, preset: Preset, specs: list[ResetSpec], tmp_path: Path) -> None:
    began = time.perf_counter()
    final = train_grpo(start, [specs], tmp_path / "round", preset, seed=3)
    wall = time.perf_counter() - began
    health = json.loads((tmp_path / "round" / HEALTH).read_text())
    (step,) = read_steps(tmp_path / "round")
    print(f"{wall:.0f} s with loading and saving", json.dumps(step, sort_keys=True))
    assert health["finite"] and health["aborted_share"] == 0.0
    assert step["reward_std"] > 0, "every rollout of a group earned the same: nothing to learn from"
    before, after = load_policy(start).model, load_policy(final).model
    pairs = zip(before.state_dict().values(), after.state_dict().values(), strict=True)
    assert any(not torch.equal(a, b) for a, b in pairs)


def test_a_step_is_model_compute_and_its_tokens_are_exact(
    start: Path, preset: Preset, specs: list[ResetSpec], tmp_path: Path
) -> None:
    """What was sampled has the same log-probability in a plain forward; sandboxes take < 15 %."""
    policy, pool = load_policy(start, trainable=True), EnvPool()
    trainer: Any = make_trainer(
        policy, [s.to_json() for s in specs], tmp_path / "step", preset, seed=3, pool=pool
    )
    began = time.perf_counter()
    try:
        trainer.train()
    finally:
        pool.close()
    wall = time.perf_counter() - began
    rollouts = trainer.rollout_func
    share = 1 - rollouts.stats.env_s / wall
    print(f"model {share:.1%} of {wall:.0f} s, {rollouts.stats}")
    assert share >= 0.85
    sampled = load_policy(start)
    worst = 0.0
    for row in rollouts.last[:: ROLLOUTS // 2]:
        ids = torch.tensor([row.prompt_ids + row.completion_ids])
        with torch.no_grad():
            logits = sampled.model(ids).logits[0, len(row.prompt_ids) - 1 : -1].float()
        logp = torch.log_softmax(logits / preset.rollout.temperature, -1)
        exact = logp.gather(-1, torch.tensor(row.completion_ids).unsqueeze(-1)).squeeze(-1)
        mask = torch.tensor(row.env_mask, dtype=torch.bool)
        assert mask.any() and row.logprobs is not None
        worst = max(worst, (exact - torch.tensor(row.logprobs))[mask].abs().max().item())
    print(f"greatest difference of a log-probability {worst:.2e}")
    assert worst < 1e-4
