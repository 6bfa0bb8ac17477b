"""Two processes train what one does; the large presets start as many as they say."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import toy_training
import yaml

from bat_agent.grpo import grpo_arguments, train_grpo
from bat_agent.launch import accelerate_yaml, command, train_in_processes
from bat_agent.policy import load_policy
from bat_agent.presets import PRESETS
from bat_agent.sft import train_sft
from bat_agent.steps import read_steps
from bat_env.errors import ConfigError

pytestmark = pytest.mark.train
STEPS = 2
TWO = toy_training.PRESET.updated(system={"processes": 2})


def test_two_processes_give_the_weights_of_one(
    toy_start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = toy_training.plan(STEPS)
    one = train_grpo(toy_start, plan, tmp_path / "one", toy_training.PRESET, seed=4)
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here), str(here.parents[1]), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", paths)
    arguments = {
        "start_checkpoint": str(toy_start),
        "specs": [[spec.to_json() for spec in batch] for batch in plan],
        "seed": 4,
        "modules": ["toy_registered"],
    }
    two = train_in_processes("grpo", TWO, tmp_path / "two", arguments, steps=STEPS)
    a, b = (load_policy(folder).model.state_dict() for folder in (one, two))
    start = load_policy(toy_start).model.state_dict()
    apart = max((a[name] - b[name]).abs().max().item() for name in a)
    moved = max((a[name] - start[name]).abs().max().item() for name in a)
    print(f"two processes and one: {apart:.1e} apart after moving {moved:.1e}")
    assert moved > 1e-3 and apart < 0.01 * moved
    ours, theirs = read_steps(tmp_path / "two"), read_steps(tmp_path / "one")
    assert [s["step"] for s in ours] == [1, 2]
    # The same rollouts, wherever they were played.
    assert [s["reward"] for s in ours] == pytest.approx([s["reward"] for s in theirs], abs=1e-6)
    assert [s["loss"] for s in ours] == pytest.approx([s["loss"] for s in theirs], abs=1e-4)
    # A finished run is not run again, by whichever number of processes.
    assert train_in_processes("grpo", TWO, tmp_path / "two", arguments, steps=STEPS) == two


@pytest.mark.slow
def test_two_processes_make_the_supervised_start_of_one(toy_bank: Path, tmp_path: Path) -> None:
    few = {"sft": {"steps": 4, "save_every_steps": 2}}
    one = train_sft(toy_bank, tmp_path / "one", toy_training.PRESET.updated(**few), seed=2)
    arguments = {"bank_path": str(toy_bank), "seed": 2}
    preset = TWO.updated(**few)
    two = train_in_processes("sft", preset, tmp_path / "two", arguments, steps=4)
    a, b = (load_policy(folder).model.state_dict() for folder in (one, two))
    assert max((a[name] - b[name]).abs().max().item() for name in a) < 1e-3
    ours, theirs = read_steps(tmp_path / "two"), read_steps(tmp_path / "one")
    assert [s["loss"] for s in ours] == pytest.approx([s["loss"] for s in theirs], abs=1e-3)


def test_a_process_that_fails_is_told(tmp_path: Path) -> None:
    arguments = {"start_checkpoint": "nowhere", "specs": [], "modules": ["no_such_module"]}
    with pytest.raises(
        ConfigError, match=r"2 training processes.*ModuleNotFoundError.*no_such_module.*log\.txt"
    ):
        train_in_processes("grpo", TWO, tmp_path / "out", arguments, steps=1)


def test_large_presets_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.utils import FullyShardedDataParallelPlugin
    from trl.trainer.grpo_config import GRPOConfig

    for preset in PRESETS.values():
        text = accelerate_yaml(preset)
        value = yaml.safe_load(text)
        (tmp_path / "accelerate.yaml").write_text(text)
        read = load_config_from_file(str(tmp_path / "accelerate.yaml"))
        assert read.num_processes == preset.system.processes
        assert read.mixed_precision == ("bf16" if preset.model.dtype == "bfloat16" else "no")
        # Batches divide over the processes, or the arguments refuse.
        monkeypatch.setenv("WORLD_SIZE", str(preset.system.processes))
        arguments = grpo_arguments(preset, tmp_path, steps=1, seed=0)
        monkeypatch.delenv("WORLD_SIZE")
        rows = preset.grpo.groups_per_batch * preset.grpo.rollouts_per_group
        share = arguments["per_device_train_batch_size"] * arguments["gradient_accumulation_steps"]
        assert share * preset.system.processes == rows == 32
        # The trainer's own checks, but for the one that looks for a GPU.
        accepted = GRPOConfig(**{**arguments, "bf16": False, "use_cpu": True})
        assert accepted.loss_type == "grpo" and accepted.vllm_mode == "colocate"
        server = {"vllm_mode": "server", "vllm_server_host": "127.0.0.1"}
        changed = preset.updated(system={"use_vllm": True, "vllm": server})
        monkeypatch.setenv("WORLD_SIZE", str(preset.system.processes))
        arguments = grpo_arguments(changed, tmp_path, steps=1, seed=0)
        monkeypatch.delenv("WORLD_SIZE")
        accepted = GRPOConfig(**{**arguments, "bf16": False, "use_cpu": True})
        assert accepted.vllm_mode == "server" and accepted.use_vllm
        sharded = bool(preset.system.fsdp)
        assert (value["distributed_type"] == "FSDP") == sharded
        if sharded:
            plugin = FullyShardedDataParallelPlugin(**preset.system.fsdp_config)
            assert plugin.fsdp_version == 2 and "FULL" in str(plugin.state_dict_type)
            assert value["fsdp_config"]["fsdp_state_dict_type"] == "FULL_STATE_DICT"
    words = command(PRESETS["qwen3.5-9b-8gpu"], tmp_path)
    assert words[0] == sys.executable and "accelerate.commands.launch" in words
