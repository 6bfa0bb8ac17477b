"""What generators give, as committed digests: a changed generator shows, on every machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from bat_env.errors import TaskError
from bat_env.tasks.discovery import Task, builtin_root
from bat_env.tasks.instance import Size, Split

SCHEMA_VERSION: Final = 1
SAMPLES: Final[tuple[tuple[Split, Size, int], ...]] = (
    ("train", "mini", 0),
    ("train", "full", 0),
    ("dev", "mini", 3),
    ("dev", "full", 0),
)
"""Instances whose content is compared."""


def measured(task: Task) -> dict[str, str]:
    """``"<split> <size> <index>"`` -> digest of what the generator gives here."""
    return {
        f"{split} {size} {index}": task.instance(split, index, size).digest
        for split, size, index in SAMPLES
    }


def digests_path() -> Path:
    """The committed file; it lies beside the tasks that ship with the package."""
    return builtin_root() / "digests.json"


def committed() -> Mapping[str, Mapping[str, str]]:
    """Task id -> what :func:`measured` gave when it was written down.

    Raises:
        TaskError: If the file is missing or damaged.
    """
    path = digests_path()
    try:
        value = json.loads(path.read_text("utf-8"))
        if value["schema_version"] != SCHEMA_VERSION:
            raise ValueError(f"schema version {value['schema_version']!r}")
        tasks: Mapping[str, Mapping[str, str]] = value["tasks"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TaskError(
            f"{path} must hold the digests of the tasks ({error!r}). Write it again with "
            "`python envs/digests.py` in a source checkout."
        ) from error
    return tasks
