"""The outer loop on the toy chain, with real updates: ``toy_loop.py START OUT KILLS SEED``.

Runs it whole, then once more with ``KILLS`` SIGKILLs at random points of its CPU time, so that the
load of the machine does not choose them. Everything is imported before the runs are forked.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2]))

import peft  # noqa: F401  (what trainers import late)
import toy_chain
import toy_training
import trl.trainer.grpo_config
import trl.trainer.grpo_trainer  # noqa: F401

from bat_agent.curriculum import RoundPlan, StateRow, TrainingHealth
from bat_agent.evaluation import CellScore, Evaluation
from bat_agent.files import derived_seed
from bat_agent.grpo import health_of, train_grpo
from bat_agent.loop import Loop, Trained
from bat_agent.policy import load_policy
from bat_agent.policy.checkpoint import read_seal
from bat_agent.rollout import ResetSpec, run_policy
from bat_env.stages import OUTCOMES

PRESET = toy_training.PRESET.updated(grpo={"save_every_steps": 1, "rollouts_per_group": 2})
STAGES = ("S1", "S2", "S3", "S4", "S5")
ROUNDS, STEPS = 2, 3


class ToyEngine:
    """States are seeds of the toy chain; a stage's score is that of some of its episodes."""

    def preflight(self) -> Mapping[str, Any]:
        return {"findings": 0}

    def digest(self, checkpoint: Path) -> str:
        return str(read_seal(checkpoint)["weights_digest"])

    def evaluate(self, checkpoint: Path, label: str) -> Evaluation:
        specs = [ResetSpec(toy_chain.ENV_ID, 7000 + i) for i in range(10)]
        rows = run_policy(load_policy(checkpoint), specs, temperature=0.7, seed=3, env_threads=2)
        scores = [row.episode.reward or 0.0 for row in rows]
        mean = sum(scores) / len(scores)
        stages = {stage: sum(scores[i::5]) / 2 for i, stage in enumerate(STAGES)}
        cells = [
            CellScore("seg/toy", "seg", i, i, i, "submitted", mean, mean, mean, stages)
            for i in range(4)
        ]
        return Evaluation("toy", "toy", "d" * 64, tuple(cells))

    def states(self) -> list[StateRow]:
        return [
            StateRow(f"{focus}-{outcome}-{i}", "0" * 64, "seg", focus, outcome)
            for focus in (*STAGES, "E2E")
            for outcome in OUTCOMES
            for i in range(2)
        ]

    def reward_version(self) -> str:
        return "r" * 64

    def train(self, start: Path, plan: RoundPlan, out: Path) -> Trained:
        specs = [
            [
                ResetSpec(toy_chain.ENV_ID, derived_seed(plan.round_id, d.step, d.slot))
                for d in batch
            ]
            for batch in plan.batches()
        ]
        checkpoint = train_grpo(start, specs, out, PRESET, seed=plan.round_id)
        health = health_of(out, plan.steps)
        return Trained(
            checkpoint, tuple(health["reward"]), TrainingHealth(bool(health["finite"]), 48, 0)
        )

    def divergence(self, candidate: Path, best: Path) -> float:
        return 0.01


def play(run: Path) -> None:
    toy_chain.register()
    Loop(
        run,
        ToyEngine(),
        config_digest="toy",
        seed=7,
        rounds=ROUNDS,
        steps_per_round=STEPS,
        start=run / "sft",
    ).run()


def fork(run: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        play(run)
        code = 0
    finally:
        os._exit(code)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main(start: Path, out: Path, kills: int, seed: int) -> None:
    import shutil

    for name in ("whole", "killed"):
        shutil.copytree(start, out / name / "sft")
    _, status, usage = os.wait4(fork(out / "whole"), 0)
    assert status == 0
    took = usage.ru_utime + usage.ru_stime
    rng, done = random.Random(seed), 0
    while done < kills:
        pid, until = fork(out / "killed"), rng.uniform(0.0, 1.6 * took / kills)
        while os.waitpid(pid, os.WNOHANG)[0] == 0:
            if cpu_s(pid) >= until:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                done += 1
                break
            time.sleep(0.002)
        else:
            break  # It came to its end.
    _, status = os.waitpid(fork(out / "killed"), 0)
    assert status == 0
    print(json.dumps({"cpu_s": round(took, 2), "kills": done}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
