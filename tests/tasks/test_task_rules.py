"""The rules themselves: each one sees what it is for."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from bat_env.errors import SandboxError
from bat_env.sandbox.base import CellResult
from bat_env.task_rules import FOLDER_RULES, Played, Player, cpu, episodes, run, run_rules
from bat_env.task_rules.playing import INDEX
from bat_env.task_rules.run import SAMPLE, sample
from bat_env.tasks import Mistake, Task, load_task, task_ids
from bat_env.tasks.scaffold import new_task

RULES = {rule.__name__: rule for rule in FOLDER_RULES}
STAGES = {f"S{n}": 1.0 for n in range(1, 6)}
GOOD = Played(1.0, {**STAGES, "task": 0.9}, 0, True, "", 0.4)


class Fake(Player):
    """Plays what it is told to, and notes what it was asked."""

    def __init__(self, task: Task, **played: Played) -> None:
        super().__init__(task, "local")
        self.told = played
        self.asked: list[str] = []

    def play(self, choices, size="mini", tier="lite", *, state=None, check="", keep=""):  # type: ignore[no-untyped-def]
        for outcome in ("success", "recovery"):
            if keep == outcome:
                return self.told["careful"]
        who = "careful" if not choices else "poor"
        where = "" if state is None else f"_{state}"
        self.asked.append(who + where)
        return self.told.get(who + where, self.told[who])

    def state(self, focus, outcome="success"):  # type: ignore[no-untyped-def]
        return focus.name

    def printed(self, checks):  # type: ignore[no-untyped-def]
        return dict.fromkeys(checks, "as clean\n")


@pytest.fixture
def task() -> Task:
    return load_task("cls/skin_lesion")


POOR = replace(GOOD, score=0.3, parts={**dict.fromkeys(STAGES, 0.5), "task": 0.0})


def test_careful_and_careless_scores(task: Task) -> None:
    episodes.oracle_scores(Fake(task, careful=GOOD))
    episodes.naive_scores(Fake(task, careful=GOOD, poor=POOR))
    for change, message in (
        ({"score": 0.79}, "Overall 0.790"),
        ({"parts": {**GOOD.parts, "task": 0.6}}, "Task 0.600"),
        ({"parts": {**GOOD.parts, "S3": 0.9}}, "loses in S3"),
        ({"failed_cells": 1, "notes": "boom"}, "boom"),
    ):
        with pytest.raises(AssertionError, match=message):
            episodes.oracle_scores(Fake(task, careful=replace(GOOD, **change)))  # type: ignore[arg-type]
    for change, message in (
        ({"score": 0.46}, "naive scores 0.460"),
        ({"score": 0.04}, "naive scores 0.040"),
        ({"valid": False}, "finish validly"),
        ({"parts": {**POOR.parts, "S4": 0.85}}, r"loses only 0\.15 in S4"),
    ):
        with pytest.raises(AssertionError, match=message):
            poor = replace(POOR, **change)  # type: ignore[arg-type]
            episodes.naive_scores(Fake(task, careful=GOOD, poor=poor))


def test_careless_work_from_a_success_state(task: Task) -> None:
    fake = Fake(task, careful=GOOD, poor=POOR)
    episodes.naive_from_states(fake)
    assert fake.asked == [f"{who}_S{n}" for n in range(1, 6) for who in ("careful", "poor")]
    near = replace(POOR, score=0.85)
    with pytest.raises(AssertionError, match=r"naive loses only 0\.15 in S4"):
        episodes.naive_from_states(Fake(task, careful=GOOD, poor=POOR, poor_S4=near))
    weak = replace(GOOD, score=0.7, notes="S2.probe: no")
    with pytest.raises(AssertionError, match=r"careful work scores 0\.700 in S2.*probe"):
        episodes.naive_from_states(Fake(task, careful=GOOD, poor=POOR, careful_S2=weak))


def test_costs_and_checks_of_a_mistake(task: Task) -> None:
    mistake = Mistake("m", "t", "common", {"mode": "train"}, {"S2": 0.2}, "print(1)")
    shown = CellResult(0, "a trace\n")
    lost = replace(GOOD, score=0.9, parts={**GOOD.parts, "S2": 0.7}, check=shown)
    episodes.listed_mistakes(Fake(task, careful=GOOD, poor=lost), [mistake])
    for change, message in (
        ({"parts": {**GOOD.parts, "S2": 0.9}}, r"must cost 0\.2 in S2"),
        ({"parts": {**GOOD.parts, "S2": 0.7, "S4": 0.5}}, r"also costs 0\.5 in S4: list it"),
        ({"parts": {**GOOD.parts, "S2": 0.7, "task": 0.6}}, r"also costs 0\.3 in task: list it"),
        ({"parts": {**GOOD.parts, "S2": 0.3}}, r"lists a cost of 0\.2 in S2 and costs 0\.7"),
        ({"score": 1.0}, "the episode must pay too"),
        ({"check": CellResult(0, "as clean\n")}, "prints the same for careful work"),
        ({"check": CellResult(1, "x", "Trace")}, "must run without an error: Trace"),
        ({"check": CellResult(0, "x" * 1201)}, "prints 1201 characters"),
        ({"check": CellResult(0, "")}, "prints 0 characters"),
    ):
        with pytest.raises(AssertionError, match=message):
            poor = replace(lost, **change)  # type: ignore[arg-type]
            episodes.listed_mistakes(Fake(task, careful=GOOD, poor=poor), [mistake])


def test_what_spoils_outputs_may_cost_s5_too_and_one_item_may_hang_on_the_case(task: Task) -> None:
    mistake = Mistake("m", "t", "common", {"mode": "train"}, {"task": 0.3})
    parts = {**GOOD.parts, "task": 0.1, "S3": 0.8, "S5": 0.5}
    fake = Fake(task, careful=GOOD, poor=replace(GOOD, score=0.5, parts=parts))
    with pytest.raises(AssertionError, match=r"lists a cost of 0\.1 in task and costs 0\.8"):
        episodes.listed_mistakes(fake, [replace(mistake, costs={"task": 0.1})])
    episodes.listed_mistakes(fake, [mistake])
    assert fake.lost["m"] == {"S1": 0, "S2": 0, "S3": 0.2, "S4": 0, "S5": 0.5, "task": 0.8}


class Elsewhere(Fake):
    """Careless and careful work do otherwise on further instances."""

    def __init__(self, task: Task, further: dict[str, Played], **told: Played) -> None:
        super().__init__(task, **told)
        self.here, self.further = told, further

    def play(self, choices, size="mini", tier="lite", **more):  # type: ignore[no-untyped-def]
        self.told = self.here if self._index == INDEX else {**self.here, **self.further}
        return super().play(choices, size, tier, **more)


def test_what_hangs_on_the_instance_is_asked_of_three(task: Task) -> None:
    mistake = Mistake("m", "t", "common", {"mode": "train"}, {"task": 0.3})
    lucky = replace(GOOD, score=0.8, parts={**GOOD.parts, "task": 0.7, "S4": 0.0})
    usual = replace(GOOD, score=0.7, parts={**GOOD.parts, "task": 0.5})
    player = Elsewhere(task, {"poor": usual}, careful=GOOD, poor=lucky)
    episodes.listed_mistakes(player, [mistake])
    assert player.lost["m"]["task"] == pytest.approx(0.2), "costs are told of the first"
    assert player.asked.count("poor") == 3
    with pytest.raises(AssertionError, match=r"must cost 0\.6 in task, it costs 0\.4"):
        episodes.listed_mistakes(player, [replace(mistake, costs={"task": 0.6})])
    with pytest.raises(AssertionError, match=r"must cost 0\.1 in S2"):
        episodes.listed_mistakes(player, [replace(mistake, costs={"task": 0.3, "S2": 0.1})])
    hard = replace(GOOD, parts={**GOOD.parts, "task": 0.6})
    episodes.oracle_scores(Elsewhere(task, {"careful": GOOD}, careful=hard))
    with pytest.raises(AssertionError, match=r"Task 0\.600"):
        episodes.oracle_scores(Elsewhere(task, {"careful": hard}, careful=hard))


def test_stages_of_worthless_outputs_are_lost_or_not_as_the_cases_fall(task: Task) -> None:
    mistake = Mistake("m", "t", "common", {"mode": "train"}, {"task": 0.3, "S2": 0.3, "S3": 0.9})
    spoilt = replace(GOOD, score=0.5, parts={**GOOD.parts, "task": 0.1, "S4": 0.0})
    player = Elsewhere(task, {"poor": spoilt}, careful=GOOD, poor=spoilt)
    with pytest.raises(AssertionError) as caught:
        episodes.listed_mistakes(player, [mistake])
    for said in ("must cost 0.3 in S2", "must cost 0.9 in S3", "also costs 1.0 in S4"):
        assert said in str(caught.value)
    worth = {"poor": replace(spoilt, worthless=True)}
    episodes.listed_mistakes(Elsewhere(task, worth, careful=GOOD, poor=spoilt), [mistake])
    for costs, message in (
        ({"S2": 0.3, "S3": 0.9}, "must cost 0.3 in S2"),
        ({**mistake.costs, "S1": 0.1}, "must cost 0.1 in S1"),
        ({"task": 0.95}, "must cost 0.95 in task"),
    ):
        player = Elsewhere(task, worth, careful=GOOD, poor=spoilt)
        with pytest.raises(AssertionError, match=message):
            episodes.listed_mistakes(player, [replace(mistake, costs=costs)])


def test_a_check_may_have_nothing_to_show_on_one_instance(task: Task) -> None:
    mistake = Mistake("m", "t", "common", {"mode": "train"}, {"S2": 0.2}, "print(1)")
    parts = {**GOOD.parts, "S2": 0.7}
    same = replace(GOOD, score=0.9, parts=parts, check=CellResult(0, "as clean\n"))
    other = replace(same, check=CellResult(0, "a trace\n"))
    episodes.listed_mistakes(Elsewhere(task, {"poor": other}, careful=GOOD, poor=same), [mistake])
    with pytest.raises(AssertionError, match="prints the same for careful work"):
        player = Elsewhere(task, {"poor": same}, careful=GOOD, poor=same)
        episodes.listed_mistakes(player, [mistake])


def test_true_costs_are_told_after_their_rule(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(task, careful=GOOD)
    fake.lost = {"training_mode": {"S2": 0.2, "task": 0.1}}
    monkeypatch.setattr(run, "Player", lambda *_: fake)
    monkeypatch.setattr(run, "FOLDER_RULES", ())
    monkeypatch.setattr(run, "_episodes", lambda *_: [("listed_mistakes", lambda: None)])
    told = []
    rows = run_rules(task, depth="quick", on_cost=lambda m, lost: told.append((m.id, lost)))
    assert list(rows) == [("listed_mistakes", "")]
    assert told == [("training_mode", {"S2": 0.2, "task": 0.1})]


def test_a_cured_start(task: Task) -> None:
    episodes.repair(Fake(task, careful=GOOD, poor=POOR))
    with pytest.raises(AssertionError, match=r"careful work scores 0\.500 in S5"):
        weak = replace(GOOD, score=0.5)
        episodes.repair(Fake(task, careful=GOOD, poor=POOR, careful_S5=weak))
    with pytest.raises(AssertionError, match=r"no_repair must cost 0\.1 in S3, not 0\.00"):
        episodes.repair(Fake(task, careful=GOOD, poor=GOOD))


# ------------------------------------------------------------------------------- CPU time


def test_cpu_time_is_the_best_of_two(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu.os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    slow = replace(GOOD, cpu_s=1.7)
    fake = Fake(task, careful=slow)
    with pytest.raises(AssertionError, match=r"A mini episode takes 1\.70 CPU-s, at most 1\.5"):
        episodes.cpu_time(fake)
    assert fake.asked == ["careful", "careful"]
    with pytest.raises(AssertionError, match=r"S4 alone takes 0\.60 CPU-s, at most 0\.5"):
        stage = replace(GOOD, cpu_s=0.6)
        episodes.cpu_time(Fake(task, careful=GOOD, careful_S4=stage))
    monkeypatch.setattr(cpu.os, "getloadavg", lambda: (99.0, 0.0, 0.0))
    episodes.cpu_time(Fake(task, careful=slow, **{f"careful_S{n}": GOOD for n in range(1, 6)}))
    episodes.cpu_time(Fake(task, careful=replace(GOOD, cpu_s=None)))
    full = Fake(task, careful=replace(GOOD, cpu_s=30.0))
    with pytest.raises(AssertionError, match=r"full episode takes 30\.0"):
        episodes.full_cpu_time(full)


def test_the_time_of_children_counts() -> None:
    burn = "import time\nwhile time.process_time() < 0.4: pass\ninput()"
    before = cpu.tree_cpu_s()
    if before is None:
        pytest.skip("no /proc on this system")
    command = [sys.executable, "-c", burn]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
        while (cpu.tree_cpu_s() or 0.0) - before < 0.38:
            assert child.poll() is None, "it waits for its input when it is done"
            time.sleep(0.02)
        running = cpu.tree_cpu_s()
        child.communicate(b"\n")
    ended = cpu.tree_cpu_s()
    assert running is not None and ended is not None and ended >= running - 0.02


def test_code_that_raises_is_a_finding_and_a_dead_sandbox_is_not(tmp_path: Path) -> None:
    folder = tmp_path / "cls" / "skin_lesion"
    shutil.copytree(load_task("cls/skin_lesion").folder, folder)
    path = folder / "generate.py"
    path.write_text(path.read_text() + "\n\ndef generate(*_):\n    return {}['seed']\n")
    found = dict(run_rules(Task(folder), depth="files"))
    assert found["contract"] == "raised KeyError: 'seed'" and found["bundle"] == ""

    def dead() -> None:
        raise SandboxError("gone")

    with pytest.raises(SandboxError):
        run._wrong(dead)


# ------------------------------------------------------------------------------- the sample


def test_a_sample_is_small_steady_and_differs_between_tasks() -> None:
    drawn = {name: [m.id for m in sample(load_task(name))] for name in task_ids()}
    assert all(len(set(ids)) == SAMPLE for ids in drawn.values())
    assert drawn == {name: [m.id for m in sample(load_task(name))] for name in task_ids()}
    assert len({tuple(ids) for ids in drawn.values()}) > 1


def test_a_world_that_another_task_holds_out_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: Task
) -> None:
    monkeypatch.setenv("BAT_TASKS_PATH", str(tmp_path))
    folder = new_task("cls/other", tmp_path)
    taken = task.spec.fiction["heldout"][0]["institution"]
    path = folder / "task.yaml"
    spec = yaml.safe_load(path.read_text())
    path.write_text(path.read_text().replace(spec["fiction"]["train"][0]["institution"], taken))
    with pytest.raises(AssertionError, match=f"{taken}.* of train stands in heldout of cls/skin"):
        RULES["world"](Task(folder))
