"""Recipe and data for training on the toy environment."""

from __future__ import annotations

import random
from pathlib import Path

import toy_chain

from bat_agent.policy.tiny import TinyModelConfig
from bat_agent.presets import load_preset
from bat_agent.rollout import ResetSpec
from bat_env.bank import Bank
from bat_env.bank.state import Demonstration, DemoTurn

P_GOOD = 0.5

PRESET = load_preset("tiny-cpu").updated(
    model={"tiny": TinyModelConfig(hidden_size=48, intermediate_size=96, context_tokens=512)},
    rollout={
        "max_turn_tokens": 8,
        "max_completion_tokens": 96,
        "max_prompt_tokens": 64,
        "max_live": 16,
        "env_threads": 2,
    },
    sft={"steps": 60, "learning_rate": 5e-3, "save_every_steps": 20, "batch_rows": 16},
    grpo={
        "learning_rate": 3e-3,
        "groups_per_batch": 8,
        "save_every_steps": 2,
        # The reference treatment of rows that run out of tokens.
        "mask_truncated_completions": True,
        "cut_reward_share": 1.0,
    },
)


def several(iterations: int) -> dict[str, int]:
    """Updates from each batch; with more than one, rounds also end with averaged weights."""
    return {"iterations": iterations, "average_checkpoints": 2 if iterations > 1 else 1}


def make_bank(path: Path, count: int = 200) -> Path:
    """Toy episodes played by a careless expert: each turn is right with probability P_GOOD."""
    rng = random.Random(0)
    with Bank.open(path, create=True) as bank:
        for seed in range(count):
            env = toy_chain.ToyChain()
            observation, _ = env.reset(seed=seed)
            turns, over, score = [], False, 0.0
            while not over:
                good = rng.random() < P_GOOD
                colour = env.goal[env.done] if good else rng.choice(toy_chain.COLOURS)
                action = toy_chain.cell(colour)
                turns.append(DemoTurn(observation=observation["text"], action=action))
                observation, reward, over, _, _ = env.step(action)
                score += reward
            bank.add_demonstration(
                Demonstration(
                    source_trajectory=f"toy-{seed}",
                    track="seg",
                    task="seg/toy",
                    task_digest="0" * 64,
                    focus="E2E",
                    index=seed,
                    seed=seed,
                    choices={},
                    score=score,
                    turns=tuple(turns),
                )
            )
    return path


def plan(steps: int, groups: int = 8, first_seed: int = 1000) -> list[list[ResetSpec]]:
    """Batches of distinct groups."""
    return [
        [ResetSpec(toy_chain.ENV_ID, first_seed + s * groups + g) for g in range(groups)]
        for s in range(steps)
    ]
