"""The path of the large presets, on a small chat model: pretrained folder, Hermes codec, LoRA."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import toy_training

from bat_agent.grpo import HEALTH, train_grpo
from bat_agent.policy import load_policy
from bat_agent.policy.tiny import TinyModelConfig, build_model
from bat_agent.sft import train_sft

pytestmark = pytest.mark.train


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    tokenizer.add_tokens([AddedToken("<|im_start|>", special=True), AddedToken("<tool_call>")])
    folder = tmp_path_factory.mktemp("pretrained")
    model = build_model(tokenizer, TinyModelConfig(hidden_size=16, intermediate_size=16), seed=0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_lora_on_a_pretrained_chat_model(pretrained: Path, toy_bank: Path, tmp_path: Path) -> None:
    preset = toy_training.PRESET.updated(
        model={"pretrained": str(pretrained), "tiny": None, "codec": "hermes", "lora": {"rank": 4}},
        rollout={"max_turn_tokens": 12, "max_completion_tokens": 600, "max_prompt_tokens": 2500},
        sft={"steps": 2, "batch_rows": 4, "micro_batch_rows": 2, "max_row_tokens": 4000},
        grpo={"groups_per_batch": 2, "micro_batch_rows": 4, "learning_rate": 0.01},
    )
    start = train_sft(toy_bank, tmp_path / "sft", preset)
    assert (start / "adapter_config.json").is_file()
    final = train_grpo(start, toy_training.plan(2, groups=2), tmp_path / "round", preset)
    health = json.loads((tmp_path / "round" / HEALTH).read_text())
    assert health["finite"] and health["malformed_share"] > 0.5
    # The base model is untouched; the second step's KL is against the round's start.
    assert health["kl_max"] < 0.1
    before, after = load_policy(start), load_policy(final)
    changed = [
        name
        for (name, a), b in zip(
            before.model.state_dict().items(), after.model.state_dict().values(), strict=True
        )
        if not torch.equal(a, b)
    ]
    assert all("lora_" in name for name in changed)
