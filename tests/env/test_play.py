"""A person plays: the keys piped in, the same scores as an agent with the same cells."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bat_env.trajectory import read_trajectory


def play(keys: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bat_env.cli", "play", "--sandbox=local", *options]
    return subprocess.run(command, input=keys, capture_output=True, text=True)


def test_a_person_plays_the_experts_cells(make_env, oracle_actions, tmp_path: Path) -> None:
    env = make_env()
    env.reset(seed=4)
    for action in oracle_actions:
        *_, info = env.step(action)
    keys = "/help\n/brief\n"
    for action in oracle_actions[:-1]:
        arguments = action["arguments"]
        assert "\n.\n" not in arguments["code"]
        keys += f"/{arguments['language']}\n{arguments['code']}\n.\n"
    done = play(f"{keys}/submit\n", "--seed=4", f"--trajectories={tmp_path}")
    assert done.returncode == 0, done.stderr
    assert f"score {info['result']['score']:.3f}" in done.stdout
    [path] = tmp_path.glob("*.json")
    played = read_trajectory(path)
    assert played.result["score"] == info["result"]["score"]
    assert played.document["agent"]["name"] == "human"


def test_who_leaves_is_graded_and_a_cell_without_its_dot_still_runs() -> None:
    done = play("print(6 * 7)")
    assert done.returncode == 0 and "\n42\n" in done.stdout and "score 0.000" in done.stdout
    wrong = play("", "--task=kidny_tumor")
    assert wrong.returncode == 2 and wrong.stderr.startswith("error: Unknown task")
