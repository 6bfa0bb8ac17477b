"""The parts of the Data Factory: styles, slices, back-pressure, the heat map."""

from __future__ import annotations

import ast
import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bat_env.bank.faults import pasts
from bat_env.bank.heatmap import heatmap, shade
from bat_env.bank.jobs import candidates, instance_indices
from bat_env.bank.slices import count_slices, slices
from bat_env.bank.state import Demonstration, DemoTurn
from bat_env.bank.styles import STYLES, USUAL, styled
from bat_env.bank.throttle import MAX_PAUSE_S, Throttle
from bat_env.errors import UnknownNameError
from bat_env.stages import OUTCOMES, Stage
from bat_env.tasks import load_task, task_ids
from bat_env.tools import execute_call, submit_call

LITE = [name for name in task_ids() if load_task(name).spec.lite]

# ----------------------------------------------------------------------------------------- faults


def test_seven_tracks_have_faults_for_every_cell_and_many_kinds() -> None:
    assert {load_task(name).spec.track for name in LITE} == {
        *("seg", "enh", "det", "cls", "vqa", "report", "synth")
    }
    kinds: dict[str, str] = {}
    for name in LITE:
        task = load_task(name)
        for focus in Stage:
            for outcome in ("recovery", "failure"):
                found = pasts(task, focus, outcome, "lite")
                assert len(found) >= 2, (name, focus, outcome)
                for past in found:
                    assert past.fault is not None and past.fault.check
                    kinds[past.fault.id] = past.fault.source
    assert len(kinds) >= 25
    assert len({source for source in kinds.values() if "#" in source}) >= 8


# ----------------------------------------------------------------------------------------- styles


@pytest.mark.parametrize("name", LITE)
def test_every_style_changes_the_form_alone(name: str) -> None:
    task = load_task(name)
    for focus in Stage:
        script = task.script(focus=focus)
        assert styled(task, script, USUAL) == script
        forms = {styled(task, script, style) for style in STYLES}
        assert len(forms) >= 3
        for form in forms:
            assert {cell.stage for cell in form} == {cell.stage for cell in script}
            assert len(form) <= task.spec.budgets.calls
            for cell in form:
                if cell.language == "python":
                    ast.parse(cell.code)
    with pytest.raises(UnknownNameError):
        styled(task, (), "fancy")


def test_styles_of_one_fault_are_the_same_in_every_cell() -> None:
    task = load_task("cls/skin_lesion")
    found: dict[tuple[str, int], set[str]] = {}
    for focus in Stage:
        for outcome in OUTCOMES:
            jobs = candidates(
                task, "mini", "lite", focus, outcome, instance_indices(0, 6), 2, 0, STYLES, "varied"
            )
            usual = candidates(task, "mini", "lite", focus, outcome, instance_indices(0, 6), 2, 0)
            assert not {j.job_id("x") for j in jobs} & {j.job_id("x") for j in usual}
            for job in jobs:
                key = (job.past.fault_id, job.index)
                found.setdefault(key, set()).add(job.past.style)
    assert all(len(styles) == 1 for styles in found.values())
    assert {style for styles in found.values() for style in styles} == set(STYLES)


# ----------------------------------------------------------------------------------------- slices


def demo(*turns: tuple[str, dict[str, Any]]) -> Demonstration:
    return Demonstration(
        source_trajectory="s",
        track="seg",
        task="seg/x",
        task_digest="0" * 64,
        focus=Stage.S1,
        index=1,
        seed=1,
        choices={},
        score=1.0,
        turns=tuple(DemoTurn(observation=text, action=action) for text, action in turns),
    )


def test_rows_are_single_responses_with_all_that_came_before() -> None:
    one, two = execute_call("python", "print(1)"), submit_call()
    rows = list(slices(demo(("brief", one), ("result", two))))
    assert [row.history for row in rows] == [("brief",), ("brief", one, "result")]
    assert [row.response for row in rows] == [one, two]
    assert rows[0].chars < rows[1].chars


def test_rows_that_do_not_fit_are_refused_with_their_reason_and_never_clipped() -> None:
    turns = [("brief", execute_call("python", "x" * 100)), ("y" * 300, submit_call()), ("", {})]
    found = count_slices([demo(*turns)], max_chars=250)
    assert found.rows == 1 and found.refused == {"longer than the row limit": 2}
    found = count_slices([demo(("brief", submit_call()), ("", submit_call()))])
    assert found.rows == 1 and found.refused == {"nothing to answer": 1}


# ---------------------------------------------------------------------------------- back-pressure


class Machine:
    """Time and CPU use of a pretended machine with two cores."""

    def __init__(self, shares: list[float]) -> None:
        self.now, self.used, self.shares = 0.0, 0.0, shares
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        share = self.shares.pop(0) if len(self.shares) > 1 else self.shares[0]
        self.now += seconds
        self.used += seconds * 2 * share
        self.slept.append(seconds)


def throttle(machine: Machine) -> Throttle:
    return Throttle(2, lambda: machine.used, lambda: machine.now, machine.sleep)


def test_a_build_waits_while_a_trainer_has_the_cores() -> None:
    machine = Machine([1.0])
    made = throttle(machine)
    machine.sleep(5.0)
    machine.shares = [1.0, 1.0, 0.2]
    assert made.wait() == pytest.approx(6.0)
    assert made.wait() == 0.0


def test_a_build_is_slowed_down_never_starved_and_stops_at_once() -> None:
    machine = Machine([1.0])
    made = throttle(machine)
    machine.sleep(5.0)
    assert made.wait() == pytest.approx(MAX_PAUSE_S)
    machine.sleep(5.0)
    made.stop()
    assert made.wait() == 0.0


def test_niced_work_does_not_count_as_others() -> None:
    assert Throttle(2).share() <= 1.0
    text = Path("/proc/stat").read_text("ascii").split("\n", 1)[0].split()
    from bat_env.bank.throttle import busy_s

    assert busy_s() < sum(map(int, text[1:4])) / 100 + 1.0  # type: ignore[operator]


# --------------------------------------------------------------------------------------- heat map


def test_the_heat_map_shows_every_cell() -> None:
    grid = {"seg": {f.name: dict.fromkeys(OUTCOMES, 3) for f in Stage}}
    grid["seg"]["S4"]["failure"] = 0
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(heatmap(grid, ("seg", "enh")))
    lines = console.export_text().splitlines()
    assert lines[-2].split()[0] == "seg" and lines[-2].count("3") == 17
    assert lines[-1].split()[0] == "enh" and lines[-1].count(".") == 18
    assert [shade(n, 10) for n in (0, 1, 5, 10)] == [0, 1, 2, 4]


# ------------------------------------------------------------------------------------- surrogates


@pytest.mark.parametrize("name", LITE)
def test_the_recorded_reduction_is_that_of_the_reduced_size(name: str) -> None:
    spec = load_task(name).spec
    full, mini = (sum(spec.sizes[size]["cases"]) for size in ("full", "mini"))
    assert spec.reduction.cases == pytest.approx(mini / full, abs=0.1)
    assert 0 < spec.reduction.input_fraction < 1 and spec.reduction.validation_passes == 1
