"""The whole method on a small scale: real bank, real sandboxes, real updates."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bat_agent.agents import load_agent
from bat_agent.config import BankSettings, SuiteSettings
from bat_agent.demo import demo_config, learn_row
from bat_agent.engine import BatEngine
from bat_agent.files import read_json
from bat_agent.pipeline import Pipeline
from bat_agent.presets import load_preset
from bat_agent.status import status

pytestmark = pytest.mark.train


def small_config(rounds: int = 1) -> Any:
    preset = load_preset("tiny-cpu").updated(
        sft={"steps": 12, "validation_share": 0.3, "save_every_steps": 4},
        grpo={"steps_per_round": 2, "rollouts_per_group": 2, "save_every_steps": 1},
    )
    bank = BankSettings(per_cell=1, demos=16)
    config = demo_config(backend="local", rounds=rounds, steps=None, preset=preset, bank=bank)
    suites = {
        "controller": SuiteSettings(suite="seg-mini-controller", repeats=2),
        "final": SuiteSettings(suite="seg-mini", repeats=2),
    }
    return config.model_copy(update=suites)


def resume(run: Path, *arguments: str) -> subprocess.Popen[bytes]:
    root = Path(__file__).resolve().parents[2]
    return subprocess.Popen(
        [sys.executable, "-m", "bat_agent.cli", "resume", str(run), "--quiet", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(root)},
    )


def scores(run: Path) -> dict[str, Any]:
    results = read_json(run / "results.json", schema_version=1)
    cells = {}
    for row in results["agents"]:
        for which in ("sampled", "greedy"):
            if which in row:
                value = json.loads((run / row[which]).read_text())
                cells[row["key"], which] = [
                    value["checkpoint"],
                    [(c["index"], c["overall"], c["stages"], c["turns"]) for c in value["cells"]],
                ]
    plans = [p.read_text() for p in sorted((run / "rounds").glob("*/plan.json"))]
    usage = results["usage"]
    assert usage["wall_s"] > 1 and usage["cpu_s"] > 1 and usage["disk_mb"] > 0.1
    assert 200 < usage["peak_memory_mb"] < 4096 and usage["starts"] >= 1
    return {"cells": cells, "differences": results["differences"], "plans": plans}


def test_bank_to_report_and_back_again(tmp_path: Path) -> None:
    run, config = tmp_path / "run", small_config()
    results = Pipeline(run, config, command="test", quiet=True).run()
    assert results.report.is_file() and set(results.differences) == {"sampled", "greedy"}
    assert results.evaluations["oracle", "sampled"].overall > 0.7
    assert results.evaluations["base", "sampled"].overall < 0.1
    page = results.report.read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == 2 and "Round 1" in page
    record = read_json(run / "rounds/0001/record.json", schema_version=1)
    assert len(record["rewards"]) == 2 and record["start"]["path"] == "sft/final"
    assert status(run)["finished"] and status(run)["history"][0]["target"] == record["target"]
    assert load_agent(run).checkpoint == run / results.state.best.path
    assert learn_row(0, config, results)["overall"]["naive"].keys() == {"sampled"}

    # A second call does nothing again, and gives the same.
    before = {p: p.stat().st_mtime_ns for p in (run / "final").rglob("*.json")}
    again = Pipeline(run, config, command="test", quiet=True).run()
    assert again.evaluations == results.evaluations
    assert before == {p: p.stat().st_mtime_ns for p in (run / "final").rglob("*.json")}

    # Distance of a checkpoint to itself, and of the untrained one.
    engine = BatEngine(run, config)
    assert engine.divergence(run / "sft/final", run / "sft/final") == pytest.approx(0, abs=1e-6)
    assert engine.divergence(run / "sft/final", run / "sft/base") > 0.01


@pytest.mark.slow
def test_killed_at_random_points_it_gives_the_same_scores(tmp_path: Path) -> None:
    config = small_config(rounds=2)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for run in (whole, killed):
        config.claim(run)
    process = resume(whole)
    began = time.monotonic()
    assert process.wait(900) == 0, process.stderr
    took = time.monotonic() - began
    rng = random.Random(5)
    for _ in range(6):
        process = resume(killed)
        try:
            process.wait(rng.uniform(0.1, 0.4) * took)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
    process = resume(killed)
    assert process.wait(900) == 0, process.stderr
    assert scores(whole) == scores(killed)
