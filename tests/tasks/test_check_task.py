"""The task check names each rule that a task breaks."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from bat_env.stages import Stage
from bat_env.task_rules import FOLDER_RULES
from bat_env.tasks import Task, load_task
from bat_env.tasks.lines import SharedLine, shared_lines
from bat_env.testing import check_task, task_findings

WRAPPED = """

import dataclasses

_drawn = generate


def generate(seed, size, fiction):
"""

PLANTED = [
    (
        "task.yaml",
        lambda s: _fiction_twice(s),
        r"Two splits share a fictional value",
    ),
    (
        "task.yaml",
        lambda s: s.replace("floors:", "floors:\n  generous: 0.3", 1),
        r"Floor generous is 0\.3, more than 0\.1",
    ),
    (
        "oracle.py",
        lambda s: s.replace('Decision("mode", S2', 'Decision("checkpoint", S2', 1),
        r"Decision ids must be unique",
    ),
    (
        "oracle.py",
        lambda s: s.replace('("eval", "train")', '("eval", "eval")'),
        r"Decision mode must have two different options",
    ),
    (
        "mistakes.py",
        lambda s: s.replace('"slope_ignored"', '"training_mode"'),
        r"Mistake ids must be unique",
    ),
    (
        "mistakes.py",
        lambda s: s.replace('{"orient": "none"}', '{"oriental": "none"}'),
        r"Mistake no_reorientation takes a decision 'oriental'",
    ),
    (
        "mistakes.py",
        lambda s: s.replace('{"orient": "none"}', '{"orient": "card"}'),
        r"Mistake no_reorientation takes orient='card', the good option",
    ),
    (
        "naive.py",
        lambda s: s.replace('"mode": "train"', '"mode": "trian"'),
        r"The naive script takes mode='trian'",
    ),
    (
        "oracle.py",
        lambda s: s.replace("S1: lambda: plan(choices, tier)", "S1: lambda: []"),
        r"The script has no cell for S1",
    ),
    (
        "oracle.py",
        lambda s: s.replace('"train": ()', '"train": ("net.eval()",)'),
        r"Mistake training_mode changes no cell",
    ),
    (
        "oracle.py",
        lambda s: s.replace("pilots = cases[:1]", "for case in cases[:1]:").replace(
            '            "for case in pilots:",\n', ""
        ),
        r"'for case in cases\[:1\]:' is a mistake in S4 \(batch=first\) and part of the careful "
        r"script in S3",
    ),
    (
        "generate.py",
        lambda s: s + WRAPPED + "    return _drawn(7, size, {**fiction, 'prefix': 'AAA'})\n",
        r"Two splits share a case id",
    ),
    (
        "generate.py",
        lambda s: (
            s
            + WRAPPED
            + "    one = _drawn(seed, size, fiction)\n"
            + "    leak = {f'{one.cases[0]}/hint.bin': next(iter(one.private.values()))}\n"
            + "    return dataclasses.replace(one, public={**one.public, **leak})\n"
        ),
        r"hint\.bin holds private truth",
    ),
    ("briefs/lite.md.j2", lambda s: " ", r"The lite brief is empty"),
    (
        "generate.py",
        lambda s: (
            s
            + WRAPPED
            + "    one = _drawn(seed, size, fiction)\n"
            + "    name = f'X-{seed}'\n"
            + "    public = {p.replace(one.cases[0], name): d for p, d in one.public.items()}\n"
            + "    cases = (name, *one.cases[1:])\n"
            + "    return dataclasses.replace(one, public=public, cases=cases)\n"
        ),
        r"The brief holds a private value",
    ),
]


def _fiction_twice(text: str) -> str:
    """The first fictional institution of training, once more among the held-out ones."""
    lines = text.splitlines()
    train = next(i for i, line in enumerate(lines) if line.strip() == "train:")
    first = next(i for i in range(train, len(lines)) if lines[i].strip().startswith("- "))
    row = [lines[first]]
    for line in lines[first + 1 :]:
        if line.strip().startswith("- ") or not line.startswith(" " * 6):
            break
        row.append(line)
    held = next(i for i, line in enumerate(lines) if line.strip() == "heldout:")
    return "\n".join([*lines[: held + 1], *row, *lines[held + 1 :]]) + "\n"


def planted(tmp_path: Path, file: str, change: object) -> Task:
    """A copy of the kidney task with one file changed."""
    folder = tmp_path / "seg" / "kidney_tumor"
    shutil.copytree(load_task("kidney_tumor").folder, folder)
    path = folder / file
    before = path.read_text("utf-8")
    after = change(before)  # type: ignore[operator]
    assert after != before, "the planted fault must be one"
    path.write_text(after, "utf-8")
    return Task(folder)


RULES = {rule.__name__: rule for rule in FOLDER_RULES}
RULE_OF = {"task.yaml": "splits", "generate.py": "privacy", "briefs/lite.md.j2": "briefs"}


@pytest.mark.parametrize(("file", "change", "message"), PLANTED, ids=[p[2][:36] for p in PLANTED])
def test_a_bad_task_is_refused(file: str, change: object, message: str, tmp_path: Path) -> None:
    task = planted(tmp_path, file, change)
    rule = RULE_OF.get(file, "choices")
    rule = {"Floor": "floors", "Two": "splits"}.get(message.split()[0], rule)
    with pytest.raises(AssertionError, match=message):
        RULES[rule](task)


def test_the_check_says_which_rule_a_task_breaks(tmp_path: Path) -> None:
    _, change, message = next(p for p in PLANTED if "share a case id" in p[2])
    task = planted(tmp_path, "generate.py", change)
    found = {rule: wrong for rule, wrong in task_findings(task, depth="files") if wrong}
    assert re.search(message, found["splits"]) and "bundle" not in found
    with pytest.raises(AssertionError, match=f"splits: {message}"):
        check_task(task)


def test_a_line_with_two_meanings_is_found_where_it_lies(tmp_path: Path) -> None:
    change = next(p[1] for p in PLANTED if "careful" in p[2])
    found = shared_lines(planted(tmp_path, "oracle.py", change))
    assert SharedLine("for case in cases[:1]:", "batch", "first", Stage.S4, Stage.S3) in found
    assert {shared.line for shared in found} == {"for case in cases[:1]:"}


def test_a_cell_at_another_time_is_no_mistake_of_its_lines() -> None:
    task = load_task("kidney_tumor")
    late = task.script({"pilot_order": "after"}, focus=Stage.S3)
    assert "for case in cases:" in late[-2].code.splitlines()  # good in S4, and too early here
    assert shared_lines(task) == []
