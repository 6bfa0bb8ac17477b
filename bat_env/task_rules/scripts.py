"""Decisions, listed mistakes and the cells that are made of them."""

from __future__ import annotations

from typing import Final

from bat_env.stages import WORK_STAGES, Stage
from bat_env.task_rules.drawn import drawn
from bat_env.tasks import Task

MIN_COST: Final = 0.05


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
    for choices in ({}, task.naive_choices, *(m.choices for m in task.mistakes)):
        for focus in Stage:
            for tier in task.spec.tiers:
                cells = task.script(choices, focus=focus, tier=tier)
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
