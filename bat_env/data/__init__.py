"""Real data: published data sets, staged once, then played like any task. Names load on use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bat_env.data.layout import Layout, layout_names, load_layout
    from bat_env.data.records import Bounds
    from bat_env.data.stage import Staged, stage_data
    from bat_env.data.task import StagedTask, open_staged

__all__ = [
    "Bounds",
    "Layout",
    "Staged",
    "StagedTask",
    "layout_names",
    "load_layout",
    "open_staged",
    "stage_data",
]

_HOMES = {
    "layout": ("Layout", "layout_names", "load_layout"),
    "records": ("Bounds",),
    "stage": ("Staged", "stage_data"),
    "task": ("StagedTask", "open_staged"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"bat_env.data.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
