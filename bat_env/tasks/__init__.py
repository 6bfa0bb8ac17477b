"""Tasks: contracts, discovery, staging, briefs and held-out suites. Names load on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bat_env.tasks.brief import render_brief
    from bat_env.tasks.discovery import Task, load_sibling, load_task, task_ids, task_of
    from bat_env.tasks.instance import Generated, Instance
    from bat_env.tasks.scripts import Decision, Mistake, ScriptCell
    from bat_env.tasks.spec import TaskSpec
    from bat_env.tasks.staging import public_spec, stage_files
    from bat_env.tasks.suite import Suite, SuiteEntry, load_suite, suite_names

__all__ = [
    "Decision",
    "Generated",
    "Instance",
    "Mistake",
    "ScriptCell",
    "Suite",
    "SuiteEntry",
    "Task",
    "TaskSpec",
    "load_sibling",
    "load_suite",
    "load_task",
    "public_spec",
    "render_brief",
    "stage_files",
    "suite_names",
    "task_ids",
    "task_of",
]

_HOMES = {
    "brief": ("render_brief",),
    "discovery": ("Task", "load_sibling", "load_task", "task_ids", "task_of"),
    "instance": ("Generated", "Instance"),
    "scripts": ("Decision", "Mistake", "ScriptCell"),
    "spec": ("TaskSpec",),
    "staging": ("public_spec", "stage_files"),
    "suite": ("Suite", "SuiteEntry", "load_suite", "suite_names"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"bat_env.tasks.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
