"""End-to-end episodes on staged data: a script works in a real sandbox, the host grades it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import bat_env  # noqa: F401  (registers the environments)
from bat_env.data import Staged, open_staged
from bat_env.env import AutoMedEnv
from bat_env.tools import execute_call, submit_call

KINDS = {
    "kits19": "seg",
    "ldct": "enh",
    "synthrad2025": "synth",
    "grazpedwri": "det",
    "ham10000": "cls",
    "vqa_rad": "vqa",
    "chexpert_plus": "report",
}


def play(env: Any, cells: Any) -> dict[str, Any]:
    """Play cells and hand in; returns the last info."""
    info: dict[str, Any] = {}
    for action in [*(execute_call(c.language, c.code) for c in cells), submit_call()]:
        observation, _, terminated, truncated, info = env.step(action)
        assert "Traceback" not in observation["text"], observation["text"]
        if terminated or truncated:
            break
    return info


@pytest.mark.parametrize("name", KINDS)
def test_the_walk_through_is_scored_in_every_stage(
    name: str, staged: Callable[[str], Staged]
) -> None:
    """All of it is found true but for what a prediction without skill cannot be paid for."""
    folder = staged(name).folder
    task = open_staged(folder)
    env = AutoMedEnv(track=KINDS[name], task=name, data=folder, size="mini", sandbox="local")
    try:
        observation, info = env.reset(seed=3)
        assert info["task"] == task.id and observation["text"].startswith("# ")
        info = play(env, task.script())
        result = info["result"]
        errors = info["components"]["errors"]
        assert result["stages"]["S1"] == 1.0 and result["stages"]["S2"] >= 0.8, errors
        for item, why in errors.items():
            follows = item == "S3.pilot_first" and "Order alone" in why
            assert follows or item == "S5.task_margin" or "worth no more than" in why, errors
        if result["task"] > task.spec.floor + 0.05:
            assert not errors and min(result["stages"].values()) == 1.0
        assert 0.0 <= result["task"] <= 1.0
        assert result["false_claims"] == 0 and result["errors"]["failed_cells"] == 0
    finally:
        env.close()


def test_gym_make_plays_a_staged_folder_and_true_outputs_score_one(
    staged: Callable[[str], Staged],
) -> None:
    """The truth, smuggled in by the test itself, reaches the top: scale and grid are right."""
    folder = staged("kits19").folder
    env = gym.make(
        "AutoMed-Seg-v0", task="kits19", data=str(folder), size="mini", sandbox="local"
    ).unwrapped
    assert isinstance(env, AutoMedEnv)
    try:
        env.reset(options={"index": 5})
        for case in env.instance.cases:
            data = env.instance.private[f"{case}/dseg.nii.gz"]
            code = f"import os\nos.makedirs('outputs/{case}')\n"
            code += f"open('outputs/{case}/dseg.nii.gz', 'wb').write({data!r})"
            env.step(execute_call("python", code))
        *_, info = env.step(submit_call())
        assert info["result"]["task"] == 1.0
    finally:
        env.close()


def test_nothing_private_reaches_the_sandbox(staged: Callable[[str], Staged]) -> None:
    done = staged("ham10000")
    env = AutoMedEnv(track="cls", data=done.folder, size="mini", sandbox="local")
    try:
        env.reset(seed=1)
        code = "import os\nfor root in ('/data', '/models', '/skills', '/workspace'):\n"
        code += " for d, _, fs in os.walk(root):\n"
        code += "  for f in fs: print(os.path.join(d, f), open(os.path.join(d, f), 'rb').read())"
        env.step(execute_call("python", code + "\n"))
        seen = env.episode.cells[-1].result.stdout
        assert "/data/CASE-" in seen and "truth.json" not in seen and "probe.json" not in seen
        assert not [row.case for row in done.manifest.cases if row.case in seen]
    finally:
        env.close()


def test_equal_seeds_draw_equal_instances_and_splits_are_apart(
    staged: Callable[[str], Staged],
) -> None:
    folder = staged("ham10000").folder
    one, two = open_staged(folder), open_staged(folder)
    a, b = one.instance("train", 3, "mini"), two.instance("train", 3, "mini")
    assert a.digest == b.digest and a.cases == b.cases
    assert one.instance("train", 4, "mini").digest != a.digest
    pixels = {
        split: {
            data
            for index in range(4)
            for path, data in one.instance(split, index, "mini").public.items()
            if path.endswith(".png")
        }
        for split in ("train", "dev", "heldout")
    }
    assert not pixels["train"] & pixels["dev"] and not pixels["train"] & pixels["heldout"]
    assert not pixels["dev"] & pixels["heldout"]


def test_full_size_is_larger_than_mini(staged: Callable[[str], Staged], tmp_path: Path) -> None:
    task = open_staged(staged("grazpedwri").folder)
    full, mini = task.instance("train", 0, "full"), task.instance("train", 0, "mini")
    assert len(full.cases) > len(mini.cases) >= 2
