"""Finding task folders and loading them as :class:`Task` objects.

A task is a folder ``<track>/<name>`` with a ``task.yaml``. Its modules are loaded by path under
unique names, so that two tasks may both have a ``generate.py`` and neither needs to be importable.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Mapping
from functools import cache, cached_property
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, Final, cast

import yaml
from pydantic import ValidationError

from bat_env.errors import TaskError, faults_of, unknown_name
from bat_env.kept import Kept
from bat_env.sandbox.base import FileTree
from bat_env.stages import Stage
from bat_env.tasks.instance import SIZES, SPLITS, Generated, Instance, Size, Split
from bat_env.tasks.naming import world_of
from bat_env.tasks.scripts import Decision, Mistake, ScriptCell
from bat_env.tasks.spec import TaskSpec

ENTRY_POINTS: Final = "bat_env.tasks"
"""Entry-point group of third-party tasks; a value is a folder, or a callable that returns one."""

_INSTANCE_BYTES: Final = 32 << 20
"""For the drawn instances of one task: some sixty reduced ones, or ten of full size."""
_IGNORED: Final = {"__pycache__", ".git", ".DS_Store"}


class Task:
    """One task folder: its contract, its generator and its scripts. Safe to share by threads.

    Attributes:
        spec: The contract of ``task.yaml``.
        folder: Where it lives.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spec = _read_spec(folder)
        self._instances: Kept[tuple[str, int, str], Instance] = Kept(_INSTANCE_BYTES, _bytes)

    def __repr__(self) -> str:
        return f"Task({self.spec.id!r}, version={self.spec.version})"

    @property
    def id(self) -> str:
        """``<track>/<name>``."""
        return self.spec.id

    @cached_property
    def digest(self) -> str:
        """sha256 over every file of the folder, as hex: changes when anything of the task does."""
        h = hashlib.sha256()
        for path in sorted(self.folder.rglob("*")):
            relative = path.relative_to(self.folder)
            if path.is_file() and not _IGNORED.intersection(relative.parts):
                content = path.read_bytes()
                h.update(f"{relative.as_posix()}\0{len(content)}\0".encode())
                h.update(content)
        return h.hexdigest()

    # ------------------------------------------------------------------------------- instances

    def seed(self, split: Split, index: int) -> int:
        """The 64-bit generator seed of an instance; splits are separate namespaces."""
        text = f"{self.spec.id}\0{self.spec.version}\0{split}\0{index}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")

    def instance(self, split: Split, index: int, size: Size = "full") -> Instance:
        """Draw (or take from memory) one instance.

        Args:
            split: Seed namespace, one of ``train``, ``dev``, ``heldout``.
            index: Position in it, 0 <= index < 2**31.
            size: ``full``, or the reduced ``mini``.

        Raises:
            UnknownNameError: If ``split`` or ``size`` does not exist.
            TaskError: If ``index`` is out of range or the generator breaks its contract.
        """
        if split not in SPLITS:
            raise unknown_name("split", split, SPLITS)
        if size not in SIZES:
            raise unknown_name("size", size, SIZES)
        if not 0 <= index < 2**31:
            raise TaskError(f"An instance index must be in [0, 2**31), got {index!r}.")
        return self._instances.get((split, index, size), lambda: self._generate(split, index, size))

    def _generate(self, split: Split, index: int, size: Size) -> Instance:
        seed = self.seed(split, index)
        choices = self.spec.fiction[split]
        fiction = choices[seed % len(choices)]
        generate = self._module("generate").generate
        drawn = generate(seed, size, world_of(split, index, fiction))
        if any("{" in case for case in getattr(drawn, "cases", ())):
            drawn = generate(seed, size, fiction)  # it makes names of its own from the prefix
        if not isinstance(drawn, Generated):
            raise TaskError(
                f"generate() of {self.spec.id} must return a Generated, got {type(drawn).__name__}."
            )
        return Instance(
            cases=drawn.cases,
            public=drawn.public,
            private=drawn.private,
            facts={**drawn.facts, "model_card": self.model_card},
            probe_case=drawn.probe_case,
            probe_public=drawn.probe_public,
            probe_private=drawn.probe_private,
            task=self.spec.id,
            split=split,
            index=index,
            seed=seed,
            size=size,
            fiction=dict(fiction),
        )

    # --------------------------------------------------------------------------------- scripts

    @cached_property
    def decisions(self) -> tuple[Decision, ...]:
        """The choices of the scripted workflow, in the order in which cells meet them."""
        return tuple(self._module("oracle").DECISIONS)

    @cached_property
    def naive_choices(self) -> dict[str, str]:
        """Decision id -> option of the naive script; decisions left out take the good option."""
        return dict(self._module("naive").CHOICES)

    @cached_property
    def mistakes(self) -> tuple[Mistake, ...]:
        """The listed mistakes, each a variant of the oracle script."""
        return tuple(self._module("mistakes").MISTAKES)

    def script(
        self,
        choices: Mapping[str, str] | None = None,
        *,
        focus: Stage = Stage.E2E,
        tier: str = "lite",
        outcome: str | None = None,
    ) -> tuple[ScriptCell, ...]:
        """The workflow as cells.

        Args:
            choices: Decision id -> option; decisions left out take their good option.
            focus: With a stage, only its cells, and before those of S3-S5 the repair of what
                earlier stages left behind.
            tier: Standard and pro add the comparison of candidates.
            outcome: Bank outcome of the start state, if it comes from there.

        Raises:
            UnknownNameError: If a decision, an option or the tier does not exist.
        """
        if tier not in self.spec.tiers:
            raise unknown_name("tier", tier, self.spec.tiers)
        full = {decision.id: decision.good for decision in self.decisions}
        for name, option in (choices or {}).items():
            if name not in full:
                raise unknown_name(f"decision of {self.spec.id}", name, full)
            allowed = next(d.options for d in self.decisions if d.id == name)
            if option not in allowed:
                raise unknown_name(f"option of decision {name!r}", option, allowed)
            full[name] = option
        cells = self._module("oracle").script(full, focus=focus, tier=tier, outcome=outcome)
        return tuple(cells)

    # ------------------------------------------------------------------------------ files, facts

    @cached_property
    def _bundle(self) -> Path:
        return self.folder / "model" / self.spec.model.name

    @cached_property
    def _model_files(self) -> dict[str, bytes]:
        files = {
            f"{self.spec.model.name}/{p.relative_to(self._bundle).as_posix()}": p.read_bytes()
            for p in sorted(self._bundle.rglob("*"))
            if p.is_file()
        }
        if not files:
            raise TaskError(f"{self.spec.id} has no model bundle at {self._bundle}; run train.py.")
        return files

    def model_files(self, tier: str = "lite") -> FileTree:
        """``<name>/<path>`` -> bytes of the bundle, without its model card if the tier says so."""
        if self.spec.tiers[cast(Any, tier)].model_card:
            return dict(self._model_files)
        docs = f"{self.spec.model.name}/docs/"
        return {path: data for path, data in self._model_files.items() if not path.startswith(docs)}

    @cached_property
    def model_card(self) -> dict[str, Any]:
        """Facts of the bundle that a plan must state: preprocessing, channels and output labels."""
        meta = self._trained(self._bundle / "configs" / "metadata.json", "preprocessing")
        return {
            **meta["preprocessing"],
            "channels": meta.get("channels", []),
            "labels": {str(value): name for value, name in self.spec.output.labels.items()},
        }

    @cached_property
    def probe_expected(self) -> dict[str, float]:
        """The network's true output statistics on the public probe input. Private."""
        data = self._trained(self.folder / "private" / "probe.json", "mean", "std")
        return {"mean": float(data["mean"]), "std": float(data["std"])}

    def _trained(self, path: Path, *keys: str) -> dict[str, Any]:
        """A JSON object that train.py writes.

        Raises:
            TaskError: If it is not there, or lacks a key.
        """
        try:
            value = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError):
            value = None
        if not isinstance(value, dict) or not value.keys() >= set(keys):
            raise TaskError(
                f"Expected {path} with {', '.join(keys)}, as train.py of {self.spec.id} writes it; "
                f"{'it lacks them' if path.is_file() else 'it is missing'}. Run train.py."
            )
        return value

    def trivial_outputs(self, instance: Instance) -> Mapping[str, FileTree]:
        """Method -> ``{workspace path: file}``: what a submission reaches without real work."""
        made: Mapping[str, FileTree] = self._module("trivial").outputs(instance)
        return made

    def skills(self, tier: str, focus: Stage) -> FileTree:
        """``<file>`` -> bytes of the stage skills that the tier grants for this focus."""
        granted = self.spec.tiers[cast(Any, tier)].skills
        wanted = granted if focus is Stage.E2E else [n for n in granted if n == f"{focus.name}.md"]
        return {name: (self.folder / "skills" / name).read_bytes() for name in wanted}

    def brief_template(self, tier: str) -> str:
        """Source text of the tier's brief template."""
        return (self.folder / "briefs" / f"{tier}.md.j2").read_text("utf-8")

    def _module(self, name: str) -> ModuleType:
        return _load_module(self.folder, self.spec.id, name)


@cache
def _load_module(folder: Path, task_id: str, name: str) -> ModuleType:
    path = folder / f"{name}.py"
    if not path.is_file():
        raise TaskError(f"Task {task_id} must have the module {name}.py, none in {folder}.")
    tag = hashlib.sha256(str(folder).encode()).hexdigest()[:8]
    unique = f"_bat_task_{task_id.replace('/', '_')}_{tag}_{name}"
    spec = importlib.util.spec_from_file_location(unique, path)
    if spec is None or spec.loader is None:
        raise TaskError(f"Cannot load {path} as a Python module.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[unique] = module  # dataclasses look their module up by name
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(unique, None)
        raise
    return module


def load_sibling(file: str, name: str) -> ModuleType:
    """Load another module of the same task folder, for task modules that share code.

    Args:
        file: ``__file__`` of the caller.
        name: Module name without ``.py``.
    """
    folder = Path(file).resolve().parent
    return _load_module(folder, f"{folder.parent.name}/{folder.name}", name)


def task_of(file: str) -> Task:
    """The task in whose folder a module lies, for task modules that need their own contract.

    Args:
        file: ``__file__`` of the caller.
    """
    return _load(Path(file).resolve().parent)


def _bytes(instance: Instance) -> int:
    trees = (instance.public, instance.private, instance.probe_public, instance.probe_private)
    return sum(len(content) for tree in trees for content in tree.values())


def _read_spec(folder: Path) -> TaskSpec:
    path = folder / "task.yaml"
    try:
        return TaskSpec.model_validate(yaml.safe_load(path.read_text("utf-8")))
    except FileNotFoundError:
        raise TaskError(f"A task folder must hold a task.yaml, none in {folder}.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"Cannot read {path}: {error}.") from error
    except ValidationError as error:
        raise TaskError(f"{path} does not describe a task: {faults_of(error)}.") from error
    except yaml.YAMLError as error:
        told = " ".join(str(error).split())
        raise TaskError(f"{path} is no YAML: {told}.") from error


def builtin_root() -> Path:
    """The folder of the tasks that ship with the package: beside it, or inside it in a wheel."""
    package = Path(__file__).resolve().parent.parent
    beside = package.parent / "envs"
    return beside if beside.is_dir() else package / "_envs"


def _given_roots() -> list[Path]:
    given = os.environ.get("BAT_TASKS_PATH", "")
    return [Path(part).resolve() for part in given.split(os.pathsep) if part]


def empty_roots() -> tuple[Path, ...]:
    """Places that BAT_TASKS_PATH names and that hold no task: most often a slip."""
    found = _folders().values()
    return tuple(
        root for root in _given_roots() if not any(folder.is_relative_to(root) for folder in found)
    )


def _roots() -> list[Path]:
    """Folders that may hold tasks, in order of precedence."""
    roots = [builtin_root(), *_given_roots()]
    return [*roots, *_shipped(tuple(sys.path))]


@cache
def _shipped(path: tuple[str, ...]) -> tuple[Path, ...]:
    """Folders that the packages on an import path name.

    Asked once a path: reading the metadata of every installed package takes longer than a cell.
    """
    values = [point.load() for point in metadata.entry_points(group=ENTRY_POINTS)]
    return tuple(Path(value() if callable(value) else value).resolve() for value in values)


def _folders() -> dict[str, Path]:
    """Task id -> folder; the first place that has an id wins."""
    found: dict[str, Path] = {}
    for root in _roots():
        depth = ("task.yaml", "*/task.yaml", "*/*/task.yaml")
        for pattern in depth:
            for path in sorted(root.glob(pattern)):
                folder = path.parent
                found.setdefault(f"{folder.parent.name}/{folder.name}", folder)
    return dict(sorted(found.items()))


def task_ids() -> tuple[str, ...]:
    """Ids of every task folder found, sorted."""
    return tuple(_folders())


@cache
def _load(folder: Path) -> Task:
    return Task(folder)


_OPENED: dict[str, Task] = {}
"""Tasks of this process that lie in no task folder: staged data, opened by its own folder."""


def announce(task: Task) -> None:
    """Let :func:`load_task` of this process find a task that was opened by its folder."""
    _OPENED[task.spec.id] = task


def load_task(name: str) -> Task:
    """Load a task by its id, or by its name alone where that is unique.

    Scripted agents know a task by its id alone: a staged data set that this process has opened
    is found by its full id.

    Raises:
        UnknownNameError: If no such task exists, with the nearest names.
        TaskError: If its folder breaks the task contract.
    """
    folders = _folders()
    matches = [i for i in folders if name in (i, i.split("/", 1)[1])]
    if not matches and name in _OPENED:
        return _OPENED[name]
    if len(matches) != 1:
        known = matches if matches else [*folders, *(i.split("/", 1)[1] for i in folders)]
        empty = ", ".join(map(str, empty_roots()))
        advice = "Set BAT_TASKS_PATH to a folder of tasks to add your own."
        raise unknown_name(
            "task",
            name,
            known,
            f"BAT_TASKS_PATH names {empty}: no task is there." if empty else advice,
        )
    task = _load(folders[matches[0]])
    if task.spec.id != matches[0]:
        raise TaskError(f"{task.folder} must hold task {matches[0]}, its id says {task.spec.id}.")
    return task
