"""Canaries of the held-out suite through a round of every track: never downstream, found if put.

Held-out episodes are really played and their records really hold the canaries; what training is
made of is really built, drawn and played beside them. Then each track's canaries are planted.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bat_agent.curriculum.rounds import StateRow, plan_round
from bat_agent.curriculum.router import route
from bat_agent.evaluate import evaluate
from bat_env.bank import Bank, StageState, preflight
from bat_env.bank.demos import plan_demonstrations
from bat_env.bank.factory import Factory
from bat_env.bank.fingerprints import Fingerprint, of_suites
from bat_env.bank.jobs import candidates, instance_indices
from bat_env.bank.leakage import scan_files
from bat_env.bank.slices import slices
from bat_env.bank.wording import VARIED
from bat_env.bank.workers import Station
from bat_env.env import AutoMedEnv
from bat_env.errors import LeakageError
from bat_env.stages import Stage
from bat_env.tasks import Suite, load_suite, load_task

SUITE = load_suite("lite-mini")
PART = Suite(
    "canaries", "c" * 64, tuple({entry.task: entry for entry in SUITE.entries[::-1]}.values())
)
"""One held-out instance of each track: the first, which the evaluation plays."""
LITE = sorted(entry.task for entry in PART.entries)


@dataclass
class Round:
    """What a round has left."""

    bank: Bank
    fingerprint: Fingerprint
    downstream: list[Path]
    controller: Path
    states: dict[str, StageState]
    canaries: dict[str, tuple[str, str]]


def _write(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value, default=str), "utf-8")
    return path


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory, backend: str) -> Iterator[Round]:
    """Bank, controller evaluation, plan, rows and rollouts of one round of seven tracks."""
    root = tmp_path_factory.mktemp("round")
    fingerprint = of_suites([PART])
    station = Station(backend, fingerprint)
    files: list[Path] = []
    with Bank.open(root / "bank", create=True) as bank:
        factory = Factory(bank, backend)
        for name in LITE:
            task, indices = load_task(name), instance_indices(5, 2, VARIED)
            job = candidates(
                task, "mini", "lite", Stage.S1, "success", indices, 1, 5, briefs=VARIED
            )[0]
            job = dataclasses.replace(job, replay_again=False)
            made = factory.make_state(station, job)
            assert made.status == "done", (name, made.reason, made.detail)
            for plan in plan_demonstrations(
                task,
                [made.value],
                tier="lite",
                size="mini",
                indices=indices,
                count=1,
                p_good=0.5,
                e2e_share=0.0,
                seed=5,
            ):
                assert factory.make_demo(station, plan).status == "done"
        station.close()
        assert preflight(bank, [PART]).clean

        # The controller's side of the wall: held-out episodes and their records.
        controller = root / "controller"
        evaluation = evaluate(
            "nop", suite="lite-mini", repeats=1, sandbox=backend, trajectory_dir=controller
        )
        scores = evaluation.scores()

        # Downstream of it: only the aggregate crosses.
        rows = [
            StateRow(s.state_id, s.workspace, s.track, s.focus.name, s.outcome)
            for s in bank.query()
        ]
        plan = plan_round(
            rows, round_id=1, seed=5, target="S1", steps=1, composition={"target": len(rows)}
        )
        files += [
            _write(root / "plan.json", plan.to_json()),
            _write(root / "route.json", [route(scores), scores.to_json()]),
        ]
        for number, demo in enumerate(bank.demonstrations()):
            told = [dataclasses.asdict(row) for row in slices(demo)]
            files.append(_write(root / f"sft-{number}.json", told))
        env = AutoMedEnv(
            track=None, sandbox=backend, bank=bank.path, trajectory_dir=root / "rollouts"
        )
        for draw in plan.draws:
            observation, info = env.reset(seed=1, options={"state_id": draw.state.state_id})
            *_, last = env.step({"name": "submit_results", "arguments": {}})
            shown = [observation["text"], info, last, sorted(env.workspace())]
            files.append(_write(root / f"rollout-{draw.slot}.json", shown))
        env.close()
        files += [path for path in sorted((root / "rollouts").rglob("*")) if path.is_file()]
        yield Round(
            bank,
            fingerprint,
            files,
            controller,
            {state.task: state for state in bank.query()},
            {entry.task: entry.instance().canaries for entry in PART.entries},
        )


def test_no_canary_crosses_from_evaluation_into_a_round(played: Round) -> None:
    assert len(played.states) == len(played.canaries) == 7
    records = [path for path in sorted(played.controller.rglob("*")) if path.is_file()]
    there = scan_files(records, played.fingerprint)
    could = {finding.what for finding in there if "canary" in finding.what}
    assert could == {f"canary of held-out instance 0 of {task} (mini)" for task in LITE}
    assert len(played.downstream) >= 2 + 7 + 7 + 7
    crossed = scan_files(played.downstream, played.fingerprint)
    # Names of folders of this machine are in the settings of a rollout; nothing held out is.
    assert [f for f in crossed if "held" in f.what or "fiction" in f.what] == []
    assert preflight(played.bank, [PART]).clean


@pytest.mark.parametrize("task", LITE)
@pytest.mark.parametrize("place", ["file", "folder", "brief", "transcript", "exposed"])
def test_a_planted_canary_stops_the_round_of_any_track(
    played: Round, task: str, place: str
) -> None:
    bank, state = played.bank, played.states[task]
    for canary in played.canaries[task]:
        files = dict(bank.workspace(state.state_id))
        changes: dict[str, Any] = {"index": state.index + 1, "instance_digest": ""}
        transcript: list[dict[str, str]] = []
        if place == "file":
            files["notes/log.txt"] = f'{{"seen": "{canary}"}}'.encode()
        elif place == "folder":
            files[f"outputs/{canary}/x"] = b"1"
        elif place == "transcript":
            transcript = [{"stdout": f"see\n{canary}\n"}]
        else:
            changes[place] = f"{getattr(state, place)}\n{canary}."
        planted = bank.add(state.model_copy(update=changes), files, transcript)
        with pytest.raises(LeakageError, match=f"canary of held-out instance 0 of {task}"):
            preflight(bank, [PART])
        bank.retire(planted.state_id)
    assert preflight(bank, [PART]).clean


@pytest.mark.parametrize("task", LITE)
def test_a_canary_in_a_demonstration_or_a_file_of_the_run_is_found(
    played: Round, task: str, tmp_path: Path
) -> None:
    (demo,) = played.bank.demonstrations(task=task)
    for canary in played.canaries[task]:
        turn = demo.turns[0]
        turn = turn.model_copy(update={"observation": f"{turn.observation}\n{canary}"})
        planted = played.bank.add_demonstration(demo.model_copy(update={"turns": (turn,)}))
        with pytest.raises(LeakageError, match=f"canary of held-out instance 0 of {task}"):
            preflight(played.bank, [PART])
        played.bank.retire(planted.demo_id)
        source = next(path for path in played.downstream if path.name == "plan.json")
        copy = tmp_path / "plan.json"
        copy.write_text(source.read_text().replace('"seed"', f'"{canary}"', 1))
        (found,) = {f.what for f in scan_files([copy], played.fingerprint) if "held" in f.what}
        assert f"canary of held-out instance 0 of {task}" in found
    assert preflight(played.bank, [PART]).clean
