"""Partial honest work is paid for: every stage of an expert's work lifts the score."""

from __future__ import annotations

import itertools

import pytest

from bat_env.env import AutoMedEnv
from bat_env.stages import WORK_STAGES
from bat_env.tasks import load_task, task_ids
from bat_env.tools import execute_call, submit_call

LITE = [task_id for task_id in task_ids() if load_task(task_id).spec.lite]


def ladder(task_id: str) -> list[float]:
    """Overall of the expert who stops after no stage, after S1, ..., after S5."""
    task = load_task(task_id)
    env = AutoMedEnv(track=task.spec.track, task=task_id, size="mini", sandbox="local")
    scores = []
    try:
        for last in (-1, *WORK_STAGES):
            env.reset(seed=3, options={"index": 3})
            for cell in task.script({"repair": "skip"}):
                if cell.stage <= last:
                    env.step(execute_call(cell.language, cell.code))
            scores.append(float(env.step(submit_call())[4]["score"]))
    finally:
        env.close()
    return scores


@pytest.mark.parametrize(
    "task_id", [pytest.param(t, marks=[] if t == LITE[-1] else pytest.mark.slow) for t in LITE]
)
def test_every_stage_of_honest_work_lifts_the_score(task_id: str) -> None:
    scores = ladder(task_id)
    assert scores[0] == 0.0
    assert all(after > before for before, after in itertools.pairwise(scores)), scores
    assert scores[-1] > 0.8, scores
