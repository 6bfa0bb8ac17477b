"""Decisions, listed mistakes and the cells that are made of them."""

from __future__ import annotations

from typing import Final

from bat_env.stages import WORK_STAGES, Stage
from bat_env.task_rules.drawn import drawn
from bat_env.tasks import Task
from bat_env.tasks.lines import shared_lines

MIN_COST: Final = 0.05


def choices(task: Task) -> None:
    """Decisions, mistakes and the naive script fit together, and no line means two things."""
    decisions = {decision.id: decision for decision in task.decisions}
    assert len(decisions) == len(task.decisions), "Decision ids must be unique."
    for decision in task.decisions:
        assert len(set(decision.options)) == len(decision.options) >= 2, (
            f"Decision {decision.id} must have two different options or more."
        )
    assert len({m.id for m in task.mistakes}) == len(task.mistakes), "Mistake ids must be unique."
    variants = {f"Mistake {m.id}": m.choices for m in task.mistakes}
    for name, taken in {**variants, "The naive script": task.naive_choices}.items():
        for decision_id, option in taken.items():
            assert decision_id in decisions, f"{name} takes a decision {decision_id!r}: none such."
            known = decisions[decision_id].options
            assert option in known, f"{name} takes {decision_id}={option!r}: none such."
            assert option != known[0], f"{name} takes {decision_id}={option!r}, the good option."
    for stage in Stage:
        assert task.script(focus=stage), f"The script has no cell for {stage.name}."
    for mistake in task.mistakes:
        assert any(
            task.script(mistake.choices, focus=focus, tier=mistake.tier)
            != task.script(focus=focus, tier=mistake.tier)
            for focus in Stage
        ), f"Mistake {mistake.id} changes no cell: nothing would show it."
    shared = shared_lines(task)
    assert not shared, f"One line must not mean two things: {shared[0]}."


def scripts(task: Task) -> None:
    """Every wrong option is a listed mistake; cells are short, name no case and differ."""
    options = {d.id: d.options for d in task.decisions}
    assert len(options) >= 12, f"At least 12 decisions, got {len(options)}."
    assert len(task.mistakes) >= 14, f"At least 14 mistakes, got {len(task.mistakes)}."
    listed = {(d, o) for m in task.mistakes for d, o in m.choices.items()}
    wrong = {(d, o) for d, every in options.items() for o in every[1:]}
    assert listed == wrong, f"Options without a mistake, or the reverse: {listed ^ wrong}."
    assert set(task.naive_choices.items()) <= listed, "The naive script makes unlisted mistakes."
    for mistake in task.mistakes:
        assert mistake.title and mistake.source, f"Mistake {mistake.id} needs title and source."
        low = [p for p, cost in mistake.costs.items() if cost < MIN_COST]
        assert mistake.costs and not low, f"Mistake {mistake.id} must cost >= {MIN_COST}."
        compile(mistake.check, mistake.id, "exec")
    cases = [case for made in drawn(task, count=3) for case in made.cases]
    for taken in ({}, task.naive_choices, *(m.choices for m in task.mistakes)):
        for focus in Stage:
            for tier in task.spec.tiers:
                cells = task.script(taken, focus=focus, tier=tier)
                assert 1 <= len(cells) <= 8, f"{focus.name} has {len(cells)} cells."
                for cell in cells:
                    compile(cell.code, "cell", "exec")
                    lines = cell.code.split("\n")
                    assert len(lines) <= 50, f"A cell of {focus.name} has {len(lines)} lines."
                    long = [line for line in lines if len(line) > 110]
                    assert not long, f"This line has over 110 characters: {long[0]!r}"
                    assert not any(case in cell.code for case in cases), "A cell names a case."
    for focus in Stage:
        stages = {cell.stage for cell in task.script(focus=focus)}
        wanted = {focus} if focus is not Stage.E2E else set(WORK_STAGES)
        assert stages == wanted, f"The script of {focus.name} has cells of {stages}."
