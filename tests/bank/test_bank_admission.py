"""Every rule of admission meets a state that breaks it, and says why it is refused."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bat_env.bank import Bank, StageState
from bat_env.bank.admission import Candidate, admit, play
from bat_env.bank.demos import DemoPlan, plan_trajectories
from bat_env.bank.factory import Factory
from bat_env.bank.fingerprints import of_suites
from bat_env.bank.workers import Station
from bat_env.sandbox import resolve_backend
from bat_env.stages import Stage
from bat_env.tasks import load_suite, load_task
from bat_env.tasks.scripts import ScriptCell

TASK = "seg/kidney_tumor"


@pytest.fixture(scope="module")
def station() -> Iterator[Station]:
    made = Station(resolve_backend("local"), of_suites(["seg-mini"]))
    yield made
    made.close()


class Other:
    """The task with some of its parts replaced."""

    def __init__(self, **parts: Any) -> None:
        self._task = load_task(TASK)
        self.__dict__.update(parts)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)


def judge(station: Station, *, task: Any = None, env: Any = None, **changes: Any) -> Any:
    """The verdict on an S1 state of one instance, changed as asked."""
    task = task or load_task(TASK)
    index = 2**30 + 7
    instance = task.instance("train", index, "mini")
    state = StageState.model_validate(
        {
            "track": "seg",
            "task": TASK,
            "task_digest": task.digest,
            "focus": "S1",
            "outcome": "success",
            "index": index,
            "instance_digest": instance.digest,
            **changes.pop("state", {}),
        }
    )
    candidate = dataclasses.replace(Candidate(state, {}, ()), **changes)
    replayer = station.replayer(task, "mini", "lite", index)
    return admit(
        env or station.env("lite"),
        station.desk,
        replayer,
        station.scanner,
        task,
        candidate,
        replay_again=bool(candidate.cells),
    )


def test_a_good_state_is_admitted(station: Station) -> None:
    verdict = judge(station)
    assert verdict.reason == "" and verdict.state.admission["oracle"] >= 0.8


def test_held_out_material_is_refused(station: Station) -> None:
    case = load_suite("seg-mini").entries[0].instance().cases[0]
    verdict = judge(station, workspace={f"outputs/{case}/dseg.nii.gz": b"x"})
    assert verdict.state is None and verdict.reason == "leakage"


def test_a_prefix_that_replays_differently_is_refused(station: Station) -> None:
    cells = (ScriptCell(Stage.S1, "import os; open('x', 'wb').write(os.urandom(8))"),)
    verdict = judge(station, cells=cells, replayed={"x": b"12345678"})
    assert (verdict.reason, verdict.detail) == ("replay differs", "x")


def test_a_state_that_the_oracle_cannot_finish_is_refused(station: Station) -> None:
    # A file where the plan's folder must be.
    assert judge(station, workspace={"plan": b"a file"}).reason == "oracle below .8"


def test_a_recovery_without_exposure_is_refused(station: Station) -> None:
    verdict = judge(station, state={"outcome": "recovery", "fault": "f"}, check="pass")
    assert verdict.reason == "check exposes nothing"


def test_an_uncured_recovery_is_refused(station: Station) -> None:
    state = {"outcome": "recovery", "fault": "f", "exposed": "always wrong"}
    verdict = judge(station, state=state, check="print('always wrong')")
    assert verdict.reason == "oracle does not cure"


def test_a_state_that_does_not_separate_is_refused(station: Station) -> None:
    assert judge(station, task=Other(naive_choices={})).reason == "naive does not separate"


def test_play_stops_at_the_end_of_an_episode(station: Station) -> None:
    cells = [ScriptCell(Stage.S1, "pass")] * 40
    played = play(
        station.env("lite"), cells, seed=1, options={"task": TASK, "index": 1, "size": "mini"}
    )
    assert played.status == "truncated" and played.score == 0.0


class Generous:
    """An environment that pays for nothing: what no rubric of ours does."""

    def __init__(self, env: Any) -> None:
        self._env = env

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def step(self, action: Any) -> Any:
        *others, info = self._env.step(action)
        if info.get("result"):
            info["result"]["score"] = 0.25
        return *others, info


def test_a_state_that_pays_at_its_start_is_refused(station: Station) -> None:
    verdict = judge(station, env=Generous(station.env("lite")))
    assert (verdict.reason, verdict.detail) == ("score at start is not 0", "0.250")


def test_a_state_that_takes_the_oracle_too_long_is_refused(station: Station) -> None:
    endless = [ScriptCell(Stage.S1, "pass")] * 40
    verdict = judge(station, task=Other(script=lambda *a, **k: endless))
    assert (verdict.reason, verdict.detail) == ("oracle does not finish", "truncated")


SURROGATE: dict[str, Any] = {
    "focus": "E2E",
    "reduction": load_task(TASK).spec.reduction.model_dump(),
}


def test_a_surrogate_that_fails_a_stage_check_is_refused(station: Station) -> None:
    task = load_task(TASK)
    script = task.script({"declared": "habit"})
    verdict = judge(station, task=Other(script=lambda *a, **k: script), state=SURROGATE)
    assert verdict.reason == "surrogate fails a stage check" and "S1." in verdict.detail


def test_a_surrogate_that_validates_more_often_than_it_may_is_refused(station: Station) -> None:
    none = {**SURROGATE, "reduction": {**SURROGATE["reduction"], "validation_passes": 0}}
    verdict = judge(station, state=none)
    assert (verdict.reason, verdict.detail) == ("surrogate validates too often", "1")


def test_a_state_that_does_not_boot_is_refused(station: Station) -> None:
    most = load_task(TASK).spec.limits.workspace_inodes
    verdict = judge(station, workspace={f"many/{n}": b"" for n in range(most + 1)})
    assert verdict.reason == "does not boot"


# ---------------------------------------------------------------------------------- trajectories


def lesson(**changes: Any) -> DemoPlan:
    """A teacher's trajectory of a cheap task, changed as asked."""
    (plan,) = plan_trajectories(
        load_task("cls/skin_lesion"),
        tier="lite",
        size="mini",
        indices=[2**30 + 9],
        styles=["usual"],
        count=1,
        seed=0,
    )
    return dataclasses.replace(plan, **changes)


def taught(station: Station, bank: Bank, **changes: Any) -> Any:
    """What becomes of it in a build, and what the bank then says of the job."""
    plan = lesson(**changes)
    outcome = Factory(bank, station.backend).make_demo(station, plan)
    return outcome, bank.jobs()[plan.job_id(load_task(plan.task).digest)]


def test_a_teacher_that_fails_a_stage_check_is_refused(station: Station, tmp_path: Path) -> None:
    """One slip in one stage: all else is done, handed in and scored well, and is not kept."""
    with Bank.open(tmp_path, create=True) as bank:
        for slip, stage in (({"colour_fact": "habit"}, "S1."), ({"manifest": "names"}, "S5.")):
            outcome, (status, detail) = taught(station, bank, choices=slip)
            assert outcome.status == status == "rejected"
            assert outcome.reason == detail["reason"] == "teacher fails a stage check"
            assert outcome.detail.startswith(stage) and outcome.detail == detail["detail"]
        assert not list(bank.demonstrations()) and bank.status().rejections == {
            "teacher fails a stage check": 2
        }
        good, (status, detail) = taught(station, bank)
        (kept,) = bank.demonstrations()
        assert good.status == "done" and status == "stored"
        assert detail["demo_id"] == kept.demo_id and kept.score > 0.8


def test_a_teacher_that_does_not_hand_in_is_refused(station: Station, tmp_path: Path) -> None:
    class Endless(DemoPlan):
        def cells(self, task: Any) -> tuple[ScriptCell, ...]:
            return (ScriptCell(Stage.S1, "pass"),) * 40

    plan = Endless(**{f.name: getattr(lesson(), f.name) for f in dataclasses.fields(DemoPlan)})
    with Bank.open(tmp_path, create=True) as bank:
        outcome = Factory(bank, station.backend).make_demo(station, plan)
        assert outcome.reason == "teacher fails a stage check" and not list(bank.demonstrations())


def test_a_demonstration_that_names_held_out_material_is_refused(
    station: Station, tmp_path: Path
) -> None:
    case = load_suite("seg-mini").entries[0].instance().cases[0]

    class Telling(DemoPlan):
        def cells(self, task: Any) -> tuple[ScriptCell, ...]:
            return (ScriptCell(Stage.S1, f"print('as in {case}')"),)

    plan = Telling(**{f.name: getattr(lesson(), f.name) for f in dataclasses.fields(DemoPlan)})
    plan = dataclasses.replace(plan, teacher=False)
    with Bank.open(tmp_path, create=True) as bank:
        outcome = Factory(bank, station.backend).make_demo(station, plan)
        assert outcome.reason == "leakage" and case not in outcome.detail
        assert not list(bank.demonstrations())


def test_every_reason_in_the_documentation_is_planted_here() -> None:
    """And the other way round: what the code can say is what the page lists."""
    root = Path(__file__).parents[2]
    page = (root / "docs" / "bank.md").read_text("utf-8")
    table = page.split("### Who is admitted")[1].split("\n\n`reduction`")[0]
    told = {name for row in table.splitlines() if row.startswith("| `") for name in _quoted(row)}
    code = "".join(
        (root / "bat_env" / "bank" / name).read_text() for name in ("admission.py", "factory.py")
    )
    said = set(re.findall(r"Verdict\(\s*None, \"([^\"]+)\"", code))
    said |= set(re.findall(r"refused\(\"([^\"]+)\"", code))
    assert said == told
    here = Path(__file__).read_text().split("def test_every_reason")[0]
    assert [reason for reason in sorted(told) if f'"{reason}"' not in here] == []


def _quoted(row: str) -> list[str]:
    return re.findall(r"`([^`]+)`", row.split("|")[1])
