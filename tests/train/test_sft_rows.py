"""Supervised rows: what carries loss, what is rejected, how rows are split and ordered."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
import toy_training
from hypothesis import given
from hypothesis import strategies as st

from bat_agent.policy import load_policy
from bat_agent.sft import SftRow, build_row, row_order, split_rows
from bat_env.bank import Bank

pytestmark = pytest.mark.train


def test_loss_lies_on_responses_only_and_rows_are_what_rollouts_see(
    toy_bank: Path, toy_start: Path
) -> None:
    codec = load_policy(toy_start).codec
    with Bank.open(toy_bank) as bank:
        demo = next(iter(bank.demonstrations()))
    row, rejected = build_row(demo, codec, 10_000)
    assert row is not None and rejected == 0 and row.responses == len(demo.turns)
    ids = codec.prompt_ids({"stage": 5, "text": demo.turns[0].observation}, {})
    expected = [-100] * len(ids)
    for i, turn in enumerate(demo.turns):
        if i:
            seen = codec.observation_ids(turn.observation)
            ids, expected = ids + seen, expected + [-100] * len(seen)
        response = codec.action_ids(turn.action)
        ids, expected = ids + response, expected + response
    assert row.input_ids == ids and row.labels == expected


def test_what_does_not_fit_is_rejected_not_clipped(toy_bank: Path, toy_start: Path) -> None:
    codec = load_policy(toy_start).codec
    with Bank.open(toy_bank) as bank:
        demo = next(iter(bank.demonstrations()))
    whole, _ = build_row(demo, codec, 10_000)
    assert whole is not None
    short, rejected = build_row(demo, codec, len(whole.input_ids) - 1)
    assert short is not None and rejected == 1 and short.responses == whole.responses - 1
    assert whole.input_ids[: len(short.input_ids)] == short.input_ids
    assert short.labels[-1] == codec.stop_ids[0]
    assert build_row(demo, codec, 3) == (None, len(demo.turns))


@given(st.lists(st.integers(0, 20), min_size=1, max_size=60), st.integers(0, 5))
def test_a_trajectory_stays_on_one_side(sources: list[int], seed: int) -> None:
    rows = [SftRow([1], [1], 1, f"t{s}") for s in sources]
    train, validation = split_rows(rows, 0.3, seed)
    assert not {r.source for r in train} & {r.source for r in validation}
    assert len(train) + len(validation) == len(rows)


@given(
    st.lists(st.integers(1, 99), min_size=1, max_size=30),
    st.integers(1, 8),
    st.integers(1, 12),
    st.integers(0, 3),
)
def test_rows_are_used_evenly(lengths: list[int], batch: int, steps: int, seed: int) -> None:
    order = row_order(lengths, batch, steps, seed)
    assert order == row_order(lengths, batch, steps, seed)
    assert len(order) == batch * steps
    uses = Counter(order)
    assert max(uses.values()) - min(uses.get(i, 0) for i in range(len(lengths))) <= 1
    first = [lengths[i] for i in order[:batch]]
    assert first == sorted(first)


def test_our_loss_is_trls(toy_bank: Path, toy_start: Path, tmp_path: Path) -> None:
    """The response-only projection gives the loss and the gradients of TRL's fused head."""
    from trl import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

    from bat_agent.sft_trainer import ResponseTrainer

    policy = load_policy(toy_start)
    with Bank.open(toy_bank) as bank:
        demos = list(bank.demonstrations())[:6]
    rows = [build_row(d, policy.codec, 10_000)[0] for d in demos]
    data = [{"input_ids": r.input_ids, "labels": r.labels} for r in rows if r is not None]
    from datasets import Dataset

    arguments = SFTConfig(
        output_dir=str(tmp_path),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        max_length=None,
        dataset_kwargs={"skip_prepare_dataset": True},
    )
    results = []
    for kind in (SFTTrainer, ResponseTrainer):
        trainer = kind(
            model=load_policy(toy_start).model,
            args=arguments,
            train_dataset=Dataset.from_list(data),
            processing_class=policy.tokenizer,
        )
        batch = trainer.data_collator(data)
        trainer.model.train()
        loss = trainer.compute_loss(trainer.model, batch)
        loss.backward()
        results.append((loss, [p.grad.clone() for p in trainer.model.parameters()]))
    torch.testing.assert_close(results[0][0], results[1][0])
    torch.testing.assert_close(results[0][1], results[1][1], atol=1e-6, rtol=1e-4)


def test_the_recipe_is_recorded(toy_start: Path) -> None:
    facts = load_policy(toy_start).meta["sft"]
    assert facts["rejected_responses"] == 0 and facts["rows"] + facts["validation_rows"] == 200
    assert facts["validation_loss"] < 2.0
    assert toy_training.PRESET.sft.steps == 60
