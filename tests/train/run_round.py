"""Runs one toy round in a process of its own: ``run_round.py START OUT STEPS ITERATIONS``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2]))

import toy_chain
import toy_training

from bat_agent.grpo import train_grpo

if __name__ == "__main__":
    toy_chain.register()
    start, out, steps, iterations = sys.argv[1:]
    preset = toy_training.PRESET.updated(grpo=toy_training.several(int(iterations)))
    train_grpo(start, toy_training.plan(int(steps)), out, preset, seed=11)
