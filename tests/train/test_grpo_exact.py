"""Token-exactness, masks, and parity with the paper's equations, on ragged multi-turn batches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpo_reference
import pytest
import torch
import toy_chain
import toy_training
from hypothesis import given
from hypothesis import strategies as st
from trl.trainer.grpo_trainer import GRPOTrainer

from bat_agent.grpo import make_trainer
from bat_agent.policy import load_policy
from bat_agent.rollout import EnvPool, GroupMismatchError, ResetSpec
from bat_agent.trimmed import bundles

pytestmark = pytest.mark.train

# Hot and short: turns are cut, calls malformed, rows run out of tokens.
RAGGED = toy_training.PRESET.updated(
    rollout={"temperature": 1.25, "max_completion_tokens": 40, "max_live": 5},
    grpo={"groups_per_batch": 8, "micro_batch_rows": 32},
)


def trainer_for(start: Path, out: Path, specs: list[ResetSpec], preset: Any = RAGGED) -> Any:
    prompts = [s.to_json() for s in specs]
    policy = load_policy(start)
    trainer = make_trainer(policy, prompts, out, preset, seed=3, pool=EnvPool())
    trainer.current_gradient_accumulation_steps = 1
    trainer.create_optimizer()
    trainer.model.train()
    return trainer


def batch_of(trainer: Any, specs: list[ResetSpec], group: int = 4) -> dict[str, Any]:
    inputs = [{"prompt": s.to_json()} for s in specs for _ in range(group)]
    batch: dict[str, Any] = trainer._generate_and_score_completions(inputs)
    return batch


@pytest.fixture
def ragged(toy_start: Path, tmp_path: Path) -> Iterator[tuple[Any, dict[str, Any]]]:
    specs = [ResetSpec(toy_chain.ENV_ID, 50 + i) for i in range(8)]
    trainer = trainer_for(toy_start, tmp_path, specs)
    yield trainer, batch_of(trainer, specs)


def logps(trainer: Any, model: Any, batch: dict[str, Any]) -> torch.Tensor:
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    keep = batch["completion_ids"].size(1)
    values: torch.Tensor = trainer._get_per_token_logps_and_entropies(model, ids, mask, keep)[0]
    return values


def test_sampled_logprobs_are_the_trainers(ragged: tuple[Any, dict[str, Any]]) -> None:
    trainer, batch = ragged
    rows = trainer.rollout_func.last
    lengths = {len(r.completion_ids) for r in rows}
    assert len(lengths) > 4 and any(r.cut for r in rows) and any(r.malformed for r in rows)
    assert not all(r.cut for r in rows)
    with torch.no_grad():
        trained = logps(trainer, trainer.model, batch)
    mask = (batch["completion_mask"] * batch["tool_mask"]).bool()
    assert mask.sum() > 200
    drift = (trained - batch["sampling_per_token_logps"])[mask].abs().max().item()
    print(f"largest |logprob at sampling - logprob in the trainer| = {drift:.2e}")
    assert drift <= 1e-4


def test_masks_cover_exactly_what_was_sampled(ragged: tuple[Any, dict[str, Any]]) -> None:
    trainer, batch = ragged
    codec = trainer.rollout_func.codec
    observation = codec.observation_ids("x")[0]
    stop = codec.stop_ids[0]
    loss_mask = batch["completion_mask"] * batch["tool_mask"]
    for i, row in enumerate(trainer.rollout_func.last):
        assert len(row.completion_ids) == len(row.env_mask) <= RAGGED.rollout.max_completion_tokens
        assert row.episode.tokens == sum(row.env_mask)
        trained = loss_mask[i, : len(row.env_mask)].tolist()
        if row.completion_ids[-1] != stop:
            assert row.cut and sum(trained) == 0
            continue
        assert trained == row.env_mask
        # Turns: sampled tokens, then (only if cut) a stop token, then an observation.
        turn = 0
        position = 0
        while position < len(row.completion_ids):
            begin = position
            while position < len(row.env_mask) and row.env_mask[position]:
                position += 1
            assert position > begin
            if row.completion_ids[position - 1] != stop:
                assert row.completion_ids[position] == stop and not row.env_mask[position]
                position += 1
            turn += 1
            if position < len(row.env_mask):
                assert row.completion_ids[position] == observation
                while position < len(row.env_mask) and not row.env_mask[position]:
                    position += 1
        assert turn == row.episode.turns


@pytest.mark.parametrize("fails", [0, 4])
def test_loss_is_the_papers(toy_start: Path, tmp_path: Path, fails: int) -> None:
    toy_chain.ToyChain.failures = 0
    specs = [ResetSpec(toy_chain.ENV_ID, 70 + i) for i in range(7)]
    # With 4 failures and two attempts each, at least one rollout of this group stays invalid.
    specs.append(ResetSpec(toy_chain.ENV_ID, 90, {"fail_at": 1, "fails": 10**6 if fails else 0}))
    trainer = trainer_for(toy_start, tmp_path, specs)
    batch = batch_of(trainer, specs)
    rows = trainer.rollout_func.last
    rewards = [r.episode.reward for r in rows]
    assert (None in rewards) == bool(fails)
    expected = grpo_reference.advantages(rewards, 4)
    torch.testing.assert_close(batch["advantages"], expected, atol=1e-6, rtol=0)

    # Move the policy off the reference and off the sampling policy, so that KL and clipping act.
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in trainer.model.parameters():
            p.add_(0.03 * torch.randn(p.shape, generator=generator))
        now = logps(trainer, trainer.model, batch)
        reference = logps(trainer, trainer.ref_model, batch)
    old = now + 0.3 * torch.randn(now.shape, generator=generator)
    torch.testing.assert_close(reference, batch["ref_per_token_logps"], atol=1e-5, rtol=0)
    batch["old_per_token_logps"] = old
    with torch.no_grad():
        theirs = trainer.compute_loss(trainer.model, batch)
    mask = [torch.tensor(r.env_mask) for r in rows]
    ended = [r.completion_ids[-1] == trainer.rollout_func.codec.stop_ids[0] for r in rows]
    mask = [m if e else m * 0 for m, e in zip(mask, ended, strict=True)]
    ours = grpo_reference.loss(
        *[[t[i, : len(m)] for i, m in enumerate(mask)] for t in (now, old, reference)],
        mask,
        expected,
        clip=RAGGED.grpo.clip,
        beta=RAGGED.grpo.kl_coefficient,
    )
    assert abs(ours.item()) > 1e-4
    torch.testing.assert_close(theirs, ours, atol=1e-6, rtol=1e-5)


def test_group_members_must_start_alike(toy_start: Path, tmp_path: Path) -> None:
    specs = [ResetSpec(toy_chain.ENV_ID, 5, {"drift": True})] * 8
    trainer = trainer_for(toy_start, tmp_path, specs)
    with pytest.raises(GroupMismatchError, match="differ in workspace"):
        batch_of(trainer, specs)


def test_trimming_changes_no_value_and_no_gradient(ragged: tuple[Any, dict[str, Any]]) -> None:
    """Against TRL's own computation over the padded batch."""
    trainer, batch = ragged
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    keep = batch["completion_ids"].size(1)
    seen = batch["completion_mask"].bool()
    weight = torch.rand(seen.shape, generator=torch.Generator().manual_seed(1)) * seen
    found = []
    for owner in (type(trainer), GRPOTrainer):
        compute = owner._get_per_token_logps_and_entropies
        trainer.model.zero_grad()
        values, entropy, _ = compute(trainer, trainer.model, ids, mask, keep, compute_entropy=True)
        (values * weight).sum().backward()
        gradient = torch.cat([p.grad.flatten() for p in trainer.model.parameters()])
        found.append((values[seen].detach(), entropy[seen].detach(), gradient.clone()))
    trimmed, padded = found
    assert trimmed[0].numel() > 200
    for ours, theirs in zip(trimmed, padded, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@given(
    st.lists(st.tuples(st.integers(1, 1400), st.integers(0, 1536)), min_size=1, max_size=40),
    st.integers(1, 16),
)
def test_bundles_hold_every_row_once_and_little_padding(
    lengths: list[tuple[int, int]], most: int
) -> None:
    before, after = [b for b, _ in lengths], [a for _, a in lengths]
    found = bundles(before, after, most)
    assert sorted(row for rows in found for row in rows) == list(range(len(lengths)))
    for rows in found:
        assert len(rows) <= most
        if len(rows) > 1:
            width = max(before[i] for i in rows) + max(1, *(after[i] for i in rows))
            assert width * len(rows) <= 1.2 * sum(before[i] + after[i] for i in rows)
