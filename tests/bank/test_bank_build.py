from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bat_env.bank import Bank
from bat_env.bank.build import build
from bat_env.bank.demos import plan_demonstrations, relevant
from bat_env.bank.faults import pasts
from bat_env.bank.jobs import candidates, instance_indices
from bat_env.bank.state import workspace_digest
from bat_env.env import AutoMedEnv
from bat_env.errors import ConfigError
from bat_env.stages import OUTCOMES, Stage
from bat_env.tasks import load_task

TASK = "seg/kidney_tumor"
# As in conftest.py: a second build of the shared bank has nothing to do.
ARGS: dict[str, Any] = {"tasks": [TASK], "per_cell": 1, "demos": 8, "instances": 3, "workers": 2}


# ------------------------------------------------------------------------------------ the lists


def test_every_cell_has_pasts_that_fit_it() -> None:
    task = load_task(TASK)
    for focus in Stage:
        for outcome in OUTCOMES:
            found = pasts(task, focus, outcome, "lite")
            assert found, (focus, outcome)
            for past in found:
                assert (past.fault is None) == (outcome == "success")
                assert outcome != "recovery" or (past.fault and past.fault.check)
                cells = past.cells(task, "lite")
                if focus not in (Stage.S1, Stage.S2, Stage.E2E):
                    assert all(cell.stage < focus for cell in cells)
                assert (not cells) == (outcome == "success" and focus in (Stage.S1, Stage.E2E))


def test_candidates_are_deterministic_distinct_and_in_their_stretch() -> None:
    task = load_task(TASK)
    indices = instance_indices(3, 5)
    assert len(set(indices)) == 5 and all(2**30 <= i < 2**31 for i in indices)
    for focus in Stage:
        jobs = candidates(task, "mini", "lite", focus, "recovery", indices, 4, 3)
        assert jobs == candidates(task, "mini", "lite", focus, "recovery", indices, 4, 3)
        assert len({job.job_id(task.digest) for job in jobs}) == len(jobs) >= 4
        assert {job.index for job in jobs} <= set(indices)
    alone = candidates(task, "mini", "lite", Stage.S1, "success", indices, 9, 3)
    assert len({job.index for job in alone}) == len(alone) >= 9


def test_demonstration_plans_mix_options_per_decision() -> None:
    task = load_task(TASK)
    arguments: dict[str, Any] = {
        "tier": "lite",
        "size": "mini",
        "indices": [1, 2, 3],
        "count": 300,
        "p_good": 0.5,
        "e2e_share": 0.25,
    }
    plans = plan_demonstrations(task, [], seed=1, **arguments)
    assert plans == plan_demonstrations(task, [], seed=1, **arguments)
    assert plans != plan_demonstrations(task, [], seed=2, **arguments)
    assert len(plans) == 300
    ids = relevant(task, Stage.E2E, "lite", None)
    assert set(plans[0].choices) == set(ids) and "repair" not in ids
    for decision in task.decisions:
        if decision.id in ids:
            share = np.mean([plan.choices[decision.id] == decision.good for plan in plans])
            assert 0.35 < share < 0.65, decision.id
            assert {plan.choices[decision.id] for plan in plans} == set(decision.options)
    assert not any(
        all(p.choices[d.id] == d.good for d in task.decisions if d.id in ids) for p in plans[:50]
    )


def test_bad_arguments_are_refused_before_any_work(tmp_path: Path) -> None:
    for changes in ({"workers": 0}, {"per_cell": -1}, {"p_good": 1.5}):
        with pytest.raises(ConfigError):
            build(tmp_path / "bank", **{**ARGS, **changes})
    assert not (tmp_path / "bank").exists()


# ------------------------------------------------------------------------------------- a real build


def test_a_build_fills_the_grid(built: tuple[Path, Any]) -> None:
    path, report = built
    assert report.failed == [] and report.short == {}, str(report)
    with Bank.open(path) as bank:
        status = bank.status()
        assert status.states == 18 and status.empty_cells == []
        assert sum(status.demonstrations.values()) == report.demonstrations == 8
        assert bank.verify().ok
        for state in bank.query():
            assert state.admission["start"] == 0.0
            assert state.admission["oracle"] >= 0.8
            assert state.admission["naive"] <= state.admission["oracle"] - 0.2
            assert (state.outcome == "recovery") == bool(state.exposed)
            assert state.exposed in state.brief
            assert bool(state.fault) == (state.outcome != "success")
            assert state.reduction and state.evidence and state.rubric_digest
            assert len(bank.transcript(state.state_id)) >= len(state.provenance["replayed_stages"])
        for demo in bank.demonstrations():
            assert demo.turns[-1].action["name"] == "submit_results"
            assert all(turn.observation for turn in demo.turns)


def test_a_second_build_has_nothing_to_do(built: tuple[Path, Any], backend: str) -> None:
    path, first = built
    started = time.monotonic()
    again = build(path, backend=backend, **ARGS)
    assert time.monotonic() - started < 15
    assert again.digest == first.digest
    assert again.demonstrations_digest == first.demonstrations_digest
    assert again.resumed >= 18 + 8 and again.reasons == first.reasons


def test_group_members_start_from_identical_workspaces(
    built: tuple[Path, Any], backend: str
) -> None:
    path, _ = built
    with Bank.open(path) as bank:
        state = bank.sample(np.random.default_rng(0), focus="S4", outcome="recovery")
        files = bank.workspace(state.state_id)
    starts = []
    for seed in (1, 1, 2):
        env = AutoMedEnv(track="seg", sandbox=backend, bank=path)
        observation, info = env.reset(seed=seed, options={"state_id": state.state_id})
        assert info["state_id"] == state.state_id
        there = env.workspace()
        assert {name: there[name] for name in files} == files
        starts.append((observation["text"], info["workspace_digest"], workspace_digest(there)))
        env.close()
    assert starts[0] == starts[1] == starts[2]


def test_demonstrations_replay_to_their_score(built: tuple[Path, Any], backend: str) -> None:
    path, _ = built
    with Bank.open(path) as bank:
        demo = next(d for d in bank.demonstrations() if d.state_id)
    env = AutoMedEnv(track="seg", sandbox=backend, bank=path)
    observation, _ = env.reset(seed=demo.seed, options={"state_id": demo.state_id})
    total = 0.0
    for turn in demo.turns:
        assert observation["text"] == turn.observation
        observation, reward, *_ = env.step(turn.action)
        total += reward
    env.close()
    assert total == demo.score


def test_an_interrupted_build_keeps_what_was_finished(tmp_path: Path, backend: str) -> None:
    def interrupt(what: str, done: int, total: int) -> None:
        if done >= 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(tmp_path, backend=backend, progress=interrupt, **ARGS)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("bank")]
    with Bank.open(tmp_path) as bank:
        assert bank.verify().ok
        assert 2 <= len(bank.jobs()) < 18
        assert bank.status().jobs.get("admitted", 0) == bank.status().states


_BUILD = """
import sys
from bat_env.bank.build import build
build(sys.argv[1], backend="local", tasks=["seg/kidney_tumor"], per_cell=1, demos=8, instances=3,
      workers=2)
"""


@pytest.mark.slow
def test_a_killed_build_goes_on_and_makes_nothing_twice(
    built: tuple[Path, Any], tmp_path: Path
) -> None:
    for wait_s in (6.0, 9.0):
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(_BUILD), str(tmp_path / "bank")],
            start_new_session=True,
        )
        time.sleep(wait_s)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if (tmp_path / "bank" / "index.sqlite").exists():
            with Bank.open(tmp_path / "bank") as bank:
                assert bank.verify().ok
    report = build(tmp_path / "bank", backend="local", **ARGS)
    assert report.digest == built[1].digest
