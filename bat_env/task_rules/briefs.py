"""Briefs say what the contract says, in short and mostly constant lines."""

from __future__ import annotations

import json
import re
from typing import Final

from bat_env.stages import Stage
from bat_env.tasks import Instance, Task, public_spec, render_brief


def briefs(task: Task) -> None:
    """Briefs take numbers and paths from the contract, and vary in few short lines."""
    spec = task.spec
    changed = Task(task.folder)
    output = spec.output.name
    other = f"other{output[output.index('.') :]}"
    budgets = spec.budgets.model_copy(update={"turns": 91, "calls": 87, "cell_timeout_s": 77.0})
    moved = spec.output.model_copy(update={"path": spec.output.path.replace(output, other)})
    changed.spec = spec.model_copy(
        update={"budgets": budgets, "output": moved, "input_file": "scan.raw"}
    )
    one, two = (task.instance("train", i, "mini") for i in (0, 1))
    for tier in spec.tiers:
        text = render_brief(changed, one, tier=tier, focus=Stage.E2E)
        assert text.strip(), f"The {tier} brief is empty."
        for wanted in ("91 turns", "87 cells", "77 s", other, "scan.raw"):
            assert wanted in text, f"The {tier} brief takes {wanted!r} not from the contract."
        stale = [w for w in (" 24 turns", " 23 cells", "120 s", f"/{output}") if w in text]
        assert not stale, f"The {tier} brief holds {stale[0]!r} of its own."
        for focus in Stage:
            foreign = _foreign(task, one, tier, focus)
            assert not foreign, f"The {tier} brief holds {foreign[0]!r}, which no contract names."
            a, b = (render_brief(task, d, tier=tier, focus=focus).splitlines() for d in (one, two))
            assert max(map(len, a)) <= 140, f"The {tier} brief has a line of over 140 characters."
            assert all(case in "\n".join(a) for case in one.cases), "The brief must name the cases."
            starts = tuple(f"{key.capitalize()}:" for key in one.fiction)
            odd = [x for x in a if x not in b and not x.startswith((*starts, "- "))]
            assert not odd, f"This line of the {tier} brief differs between instances: {odd[0]!r}"


def _foreign(task: Task, drawn: Instance, tier: str, focus: Stage) -> list[str]:
    """Numbers and paths of a brief that stand neither in the contract nor in the instance."""
    spec = task.spec
    skills = [f"/skills/{name}" for name in task.skills(tier, focus)]
    words = (spec.title, spec.modality, spec.clinical_goal, str(dict(spec.tiers)), *drawn.cases)
    known = "\n".join(
        (
            json.dumps(public_spec(spec, tier, focus), ensure_ascii=False),
            "/workspace/task/spec.json",
            *words,
            *drawn.fiction.values(),
            *skills,
        )
    ).replace("{case}", "<case>")
    known += known.replace("<case>", "{case}")
    numbers = {float(n) for n in _NUMBER.findall(known)}
    text = render_brief(task, drawn, tier=tier, focus=focus)
    paths = [word.strip(".,;:()") for word in text.split() if "/" in word]
    return [n for n in _NUMBER.findall(text) if float(n) not in numbers] + [
        path for path in paths if path not in known
    ]


_NUMBER: Final = re.compile(r"(?<![A-Za-z0-9_.])[0-9]+(?:\.[0-9]+)?")
