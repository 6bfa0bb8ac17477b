"""A killed run continues to the same weights, and unfinished checkpoints are never used."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import toy_training
from pydantic import ValidationError
from safetensors.torch import load_file, save_file

from bat_agent.grpo import HEALTH, train_grpo
from bat_agent.policy.checkpoint import SEAL, is_whole, load_policy
from bat_agent.sft import train_sft
from bat_agent.training import LOG, average_weights, last_checkpoints, last_sealed, read_steps
from bat_env.errors import CheckpointError, ConfigError

pytestmark = pytest.mark.train
SCRIPT = Path(__file__).with_name("run_round.py")
STEPS = 10
WEIGHTS = "model.safetensors"


def start_round(start: Path, out: Path, iterations: int = 1) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), str(start), str(out), str(STEPS), str(iterations)],
        env=environment,
    )


def weights(checkpoint: Path) -> str:
    return str(json.loads((checkpoint / SEAL).read_text())["weights_digest"])


@pytest.fixture(scope="module")
def whole_run(toy_start: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "round"
    train_grpo(toy_start, toy_training.plan(STEPS), out, toy_training.PRESET, seed=11)
    return out


def test_grpo_killed_and_resumed_gives_identical_weights(
    toy_start: Path, whole_run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "killed"
    process = start_round(toy_start, out)
    deadline = time.monotonic() + 300
    while len(read_steps(out)) < 5 and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (out / "final").exists()
    assert last_sealed(out) is not None
    # What a kill in the middle of writing leaves behind.
    torn = out / "checkpoint-9"
    torn.mkdir()
    (torn / "model.safetensors").write_bytes(b"half")
    assert start_round(toy_start, out).wait(timeout=300) == 0
    assert weights(out / "final") == weights(whole_run / "final")
    assert not torn.exists()
    # The log has every step once, with the same losses.
    ours, theirs = read_steps(out), read_steps(whole_run)
    assert [s["step"] for s in ours] == list(range(1, STEPS + 1))
    assert [s["loss"] for s in ours] == [s["loss"] for s in theirs]


def test_several_updates_of_a_batch_survive_a_kill_between_them(
    toy_start: Path, tmp_path: Path
) -> None:
    """The checkpoint lies between two batches: nothing of a batch is needed again."""
    preset = toy_training.PRESET.updated(grpo=toy_training.several(3))
    whole = tmp_path / "whole"
    train_grpo(toy_start, toy_training.plan(STEPS), whole, preset, seed=11)
    steps = read_steps(whole)
    assert [s["step"] for s in steps] == list(range(1, 3 * STEPS + 1))
    assert [s["step"] for s in steps if "reward" in s] == list(range(1, 3 * STEPS + 1, 3))
    health = json.loads((whole / HEALTH).read_text())
    assert health["finite"] and health["steps"] == 3 * STEPS and len(health["reward"]) == STEPS
    out = tmp_path / "killed"
    process = start_round(toy_start, out, 3)
    deadline = time.monotonic() + 300
    while len(read_steps(out)) < 8 and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert start_round(toy_start, out, 3).wait(timeout=300) == 0
    assert weights(out / "final") == weights(whole / "final")
    assert [s["loss"] for s in read_steps(out)] == [s["loss"] for s in steps]
    # The round ends with the mean of its last two checkpoints.
    last = [load_file(folder / WEIGHTS) for folder in last_checkpoints(out, 2)]
    final = load_file(out / "final" / WEIGHTS)
    assert len(last) == 2 and last[0].keys() == final.keys()
    for name, tensor in final.items():
        assert torch.equal(tensor, ((last[0][name].double() + last[1][name].double()) / 2).float())
    assert any(not torch.equal(last[0][name], last[1][name]) for name in final)


def test_weights_that_a_checkpoint_lacks_are_not_averaged(tmp_path: Path) -> None:
    for name, files in (("final", "ab"), ("checkpoint-1", "ab"), ("checkpoint-2", "a")):
        (tmp_path / name).mkdir()
        for letter in files:
            save_file({"w": torch.ones(2)}, tmp_path / name / f"{letter}.safetensors")
    kept = [tmp_path / "checkpoint-1", tmp_path / "checkpoint-2"]
    with pytest.raises(CheckpointError, match=r"b\.safetensors in each of the last 2"):
        average_weights(tmp_path / "final", kept)
    with pytest.raises(ValidationError, match="average_checkpoints <= keep_checkpoints"):
        toy_training.PRESET.updated(grpo={"keep_checkpoints": 3, "average_checkpoints": 4})


def test_a_finished_round_is_not_run_again(toy_start: Path, whole_run: Path) -> None:
    before = (whole_run / LOG).stat().st_mtime_ns
    plan = toy_training.plan(STEPS)
    final = train_grpo(toy_start, plan, whole_run, toy_training.PRESET, seed=11)
    assert final == whole_run / "final"
    assert (whole_run / LOG).stat().st_mtime_ns == before
    with pytest.raises(CheckpointError, match="other settings"):
        train_grpo(toy_start, plan, whole_run, toy_training.PRESET, seed=12)


def test_health_and_lineage_are_recorded(toy_start: Path, whole_run: Path) -> None:
    health = json.loads((whole_run / HEALTH).read_text())
    assert health["finite"] and health["steps"] == STEPS and health["aborted_share"] == 0.0
    assert 0.0 <= health["kl_mean"] <= health["kl_max"]
    assert len(health["reward"]) == STEPS
    final = load_policy(whole_run / "final")
    assert final.meta["parent"] == load_policy(toy_start).digest
    assert final.meta["codec"] == "line"


def test_sft_resumes_to_identical_weights(toy_bank: Path, tmp_path: Path) -> None:
    preset = toy_training.PRESET.updated(sft={"steps": 12, "save_every_steps": 4})
    whole = train_sft(toy_bank, tmp_path / "whole", preset, seed=2)

    class StopError(Exception):
        pass

    def stop(step: int, steps: int, metrics: object) -> None:
        if step == 7:
            raise StopError

    with pytest.raises(StopError):
        train_sft(toy_bank, tmp_path / "cut", preset, seed=2, progress=stop)
    resumed = train_sft(toy_bank, tmp_path / "cut", preset, seed=2)
    assert weights(resumed) == weights(whole)


def test_damaged_checkpoints_are_refused_by_name(whole_run: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(whole_run / "final", copy)
    assert is_whole(copy)
    blob = copy / "model.safetensors"
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"copy is corrupt: model\.safetensors"):
        load_policy(copy)
    blob.unlink()
    with pytest.raises(CheckpointError, match=r"incomplete: model\.safetensors is missing"):
        load_policy(copy)
    (copy / SEAL).unlink()
    with pytest.raises(CheckpointError, match="never"):
        load_policy(copy)
    with pytest.raises(CheckpointError, match="there is none"):
        load_policy(tmp_path / "nowhere")


def test_plans_that_cannot_be_trained_are_refused(toy_start: Path, tmp_path: Path) -> None:
    from bat_agent.rollout import ResetSpec

    held = ResetSpec("AutoMed-Seg-v0", 1, {}, {"split": "heldout"})
    with pytest.raises(ConfigError, match="held-out"):
        train_grpo(toy_start, [[held] * 8], tmp_path / "a", toy_training.PRESET)
    with pytest.raises(ConfigError, match="batch 0 has 3"):
        train_grpo(toy_start, [[held] * 3], tmp_path / "b", toy_training.PRESET)
