"""The whole method on a small scale: real bank, real sandboxes, real updates."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bat_agent.agents import load_agent
from bat_agent.config import BankSettings, SuiteSettings
from bat_agent.demo import demo_config
from bat_agent.engine import BatEngine
from bat_agent.export import export_agent
from bat_agent.files import read_json
from bat_agent.pipeline import Pipeline, Results
from bat_agent.policy import load_policy
from bat_agent.presets import load_preset
from bat_agent.run_log import METRICS
from bat_agent.status import status, watch
from bat_agent.study import Study, parse_arms
from bat_env.bank import Bank, preflight
from bat_env.bank.fingerprints import of_suites
from bat_env.bank.leakage import scan_files
from bat_env.errors import ConfigError
from bat_env.tasks import load_suite

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


def check_no_canary(run: Path, config: Any) -> None:
    """The canaries of the held-out suites, and all else of them, stay out of what trains."""
    fingerprint = of_suites([config.controller.suite, config.final.suite])
    canaries = {c for c, what in fingerprint.strings.items() if what.startswith("canary of")}
    assert len(canaries) == 2 * 48
    downstream = [run / "state.json", run / "bank.json", run / "config.json"]
    for folder in ("sft", "rounds"):
        found = sorted(p for p in (run / folder).rglob("*") if p.is_file())
        downstream += [p for p in found if "checkpoint-" not in str(p)]
    assert {p.name for p in downstream} >= {"plan.json", "tokenizer.json", "model.safetensors"}
    held = [f for f in scan_files(downstream, fingerprint) if "held-out" in f.what]
    assert held == [], "held-out material has crossed into training"
    with Bank.open(run / "bank") as bank:
        assert preflight(bank, [config.controller.suite, config.final.suite]).clean
    planted = run / "sft" / "planted.json"
    planted.write_text(json.dumps({"note": min(canaries)}))
    assert any("canary" in f.what for f in scan_files([planted], fingerprint))
    planted.unlink()


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

    # A second call does nothing again, and gives the same.
    before = {p: p.stat().st_mtime_ns for p in (run / "final").rglob("*.json")}
    again = Pipeline(run, config, command="test", quiet=True).run()
    assert again.evaluations == results.evaluations
    assert before == {p: p.stat().st_mtime_ns for p in (run / "final").rglob("*.json")}

    check_no_canary(run, config)
    check_study(run, config, tmp_path / "study")
    check_log(run, results)
    check_export(run, tmp_path / "agent", results)

    # Distance of a checkpoint to itself, and of the untrained one.
    engine = BatEngine(run, config)
    assert engine.divergence(run / "sft/final", run / "sft/final") == pytest.approx(0, abs=1e-6)
    assert engine.divergence(run / "sft/final", run / "sft/base") > 0.01


def check_log(run: Path, results: Results) -> None:
    """Every update once, and the gate's decisions."""
    rows = [json.loads(line) for line in (run / METRICS).read_text().splitlines()]
    assert [row["phase"] for row in rows] == ["sft"] * 12 + ["round"] * 2 + ["gate"]
    assert [row["update"] for row in rows] == [*range(1, 15), 14]
    assert rows[-1]["promoted"] == bool(results.state.promoted)
    value = status(run)
    assert value["update"]["round"] == 1 and value["update"]["step"] == 2
    shown = Console(width=200, file=io.StringIO())
    watch(run, 60.0, shown)
    assert "last update: round 1, step 2" in shown.file.getvalue()


def check_export(run: Path, out: Path, results: Results) -> None:
    """The package holds the best weights, and plain transformers load it."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert export_agent(run, out, name="little") == out
    policy, plain = load_policy(out), AutoModelForCausalLM.from_pretrained(out)
    best = load_policy(run / results.state.best.path)
    assert policy.meta["weights_digest"] == best.meta["weights_digest"]
    ids = torch.tensor([policy.tokenizer.encode("import json\n")])
    assert torch.equal(plain(ids).logits, best.model(ids).logits)
    assert AutoTokenizer.from_pretrained(out).vocab_size == best.tokenizer.vocab_size
    facts = read_json(out / "agent.json", schema_version=1)
    assert facts["tasks"] == ["seg/kidney_tumor"] and facts["stop_token_ids"]
    assert (out / "skills/seg/kidney_tumor/S3.md").is_file()
    card = (out / "README.md").read_text()
    assert card.startswith("---\nlicense: ") and "| BaT | greedy |" in card and "# little" in card
    assert load_agent(out).checkpoint == out
    # Nothing of the held-out suites: no case, seed or digest of an instance.
    text = "".join(p.read_text() for p in (out / "README.md", out / "agent.json"))
    for entry in load_suite("seg-mini").entries:
        assert entry.digest not in text
    with pytest.raises(ConfigError, match="new or empty"):
        export_agent(run, out)


def check_study(run: Path, config: Any, folder: Path) -> None:
    """Two arms on the bank and the supervised start that are there already."""
    shutil.copytree(run, folder / "runs/seed-0/shared")
    out = folder / "learn.json"
    arms = parse_arms("sft,grpo-final")

    def study(**changes: Any) -> Study:
        settings = {"arms": arms, "seeds": 1, "command": "test", "quiet": True} | changes
        return Study(folder / "runs", out, settings.pop("config", config), **settings)

    document = study().run()
    rows = {row["arm"]: row for row in document["rows"]}
    assert set(rows) == {"sft", "grpo-final"}
    assert [rows[name]["rollouts"] for name in rows] == [0, 2 * 8 * 2]
    plan = read_json(folder / "runs/seed-0/grpo-final/rounds/0001/plan.json", schema_version=1)
    assert {draw["pool"] for draw in plan["draws"]} == {"e2e"}
    assert len(rows["sft"]["scores"]["greedy"]["instances"]["overall"]) == 2
    assert len({row["demonstrations"] for row in rows.values()}) == 1
    pairs = [(d["candidate"], d["baseline"], d["which"]) for d in document["differences"]]
    assert pairs == [("grpo-final", "sft", which) for which in ("sampled", "greedy")]
    assert "GRPO, one final reward" in out.with_suffix(".md").read_text()
    assert out.with_name("learn-overall.svg").is_file()
    # What is there is not played again; a study of other settings is refused.
    before = {p: p.stat().st_mtime_ns for p in (folder / "runs/rows").iterdir()}
    assert study().run() == document
    assert before == {p: p.stat().st_mtime_ns for p in (folder / "runs/rows").iterdir()}
    other = config.model_copy(update={"final": SuiteSettings(suite="seg-mini", repeats=1)})
    with pytest.raises(ConfigError, match="other settings"):
        study(config=other).run()


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
