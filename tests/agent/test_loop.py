from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest

import bat_agent.files
from bat_agent.curriculum import RoundPlan, StateRow, TrainingHealth
from bat_agent.curriculum.router import Rule
from bat_agent.demo import demo_config
from bat_agent.evaluation import CellScore, Evaluation
from bat_agent.files import write_json
from bat_agent.loop import Loop, Trained
from bat_agent.loop_state import LoopState
from bat_env.errors import CheckpointError, ConfigError, LeakageError
from bat_env.stages import OUTCOMES

STAGES = ("S1", "S2", "S3", "S4", "S5")


class ArithmeticEngine:
    """A policy is five skills in a file; a batch raises the skills of the stages it holds."""

    def __init__(self, gain: Callable[[int], float] = lambda _: 0.02) -> None:
        self.gain = gain
        self.calls: list[str] = []

    def preflight(self) -> Mapping[str, Any]:
        return {"findings": 0}

    def digest(self, checkpoint: Path) -> str:
        try:
            return hashlib.sha256((checkpoint / "skills.json").read_bytes()).hexdigest()
        except OSError as error:
            raise CheckpointError(str(error)) from None

    def evaluate(self, checkpoint: Path, label: str) -> Evaluation:
        self.calls.append(f"evaluate {label}")
        skills = json.loads((checkpoint / "skills.json").read_text())["skills"]
        cells = []
        for i in range(8):
            rng = random.Random(i)
            stages = {s: min(1.0, max(0.0, skills[s] + rng.gauss(0, 0.05))) for s in STAGES}
            mean = sum(stages.values()) / 5
            cells.append(CellScore("seg/t", "seg", i, i, i, "submitted", mean, mean, mean, stages))
        return Evaluation("p", "controller", "d" * 64, tuple(cells))

    def states(self) -> list[StateRow]:
        return [
            StateRow(f"{f}-{o}-{i}", "0" * 64, "seg", f, o)
            for f in (*STAGES, "E2E")
            for o in OUTCOMES
            for i in range(4)
        ]

    def reward_version(self) -> str:
        return "r" * 64

    def train(self, start: Path, plan: RoundPlan, out: Path) -> Trained:
        self.calls.append(f"train {plan.round_id}")
        skills = json.loads((start / "skills.json").read_text())["skills"]
        rewards = []
        for batch in plan.batches():
            for draw in batch:
                for stage in STAGES if draw.state.focus == "E2E" else (draw.state.focus,):
                    skills[stage] += self.gain(plan.round_id)
            rewards.append(sum(skills.values()) / 5)
        write_json(out / "candidate" / "skills.json", {"skills": skills})
        return Trained(out / "candidate", tuple(rewards), TrainingHealth(True, 8, 0))

    def divergence(self, candidate: Path, best: Path) -> float:
        self.calls.append("divergence")
        return 0.01


def make_loop(run: Path, engine: ArithmeticEngine, rounds: int = 3, digest: str = "c") -> Loop:
    start = run / "sft"
    if not start.exists():
        skills = {"S1": 0.5, "S2": 0.4, "S3": 0.2, "S4": 0.4, "S5": 0.3}
        write_json(start / "skills.json", {"skills": skills})
    return Loop(
        run,
        engine,
        config_digest=digest,
        seed=7,
        rounds=rounds,
        steps_per_round=2,
        start=start,
    )


def contents(run: Path) -> dict[str, bytes]:
    return {str(p.relative_to(run)): p.read_bytes() for p in sorted(run.rglob("*")) if p.is_file()}


def test_rounds_promote_and_aim_at_the_lowest_stage(tmp_path: Path) -> None:
    engine = ArithmeticEngine()
    state = make_loop(tmp_path, engine).run()
    assert state.done and state.promoted == (1, 2, 3) and state.current == state.best
    plans = [json.loads((tmp_path / f"rounds/000{n}/plan.json").read_text()) for n in (1, 2, 3)]
    assert plans[0]["target"] == "S3"
    # One evaluation a policy: a promoted candidate is the next start and is not played twice.
    assert engine.calls.count("evaluate start") == 1
    assert engine.calls.count("evaluate candidate") == 3
    before = list(engine.calls)
    assert make_loop(tmp_path, engine).run() == state and engine.calls == before


def test_killed_at_every_write_it_ends_with_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = tmp_path / "whole"
    make_loop(reference, ArithmeticEngine(), rounds=2).run()
    expected = contents(reference)
    real = bat_agent.files.write_bytes
    kills = 0
    for when in ("before", "after"):
        for at in range(1, 200):
            run = tmp_path / f"{when}-{at}"
            count = 0

            def dying(path: Path, data: bytes, at: int = at, when: str = when) -> None:
                nonlocal count
                count += 1
                if count == at and when == "before":
                    raise KeyboardInterrupt
                real(path, data)
                if count == at:
                    raise KeyboardInterrupt

            loop = make_loop(run, ArithmeticEngine(), rounds=2)
            monkeypatch.setattr(bat_agent.files, "write_bytes", dying)
            try:
                loop.run()
                finished = True
            except KeyboardInterrupt:
                finished, kills = False, kills + 1
            monkeypatch.setattr(bat_agent.files, "write_bytes", real)
            make_loop(run, ArithmeticEngine(), rounds=2).run()
            assert contents(run) == expected, (when, at)
            if finished:
                break
    assert kills > 30


def test_a_held_round_keeps_the_start_and_three_drops_fall_back(tmp_path: Path) -> None:
    engine = ArithmeticEngine(lambda n: 0.02 if n == 1 else -0.02)
    state = make_loop(tmp_path, engine, rounds=4).run()
    assert state.promoted == (1,) and state.current == state.best
    records = [
        json.loads((tmp_path / f"rounds/000{n}/record.json").read_text()) for n in range(1, 5)
    ]
    assert [r["promoted"] for r in records] == [True, False, False, False]
    assert records[1]["start"] == records[2]["start"] == records[0]["candidate"]
    assert "3 rounds" in records[3]["fallback"] and state.changes == ()
    # After a held gate the next target is the stage that had become worse by most.
    assert records[2]["target"] == records[1]["target"]


def test_slightly_worse_is_promoted_but_best_stays_and_kl_is_asked(tmp_path: Path) -> None:
    engine = ArithmeticEngine(lambda n: 0.02 if n == 1 else -0.0005)
    state = make_loop(tmp_path, engine, rounds=2).run()
    assert state.promoted == (1, 2)
    assert state.best.path.startswith("rounds/0001") and state.current.path.startswith(
        "rounds/0002"
    )
    assert engine.calls[-1] == "divergence"


def test_too_far_from_the_best_falls_back_at_once(tmp_path: Path) -> None:
    class Far(ArithmeticEngine):
        def divergence(self, candidate: Path, best: Path) -> float:
            return 0.2

    engine = Far(lambda n: 0.02 if n == 1 else -0.0005)
    state = make_loop(tmp_path, engine, rounds=2).run()
    record = json.loads((tmp_path / "rounds/0002/record.json").read_text())
    assert record["promoted"] and record["kl_to_best"] == 0.2 and "KL" in record["fallback"]
    assert state.current == state.best and state.best.path.startswith("rounds/0001")


def test_the_mix_of_pools_is_a_setting(tmp_path: Path) -> None:
    loop = make_loop(tmp_path, ArithmeticEngine(), rounds=1)
    loop.pools = {"e2e": 8}
    loop.run()
    plan = json.loads((tmp_path / "rounds/0001/plan.json").read_text())
    assert {draw["state"]["focus"] for draw in plan["draws"]} == {"E2E"}
    assert len(plan["draws"]) == 16


def test_the_rule_of_the_target_is_a_setting(tmp_path: Path) -> None:
    targets = {}
    skills = {"S1": 0.8, "S2": 0.7, "S3": 0.25, "S4": 0.22, "S5": 0.1}
    for rule in get_args(Rule):
        write_json(tmp_path / rule / "sft" / "skills.json", {"skills": skills})
        loop = make_loop(tmp_path / rule, ArithmeticEngine(), rounds=1)
        loop.router = rule
        loop.run()
        targets[rule] = json.loads((tmp_path / rule / "rounds/0001/plan.json").read_text())[
            "target"
        ]
    assert targets == {"lowest": "S5", "bottleneck": "S3"}
    config = demo_config(rounds=1, backend="local")
    other = config.model_copy(update={"router": "bottleneck"})
    assert other.digest != config.digest == config.model_copy(update={"rounds": 2}).digest


def test_more_rounds_continue_a_finished_run(tmp_path: Path) -> None:
    make_loop(tmp_path / "a", ArithmeticEngine(), rounds=1).run()
    make_loop(tmp_path / "a", ArithmeticEngine(), rounds=3).run()
    make_loop(tmp_path / "b", ArithmeticEngine(), rounds=3).run()
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_foreign_damaged_and_leaking_runs_are_refused(tmp_path: Path) -> None:
    make_loop(tmp_path, ArithmeticEngine(), rounds=1).run()
    with pytest.raises(ConfigError, match="other settings"):
        make_loop(tmp_path, ArithmeticEngine(), digest="other").run()
    write_json(tmp_path / "rounds/0001/train/candidate/skills.json", {"skills": {}})
    with pytest.raises(CheckpointError, match="changed"):
        make_loop(tmp_path, ArithmeticEngine(), rounds=2).run()
    state = LoopState.load(tmp_path / "state.json")
    assert state.round == 2

    class Leaking(ArithmeticEngine):
        def preflight(self) -> Mapping[str, Any]:
            raise LeakageError("held-out id in training material")

    leaking = Leaking()
    with pytest.raises(LeakageError):
        make_loop(tmp_path / "new", leaking).run()
    assert leaking.calls == []


def test_a_null_cell_stops_the_round_and_is_not_kept(tmp_path: Path) -> None:
    class Broken(ArithmeticEngine):
        def evaluate(self, checkpoint: Path, label: str) -> Evaluation:
            cell = CellScore("seg/t", "seg", 0, 0, 0, "invalid", None, None, None)
            return Evaluation("p", "controller", "d" * 64, (cell,))

    with pytest.raises(ConfigError, match="without"):
        make_loop(tmp_path, Broken()).run()
    assert not (tmp_path / "controller").exists()
    assert make_loop(tmp_path, ArithmeticEngine()).run().done
