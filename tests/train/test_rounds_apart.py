"""What holds between rounds: a fresh optimiser, and the distance to the best policy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import toy_training

from bat_agent.curriculum.fallback import KL_PROMPTS
from bat_agent.divergence import held_out_prompts, mean_token_kl
from bat_agent.grpo import train_grpo
from bat_agent.policy import load_policy
from bat_agent.policy.checkpoint import SEAL
from bat_agent.sft import build_row, split_rows
from bat_env.bank import Bank
from bat_env.errors import BankError

pytestmark = pytest.mark.train
SPLIT = {"max_tokens": 10_000, "share": 0.5, "seed": 3}


def test_a_round_starts_with_a_fresh_optimiser(toy_start: Path, tmp_path: Path) -> None:
    """A round depends on its start alone, not on the rounds that this process made before."""
    made = []
    for name in ("first", "other", "again"):
        plan = toy_training.plan(2, first_seed=5000 if name == "other" else 1000)
        final = train_grpo(toy_start, plan, tmp_path / name, toy_training.PRESET, seed=1)
        made.append(json.loads((final / SEAL).read_text())["weights_digest"])
    assert made[0] == made[2] != made[1]


def test_the_distance_is_over_prompts_that_were_held_out(toy_bank: Path, toy_start: Path) -> None:
    policy = load_policy(toy_start)
    prompts = held_out_prompts(toy_bank, policy, count=KL_PROMPTS, **SPLIT)
    assert len(prompts) == KL_PROMPTS == 256
    with Bank.open(toy_bank) as bank:
        rows = [build_row(demo, policy.codec, 10_000)[0] for demo in bank.demonstrations()]
    train, held = split_rows([row for row in rows if row is not None], 0.5, 3)
    ours = {tuple(row.input_ids) for row in held}
    begins = {tuple(ids[:n]) for ids in ours for n in range(len(ids))}
    assert all(tuple(prompt) in begins for prompt in prompts)
    assert not {row.source for row in train} & {row.source for row in held}
    few = held_out_prompts(toy_bank, policy, count=16, **SPLIT)
    assert len(few) == 16 and few == held_out_prompts(toy_bank, policy, count=16, **SPLIT)
    with pytest.raises(BankError, match="held out"):
        held_out_prompts(toy_bank, policy, count=4, max_tokens=10_000, share=0.0, seed=3)


def test_the_distance_grows_with_what_was_learned(
    toy_bank: Path, toy_start: Path, tmp_path: Path
) -> None:
    far = train_grpo(toy_start, toy_training.plan(6), tmp_path / "far", toy_training.PRESET)

    def kl(a: Path, b: Path) -> float:
        return mean_token_kl(a, b, toy_bank, temperature=0.7, count=24, **SPLIT)

    assert kl(toy_start, toy_start) == pytest.approx(0.0, abs=1e-6)
    near, away = kl(tmp_path / "far" / "checkpoint-2", toy_start), kl(far, toy_start)
    assert 0.0 < near < away
