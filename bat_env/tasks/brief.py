"""Briefs: the text of a reset, rendered from the contract.

A task's ``briefs/<tier>.md.j2`` extends ``base/<tier>.md.j2`` (the folder ``briefs`` beside this
file) and words only those blocks itself that are its own; it may as well be a whole template.

Lines are short and mostly constant; what differs between instances stands on lines of its own, so
that a policy that reads whole lines meets few new ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, PrefixLoader, StrictUndefined, Template
from jinja2 import TemplateError as JinjaError

from bat_env.errors import TaskError, unknown_name
from bat_env.stages import WORK_STAGES, Stage
from bat_env.tasks.discovery import Task
from bat_env.tasks.instance import Instance
from bat_env.tasks.staging import public_spec

MAX_LISTED_FILES: Final = 40
"""Workspace files of a start state that are listed; the rest is counted."""

MAX_CASE_FILES: Final = 8
"""Files that differ in nothing but the case, from which on they share one line of the list."""


BASE: Final = Path(__file__).with_name("briefs")
"""Templates that a task's briefs may extend, as ``base/<file>``."""


@cache
def _environment() -> Environment:
    return Environment(
        loader=PrefixLoader({"base": FileSystemLoader(BASE)}),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=False,
        autoescape=False,  # The reader is an agent, not a browser.
    )


@cache
def _template(source: str) -> Template:
    return _environment().from_string(source)


def _lines(value: Any, indent: int = 0) -> list[str]:
    """A schema as short indented lines."""
    lines = []
    for key, part in value.items():
        if isinstance(part, dict):
            lines.append(f"{' ' * indent}{key}:")
            lines.extend(_lines(part, indent + 2))
        elif isinstance(part, list):
            inner = ", ".join(
                "{" + ", ".join(f"{k}: {v}" for k, v in item.items()) + "}"
                if isinstance(item, dict)
                else str(item)
                for item in part
            )
            lines.append(f"{' ' * indent}{key}: [{inner}]")
        else:
            lines.append(f"{' ' * indent}{key}: {part}")
    return lines


def _listed(files: Sequence[str], cases: Sequence[str]) -> list[str]:
    """One line a file, or one for many that differ in the case alone, sorted."""
    kinds: defaultdict[str, list[str]] = defaultdict(list)
    known = set(cases)
    for path in files:
        parts = ["<case>" if part in known else part for part in path.split("/")]
        kinds["/".join(parts)].append(path)
    lines = []
    for kind, paths in kinds.items():
        many = len(paths) > MAX_CASE_FILES and "<case>" in kind
        lines += [f"{kind} for {len(paths)} of {len(known)} cases"] if many else paths
    return sorted(lines)


def render_brief(
    task: Task,
    instance: Instance,
    *,
    tier: str,
    focus: Stage,
    outcome: str | None = None,
    exposed: str = "",
    files: Sequence[str] = (),
) -> str:
    """Render the brief of an episode.

    Args:
        task: The task.
        instance: What was drawn of it.
        tier: ``lite``, ``standard`` or ``pro``.
        focus: The stage to hand in, or E2E.
        outcome: Bank outcome of the start state, if it comes from there.
        exposed: Output of the check that exposed a fault (recovery states).
        files: Workspace files that exist at the start.

    Raises:
        UnknownNameError: If the task has no such tier.
        TaskError: If the template is broken or asks for what the contract does not have.
    """
    if tier not in task.spec.tiers:
        raise unknown_name("tier", tier, task.spec.tiers, hint=f"They are tiers of {task.id}.")
    lines = _listed(files, instance.cases)
    listed = lines[:MAX_LISTED_FILES]
    public = public_spec(task.spec, tier, focus)
    output = {"labels": {}, "columns": [], "dtype": [], **public["output"]}
    values: dict[str, Any] = {
        "spec": task.spec,
        "public": {"extra_inputs": [], **public, "output": output},
        "tier": next(value for name, value in task.spec.tiers.items() if name == tier),
        "artifact_lines": _lines(public["artifacts"]),
        "focus": focus.name,
        "stages": [(stage.name, stage.title) for stage in WORK_STAGES],
        "stage_title": focus.title,
        "skills": sorted(task.skills(tier, focus)),
        "cases": instance.cases,
        "fiction": instance.fiction,
        "outcome": outcome,
        "exposed": exposed.rstrip("\n"),
        "files": listed,
        "more_files": len(lines) - len(listed),
    }
    try:
        return _template(task.brief_template(tier)).render(values)
    except JinjaError as error:
        raise TaskError(
            f"The brief of {task.id} for tier {tier} cannot be rendered: {error}. Correct "
            f"{task.folder / 'briefs' / f'{tier}.md.j2'}."
        ) from error
