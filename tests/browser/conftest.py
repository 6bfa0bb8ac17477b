"""A finished run with recorded values: what a report is made from, without training anything."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from bat_agent.curriculum import (
    StateRow,
    TrainingHealth,
    detect_shift,
    gate,
    plan_round,
    round_report,
)
from bat_agent.evaluation import CellScore, Evaluation, classify
from bat_agent.files import write_json
from bat_env.stages import OUTCOMES
from bat_env.tools import execute_call, submit_call
from bat_env.trajectory import Recorder

STAGES = ("S1", "S2", "S3", "S4", "S5")
WEIGHTS = (0.25, 0.15, 0.35, 0.15, 0.10)
HOSTILE = (
    "</pre><script>window.stolen = 1; document.title = 'pwned'</script>"
    '<img src=x onerror="window.stolen = 2"> {{ 7 * 7 }} \x1b[31mred\x1b[0m '
    "\u202egnp.exe ]]> --> </style> https://example.com/beacon.png"
)


def fake_evaluation(agent: str, level: float, seed: int, **settings: Any) -> Evaluation:
    rng = random.Random(seed)
    cells = []
    for i in range(24):
        stages = {s: min(1.0, max(0.0, rng.gauss(level, 0.2))) for s in STAGES}
        task = min(1.0, max(0.0, rng.gauss(level, 0.25)))
        agentic = sum(w * v for w, v in zip(WEIGHTS, stages.values(), strict=True))
        result = {"score": 0.5 * task + 0.5 * agentic, "task": task, "stages": stages}
        cells.append(
            CellScore(
                task="seg/kidney_tumor",
                track="seg",
                index=i,
                repeat=i,
                seed=1000 + i,
                status="submitted",
                overall=result["score"],
                agentic=agentic,
                task_score=task,
                stages=stages,
                failure=classify("submitted", result),
                turns=8,
            )
        )
    return Evaluation(
        agent, "lite-mini", "d" * 64, tuple(cells), settings={"seed": 0, **settings}, seconds=12.5
    )


def record_episode(folder: Path, agent: str, gains: list[float]) -> Path:
    recorder = Recorder(folder, agent)
    recorder.start({"text": f"Segment the kidneys and tumours.\n{HOSTILE}"}, {"task": "seg/x"})
    score, items = 0.0, {f"S{i + 1}.item": ["pending", 0.0] for i in range(5)}
    for i, gain in enumerate(gains):
        score += gain
        items[f"S{min(i, 4) + 1}.item"] = ["pass" if gain > 0 else "fail", float(gain > 0)]
        code = f"import json, pathlib\n# step {i} {HOSTILE}\nprint({i})"
        last = i == len(gains) - 1
        recorder.step(
            submit_call() if last else execute_call("python", code),
            {"text": f"exit code 0\nstdout:\n{HOSTILE}\ncreated: plan/plan.md"},
            gain,
            {"score": score, "items": dict(items), "valid": True, "error": None},
            0.1,
        )
    stages = dict.fromkeys(STAGES, score)
    path = recorder.finish(
        "submitted", result={"score": score, "agentic": score, "task": score, "stages": stages}
    )
    assert path is not None
    return path


@pytest.fixture()
def finished_run(tmp_path: Path) -> Path:
    run = tmp_path / "run"
    finals = {"base": 0.02, "sft": 0.35, "bat": 0.62, "naive": 0.4, "oracle": 0.93}
    labels = {"base": "base (untrained)", "sft": "SFT", "bat": "BaT"}
    agents, evaluations = [], {}
    for n, (key, level) in enumerate(finals.items()):
        row: dict[str, Any] = {"key": key, "label": labels.get(key, key)}
        for which, seed, plus in (("sampled", n, 0.0), ("greedy", 50 + n, 0.06)):
            if which == "greedy" and key in ("base", "naive", "oracle"):
                continue
            name = f"evaluations/{key}-{which}.json"
            evaluations[key, which] = fake_evaluation(key, level + plus, seed)
            evaluations[key, which].save(run / name)
            row[which] = name
        agents.append(row)
    for n, target in ((1, "S3"), (2, "S1")):
        before = fake_evaluation("a", 0.3 + 0.12 * n, n)
        after = fake_evaluation("a", 0.42 + 0.12 * n, n)
        rows = [
            StateRow(f"{f}{o}{i}", "0" * 64, "seg", f, o)
            for f in (*STAGES, "E2E")
            for o in OUTCOMES
            for i in range(4)
        ]
        plan = plan_round(rows, round_id=n, seed=0, target=target, steps=3)
        decision = gate(before.scores(), after.scores(), TrainingHealth(True, 96, 1))
        shift = detect_shift(plan, after.scores(), before.scores())
        value, _ = round_report(plan, before.scores(), after.scores(), shift, decision)
        folder = run / "rounds" / f"{n:04d}"
        write_json(folder / "report.json", value)
        rng = random.Random(n)
        mean = before.interval(lambda c: c.overall)
        later = after.interval(lambda c: c.overall)
        assert mean is not None and later is not None
        write_json(
            folder / "record.json",
            {
                "schema_version": 1,
                "round": n,
                "target": target,
                "promoted": n == 1,
                "fallback": None,
                "rewards": [0.2 + 0.15 * n + 0.005 * i + rng.gauss(0, 0.04) for i in range(20)],
                "before": mean.to_json(),
                "after": later.to_json(),
            },
        )
    trajectories = []
    for key, gains in (("sft", [0.05, 0.0, 0.1, -0.02, 0.2]), ("bat", [0.1, 0.15, 0.2, 0.1, 0.2])):
        file = record_episode(run / "episodes", key, gains)
        picture = run / "pictures" / f"{key}.png"
        picture.parent.mkdir(exist_ok=True)
        Image.linear_gradient("L").resize((420, 140)).convert("RGB").save(picture)
        trajectories.append(
            {
                "key": key,
                "label": f"{key} {HOSTILE}",
                "file": str(file.relative_to(run)),
                "images": {f"Overlay <b>{key}</b>": f"pictures/{key}.png"},
            }
        )
    write_json(run / "config.json", {"schema_version": 1})
    difference = {
        which: evaluations["bat", which].difference(evaluations["sft", which]).to_json()
        for which in ("sampled", "greedy")
    }
    write_json(
        run / "results.json",
        {
            "schema_version": 1,
            "title": "Kidney tumour segmentation: did the agent get better?",
            "agents": agents,
            "differences": difference,
            "trajectories": trajectories,
            "choice": "The instance whose gain is nearest to the median gain.",
            "usage": {
                "wall_s": 930.0,
                "cpu_s": 1290.0,
                "peak_memory_mb": 2048.0,
                "disk_mb": 180.2,
                "starts": 1,
                "containers": False,
            },
            "provenance": {"seed": 0, "command": "bat-agent demo --out runs/demo", "x": HOSTILE},
        },
    )
    return run
