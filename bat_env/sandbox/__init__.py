"""Where agent code runs: one protocol, one worker, three launchers."""

from __future__ import annotations

from .base import (
    MOUNTS,
    Cell,
    CellResult,
    Delta,
    FileEntry,
    FileTree,
    Limits,
    Manifest,
    Sandbox,
)
from .ending import end_work
from .pool import SandboxPool, interrupt_cells, shared_pool
from .registry import backend_name, backend_names, make_sandbox, resolve_backend

__all__ = [
    "MOUNTS",
    "Cell",
    "CellResult",
    "Delta",
    "FileEntry",
    "FileTree",
    "Limits",
    "Manifest",
    "Sandbox",
    "SandboxPool",
    "backend_name",
    "backend_names",
    "end_work",
    "interrupt_cells",
    "make_sandbox",
    "resolve_backend",
    "shared_pool",
]
