"""Held-out suites: frozen lists of instances, each with the digest of its content."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bat_env.errors import TaskError, faults_of, unknown_name
from bat_env.tasks.discovery import Task, builtin_root, load_task
from bat_env.tasks.instance import Instance, Size

CONTROLLER_START: Final = 100_000
"""First held-out index of controller suites; final suites count from 0, so they never meet."""


class SuiteEntry(BaseModel):
    """One held-out instance of a suite."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: str
    size: Size
    index: int = Field(ge=0)
    digest: str = Field(pattern=r"^[0-9a-f]{64}$", description="Instance.digest, frozen.")
    split: Literal["heldout"] = "heldout"

    def instance(self, task: Task | None = None) -> Instance:
        """Draw the instance and compare it with the frozen digest.

        Raises:
            TaskError: If the generator no longer gives what was frozen.
        """
        drawn = (task or load_task(self.task)).instance(self.split, self.index, self.size)
        if drawn.digest != self.digest:
            raise TaskError(
                f"{self.task} {self.split} {self.size} {self.index} should have the digest "
                f"{self.digest[:12]}..., it has {drawn.digest[:12]}...: scores would not compare. "
                "Restore the generator, or freeze a new suite under a new task version."
            )
        return drawn


@dataclass(frozen=True)
class Suite:
    """A frozen suite; ``digest`` covers every entry."""

    name: str
    digest: str
    entries: tuple[SuiteEntry, ...]

    def first(self, repeats: int) -> Suite:
        """The first ``repeats`` instances of each task."""
        seen: Counter[str] = Counter()
        entries = []
        for entry in self.entries:
            seen[entry.task] += 1
            if seen[entry.task] <= repeats:
                entries.append(entry)
        kept = tuple(entries)
        return self if kept == self.entries else Suite(self.name, _digest(kept), kept)

    def of_tasks(self, tasks: Collection[str]) -> Suite:
        """The part of the suite that is of these tasks; it may be empty."""
        entries = tuple(entry for entry in self.entries if entry.task in tasks)
        return self if entries == self.entries else Suite(self.name, _digest(entries), entries)


class _Manifest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    schema_version: Literal[1]
    name: str
    entries: list[SuiteEntry] = Field(min_length=1)


def _folder() -> Path:
    return builtin_root() / "suites"


def suite_names() -> tuple[str, ...]:
    """Names of the frozen suites, sorted."""
    return tuple(sorted(path.stem for path in _folder().glob("*.json")))


def load_suite(name: str) -> Suite:
    """Load a suite by name. Instances are compared with their digests when they are drawn.

    Raises:
        UnknownNameError: If there is no such suite.
        TaskError: If its manifest is broken.
    """
    if not re.fullmatch(r"[a-z0-9-]+", name) or name not in suite_names():
        raise unknown_name("suite", name, suite_names())
    path = _folder() / f"{name}.json"
    try:
        manifest = _Manifest.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise TaskError(f"{path} does not describe a suite: {faults_of(error)}.") from error
    entries = tuple(manifest.entries)
    return Suite(manifest.name, _digest(entries), entries)


def _digest(entries: tuple[SuiteEntry, ...]) -> str:
    rows = [entry.model_dump(mode="json") for entry in entries]
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()


def freeze(name: str, tasks: Sequence[Task], size: Size, start: int, count: int) -> dict[str, Any]:
    """The manifest of a suite: ``count`` held-out instances of each task from index ``start``.

    Instances of several tasks take turns, so that a part of the suite is of all tracks too.
    """
    entries = [
        SuiteEntry(
            task=task.id,
            size=size,
            index=index,
            digest=task.instance("heldout", index, size).digest,
        ).model_dump(mode="json")
        for index in range(start, start + count)
        for task in tasks
    ]
    return {"schema_version": 1, "name": name, "entries": entries}


def check_refrozen(old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Refuse a manifest in which an instance that was frozen before has other content.

    Raises:
        TaskError: Names the instance.
    """

    def digests(manifest: Mapping[str, Any]) -> dict[tuple[str, str, int], str]:
        rows = manifest["entries"]
        return {(row["task"], row["size"], row["index"]): row["digest"] for row in rows}

    before, after = digests(old), digests(new)
    for key in sorted(before.keys() & after.keys()):
        if before[key] != after[key]:
            task, size, index = key
            raise TaskError(
                f"Held-out instance {index} of {task} ({size}) was frozen with the digest "
                f"{before[key][:12]}..., now it has {after[key][:12]}...: scores would not "
                "compare. Restore the generator, or give the task a new version and --replace."
            )
