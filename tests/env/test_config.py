"""Constructor arguments and reset options: checked first, with a did-you-mean."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import bat_env
from bat_env.config import check_backend
from bat_env.env import AutoMedEnv
from bat_env.errors import BankError, ConfigError, DataError, UnknownNameError
from bat_env.sandbox import resolve_backend


def test_import_is_light() -> None:
    code = (
        "import sys, bat_env; heavy = {'torch', 'monai', 'nibabel', 'pydantic', 'yaml', 'rich'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_ids_are_registered_for_tracks_with_a_task() -> None:
    assert gym.spec("AutoMed-Seg-v0").kwargs == {"track": "seg"}
    assert gym.spec("AutoMed-Bank-v0").kwargs["track"] is None
    registered = {i for i in bat_env.TRACK_IDS.values() if i in gym.registry}
    tracks = {
        p.parent.parent.name for p in Path(bat_env.__file__).parents[1].glob("envs/*/*/task.yaml")
    }
    assert registered == {bat_env.TRACK_IDS[t] for t in tracks}


def test_a_task_folder_elsewhere_registers_its_track(tmp_path: Path) -> None:
    (tmp_path / "det" / "mine").mkdir(parents=True)
    (tmp_path / "det" / "mine" / "task.yaml").write_text("")
    out = subprocess.run(
        [sys.executable, "-c", "import gymnasium, bat_env; gymnasium.spec('AutoMed-Det-v0')"],
        env={"BAT_TASKS_PATH": str(tmp_path), "PATH": "/usr/bin:/bin"},
        cwd=Path(bat_env.__file__).parents[1],
        capture_output=True,
        text=True,
    )
    assert out.returncode == 0, out.stderr


def test_an_unknown_id_gets_a_suggestion() -> None:
    with pytest.raises(gym.error.NameNotFound, match="AutoMed-Seg"):
        gym.make("AutoMed-Sge-v0")


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"task": "kidney_tumr"}, UnknownNameError, "Did you mean 'kidney_tumor'"),
    ({"track": "segg"}, UnknownNameError, "Did you mean 'seg'"),
    ({"track": "det", "task": "kidney_tumor"}, ConfigError, "track"),
    ({"tier": "light"}, UnknownNameError, "Did you mean 'lite'"),
    ({"split": "held-out"}, UnknownNameError, "Did you mean 'heldout'"),
    ({"size": "mni"}, UnknownNameError, "Did you mean 'mini'"),
    ({"stage": "S6"}, UnknownNameError, "Unknown stage 'S6'"),
    ({"sandbox": "dcoker"}, UnknownNameError, "Did you mean 'docker'"),
    ({"sandbox": 3}, ConfigError, "sandbox must be"),
    ({"render_mode": "human"}, UnknownNameError, "Known: ansi, rgb_array"),
    ({"on_sandbox_error": "ignore"}, UnknownNameError, "raise"),
    ({"limits": {"memory": 3}}, UnknownNameError, "memory_mb"),
    ({"limits": {"memory_mb": 3}}, ConfigError, "memory_mb"),
    ({"limits": 3}, ConfigError, "limits must be"),
    ({"distribution": "unifrom"}, ConfigError, "uniform"),
    ({"distribution": {"S9": 1}}, UnknownNameError, "stage"),
    ({"distribution": {"S1": -1}}, ConfigError, ">= 0"),
    ({"distribution": {"S1": 0}}, ConfigError, "above 0"),
    ({"pool_size": 0}, ConfigError, "pool_size"),
    ({"judge": "gpt"}, ConfigError, r"judge must be None, a Judge, or a mapping.*got 'gpt'"),
    ({"judge": {"model": "m"}}, ConfigError, "judge must name base_url"),
    ({"judge": {"base_url": "http://x/v1", "modle": "m"}}, UnknownNameError, "mean 'model'"),
    ({"judge": {"base_url": "x", "model": "m"}}, ConfigError, "judge: base_url: must be an addr"),
    ({"data": 3}, ConfigError, "data must be a folder made by `bat-env data stage`, or None"),
    ({"data": "/nonexistent"}, DataError, r"/nonexistent does not exist\. Stage the data"),
    ({"bank": 3}, ConfigError, "bank must be a folder path or an open Bank, got 3"),
    ({"bank": "/nonexistent"}, ConfigError, "'/nonexistent'.*bat-env bank build"),
    ({"trajectory_dir": 4}, ConfigError, "trajectory_dir must be a folder path or None, got 4"),
    ({"trajectory_dir": "/proc/x"}, ConfigError, "can be written, got '/proc/x': No such file"),
    ({"trajectory_dir": "a\0b"}, ConfigError, "trajectory_dir"),
]


@pytest.mark.parametrize(("kwargs", "error", "message"), BAD)
def test_bad_arguments_are_refused(
    kwargs: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        AutoMedEnv(**kwargs)


def test_trajectory_dir_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    with pytest.raises(ConfigError, match="is a file"):
        AutoMedEnv(trajectory_dir=tmp_path / "x")


def test_a_trajectory_dir_is_there_and_empty_from_the_start(tmp_path: Path) -> None:
    AutoMedEnv(trajectory_dir=tmp_path / "new" / "one").close()
    assert list((tmp_path / "new").rglob("*")) == [tmp_path / "new" / "one"]


@pytest.mark.parametrize("name", ["Local", "LOCAL", "local"])
def test_backend_names_are_read_in_any_case(name: str) -> None:
    assert check_backend(name) == resolve_backend(name) == "local"


BAD_OPTIONS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"stgae": "S1"}, UnknownNameError, "Did you mean 'stage'"),
    ({"stage": "S0"}, UnknownNameError, "Unknown stage"),
    ({"outcome": "recover"}, UnknownNameError, "Did you mean 'recovery'"),
    ({"size": "big"}, UnknownNameError, "Unknown size"),
    ({"index": -1}, ConfigError, "index must be"),
    ({"index": 1.5}, ConfigError, "index must be"),
    ({"index": True}, ConfigError, "index must be"),
    ({"index": 1, "stage": "S3"}, ConfigError, "cannot be combined"),
    ({"task": 3}, ConfigError, "task must be a string"),
    ({"task": "kidney"}, UnknownNameError, "kidney_tumor"),
    ({"stage": "S3"}, BankError, "bat-env bank build"),
    ({"state_id": "0" * 32}, BankError, "bat-env bank build"),
]


@pytest.mark.parametrize(("options", "error", "message"), BAD_OPTIONS)
def test_bad_options_are_refused(
    options: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    env = AutoMedEnv(bank=tmp_path)
    with pytest.raises(error, match=message):
        env.reset(options=options)
    env.close()
    env.close()


def test_the_bank_holds_training_states_only(tmp_path: Path) -> None:
    env = AutoMedEnv(split="heldout", bank=tmp_path)
    with pytest.raises(ConfigError, match="training states only"):
        env.reset(options={"stage": "S1"})
    with pytest.raises(BankError, match="bank build"):
        AutoMedEnv(track=None, distribution="uniform", bank=tmp_path).reset(seed=0)


def test_stepping_needs_an_episode() -> None:
    env = AutoMedEnv()
    with pytest.raises(gym.error.ResetNeeded):
        env.step({"name": "submit_results", "arguments": {}})
    env.close()
