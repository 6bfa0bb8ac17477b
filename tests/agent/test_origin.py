from __future__ import annotations

import json
from pathlib import Path

import pytest

from bat_agent.demo import demo_config
from bat_agent.pipeline import Pipeline
from bat_agent.policy.origin import check_origin
from bat_agent.policy.tiny import TinyModelConfig, build_model, train_tokenizer
from bat_agent.presets import load_preset
from bat_env.errors import ConfigError


def test_a_run_without_its_base_model_leaves_no_trace(tmp_path: Path) -> None:
    preset = load_preset("qwen3.5-4b-1gpu")
    model = {"pretrained": str(tmp_path / "weights")}
    config = demo_config(backend="local", steps=None, preset=preset.updated(model=model))
    with pytest.raises(ConfigError, match=r"weights' cannot be loaded.*hf download.*HF_HOME"):
        Pipeline(tmp_path / "run", config, quiet=True)
    assert list(tmp_path.iterdir()) == []


def test_config_tokenizer_and_every_shard_must_be_there(tmp_path: Path) -> None:
    tiny = TinyModelConfig()
    tokenizer = train_tokenizer(["print('kidney')"], tiny)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="cannot be loaded"):
        check_origin(str(tmp_path))  # no configuration
    build_model(tokenizer, tiny, seed=0).save_pretrained(tmp_path)
    check_origin(str(tmp_path))
    weights = tmp_path / "model.safetensors"
    weights.rename(tmp_path / "model-00001-of-00002.safetensors")
    with pytest.raises(ConfigError, match=r"model\.safetensors is missing"):
        check_origin(str(tmp_path))
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": shards}))
    with pytest.raises(ConfigError, match=r"model-00002-of-00002\.safetensors is missing"):
        check_origin(str(tmp_path))
