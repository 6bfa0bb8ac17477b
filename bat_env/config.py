"""Configuration of an environment and of one reset, checked before any work starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from pydantic import ValidationError

from bat_env.bank.distribution import Distribution, check_distribution
from bat_env.data import StagedTask, open_staged
from bat_env.errors import ConfigError, shown, unknown_name
from bat_env.judge import Judge, make_judge
from bat_env.sandbox import backend_name
from bat_env.sandbox.base import Limits, Sandbox
from bat_env.stages import OUTCOMES, Stage
from bat_env.tasks import Task, load_task, task_ids
from bat_env.tasks.instance import SIZES, SPLITS
from bat_env.trajectory import check_directory

if TYPE_CHECKING:
    from bat_env.start import StateSource

TIERS: Final[tuple[str, ...]] = ("lite", "standard", "pro")
RENDER_MODES: Final[tuple[str, ...]] = ("ansi", "rgb_array")
ON_SANDBOX_ERROR: Final[tuple[str, ...]] = ("raise", "truncate")
OPTIONS: Final[tuple[str, ...]] = ("task", "stage", "outcome", "state_id", "index", "size")
"""Keys that ``reset(options=...)`` knows."""

MAX_INDEX: Final = 2**31

_BANK_METHODS: Final = ("get", "files", "cells", "sample", "close")


@dataclass(frozen=True)
class EnvConfig:
    """Checked constructor arguments of the environment.

    Attributes:
        track: Track, or ``None`` for any.
        task: Fixed task, or ``None``: the Stage Bank decides.
        tier, split, size: As given; ``size`` ``None`` is full, and from the bank whatever it holds.
        stage: Focus, or ``None``: end to end.
        sandbox: Backend name or a sandbox of the caller.
        bank: Folder of a Stage Bank, an open one, or ``None``: the default folder.
        distribution: How starts are drawn from the bank, checked, or ``None``.
        limits: Changes to the limits of the task.
        on_sandbox_error: ``"raise"`` or ``"truncate"``.
        pool_size: Warm sandboxes of the shared pool, or ``None``: its default.
        trajectory_dir: Folder of trajectories, or ``None``.
        judge: Reader of prose, or ``None``.
    """

    track: str | None
    task: Task | None
    tier: str
    split: str
    size: str | None
    stage: Stage | None
    sandbox: str | Sandbox
    bank: str | Path | StateSource | None
    distribution: Distribution | None
    limits: Mapping[str, Any]
    on_sandbox_error: str
    pool_size: int | None
    trajectory_dir: Path | None
    judge: Judge | None = None

    @property
    def staged(self) -> StagedTask | None:
        """The task, if it is a staged data set."""
        return self.task if isinstance(self.task, StagedTask) else None

    def task_named(self, name: str) -> Task:
        """The task that a reset names.

        Raises:
            UnknownNameError: If there is no such task.
            ConfigError: If it is of another track, or not the staged data set.
        """
        if self.staged is not None:
            return match_staged(self.staged, self.track, name)
        return choose_task(self.track, name) or load_task(name)

    @property
    def always_bank(self) -> bool:
        """Whether every start comes from the Stage Bank unless an option says otherwise."""
        return self.distribution is not None or self.task is None

    def limits_of(self, task: Task) -> Limits:
        """Limits of a sandbox for ``task``."""
        return task.spec.limits.model_copy(update=dict(self.limits))


def make_config(
    *,
    track: str | None,
    task: str | None,
    data: object,
    tier: str,
    split: str,
    size: str | None,
    stage: str | Stage | None,
    sandbox: str | Sandbox,
    bank: str | Path | StateSource | None,
    distribution: Any,
    limits: Limits | Mapping[str, Any] | None,
    judge: object,
    on_sandbox_error: str,
    pool_size: int | None,
    trajectory_dir: str | Path | None,
) -> EnvConfig:
    """Check the constructor's arguments.

    Raises:
        ConfigError: Names the argument, what was expected and what came.
    """
    one_of("tier", tier, TIERS)
    one_of("split", split, SPLITS)
    if size is not None:
        one_of("size", size, SIZES)
    one_of("on_sandbox_error", on_sandbox_error, ON_SANDBOX_ERROR)
    focus = None if stage is None else Stage.parse(stage)
    reader = make_judge(judge)
    if pool_size is not None and (not is_int(pool_size) or pool_size < 1):
        raise ConfigError(f"pool_size must be a whole number >= 1 or None, got {pool_size!r}.")
    chosen: Task | None
    if data is None:
        chosen = choose_task(track, task)
    else:
        chosen = choose_staged(data, track, task)
        if focus not in (None, Stage.E2E) or distribution is not None:
            raise ConfigError(no_bank(chosen))
        keep_here(reader)
    if chosen is not None and tier not in chosen.spec.tiers:
        raise unknown_name(f"tier of {chosen.spec.id}", tier, chosen.spec.tiers)
    return EnvConfig(
        track=track if chosen is None else chosen.spec.track,
        task=chosen,
        tier=tier,
        split=split,
        size=size,
        stage=focus,
        sandbox=check_backend(sandbox),
        bank=check_bank(bank),
        distribution=distribution_of(distribution, track if chosen is None else chosen.spec.track),
        limits=check_limits(limits),
        on_sandbox_error=on_sandbox_error,
        pool_size=pool_size,
        trajectory_dir=None if trajectory_dir is None else check_directory(trajectory_dir),
        judge=reader,
    )


def keep_here(judge: Judge | None) -> None:
    """Refuse to send what agents write about real data to another machine.

    Raises:
        ConfigError: If the judge is not on this machine and nobody has allowed it.
    """
    if judge is None or judge.config.local or judge.config.data_may_leave:
        return
    raise ConfigError(
        f"judge: {judge.config.base_url} is not on this machine, and what an agent writes about "
        "staged real data may repeat parts of it. Use a judge on 127.0.0.1, or say "
        "data_may_leave=True if the terms of the data allow it."
    )


def choose_task(track: str | None, task: str | None) -> Task | None:
    """The task that arguments name, or ``None`` where neither names one.

    Raises:
        UnknownNameError: If there is no such track or task.
        ConfigError: If the task belongs to another track.
    """
    if task is not None:
        loaded = load_task(task)
        if track is not None and loaded.spec.track != track:
            raise ConfigError(
                f"Task {loaded.spec.id!r} is of track {loaded.spec.track!r}, but this environment "
                f"is of track {track!r}. Make the environment of the task's track."
            )
        return loaded
    if track is None:
        return None
    ids = task_ids()
    tracks = sorted({name.split("/", 1)[0] for name in ids})
    if track not in tracks:
        raise unknown_name("track", track, tracks, "A track exists where a task folder exists.")
    return lite_task(track)


def choose_staged(data: object, track: str | None, task: str | None) -> StagedTask:
    """The staged data set in a folder, checked file by file.

    Raises:
        ConfigError: If ``data`` is no path, or the folder holds another task or track.
        DataError: If it is no finished staging, or was changed.
    """
    if not isinstance(data, str | Path):
        raise ConfigError(
            f"data must be a folder made by `bat-env data stage`, or None, got {shown(data)}."
        )
    return match_staged(open_staged(data), track, task)


def match_staged(staged: StagedTask, track: str | None, task: str | None) -> StagedTask:
    """The staged task, if it is what was asked for.

    Raises:
        ConfigError: If it is another task, or of another track.
    """
    spec = staged.spec
    if track is not None and spec.track != track:
        raise ConfigError(
            f"{staged.root} holds {spec.id!r}, of track {spec.track!r}, but this environment is "
            f"of track {track!r}. Make the environment of the data's track."
        )
    names = (spec.id, spec.id.split("/", 1)[1], staged.manifest.plan.layout)
    if task is not None and task not in names:
        raise ConfigError(
            f"{staged.root} holds {spec.id!r}, but task {task!r} was asked for. Leave task out, "
            "or give the folder of that data set."
        )
    return staged


def no_bank(task: Task) -> str:
    """Why staged data cannot start from the Stage Bank."""
    return (
        f"{task.spec.id} is staged data: the Stage Bank holds no state of it. Leave out stage, "
        "outcome, state_id and distribution, or play a phantom task."
    )


def lite_task(track: str) -> Task:
    """The task of a track that says it is the Lite task, or else the first by name."""
    loaded = [load_task(name) for name in task_ids() if name.startswith(f"{track}/")]
    return next((task for task in loaded if task.spec.lite), loaded[0])


def check_backend(sandbox: object) -> str | Sandbox:
    """A sandbox, or a backend name as it is registered; upper and lower case count the same.

    Raises:
        ConfigError: If it is neither.
    """
    if isinstance(sandbox, str):
        return backend_name(sandbox)
    if not isinstance(sandbox, Sandbox):
        raise ConfigError(
            "sandbox must be a backend name or an object with the Sandbox methods, got "
            f"{type(sandbox).__name__}."
        )
    return sandbox


def check_bank(bank: object) -> str | Path | StateSource | None:
    """The folder of a Stage Bank that is there, an open bank, or ``None``.

    The default folder may be absent: only resets that draw from it need it.

    Raises:
        ConfigError: If it is neither, or no such folder exists.
    """
    if bank is None:
        return None
    if isinstance(bank, str | Path):
        if not Path(bank).is_dir():
            raise ConfigError(
                f"bank must be the folder of a Stage Bank, but there is no folder {str(bank)!r}. "
                "Make one with `bat-env bank build`, or leave bank out for the default folder."
            )
        return bank
    if not all(callable(getattr(bank, name, None)) for name in _BANK_METHODS):
        raise ConfigError(
            f"bank must be a folder path or an open Bank, got {bank!r}. Make one with "
            "`bat-env bank build`, or leave bank out for the default folder."
        )
    return cast("StateSource", bank)


def check_limits(limits: Limits | Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Changed limits as a mapping, each value checked.

    Raises:
        ConfigError: On an unknown name or a value out of range.
    """
    if limits is None:
        return {}
    if isinstance(limits, Limits):
        return limits.model_dump()
    if not isinstance(limits, Mapping):
        raise ConfigError(f"limits must be a Limits or a mapping, got {type(limits).__name__}.")
    for name in limits:
        one_of("limit", name, Limits.model_fields)
    try:
        checked = Limits.model_validate(dict(limits))
    except ValidationError as error:
        first = error.errors()[0]
        where = first["loc"][0] if first["loc"] else "limits"
        raise ConfigError(f"limits: {where}: {first['msg']}, got {first['input']!r}.") from error
    return {name: getattr(checked, name) for name in limits}


def distribution_of(value: object, track: str | None) -> Distribution | None:
    """A checked reset distribution; see :mod:`bat_env.bank.distribution`.

    Args:
        value: As the user gave it.
        track: The environment's own track, or ``None`` for any.

    Raises:
        ConfigError: If it is none, or names cells of another track than the environment's.
    """
    tracks = sorted({name.split("/", 1)[0] for name in task_ids()})
    checked = check_distribution(value, tracks)
    if track is not None and checked is not None and not isinstance(checked, str):
        named = {name.split("/")[0] for name in checked if "/" in name}
        named |= {name for name in checked if name in tracks}
        foreign = sorted(named - {track})
        if foreign:
            raise ConfigError(
                f"distribution names the track {', '.join(foreign)}, but this environment is of "
                f"track {track!r}. Use AutoMed-Bank-v0, which draws over all tracks."
            )
    return checked


@dataclass(frozen=True)
class ResetOptions:
    """Checked options of one reset; ``None`` where not given."""

    task: str | None = None
    stage: Stage | None = None
    outcome: str | None = None
    state_id: str | None = None
    index: int | None = None
    size: str | None = None


def make_options(options: Mapping[str, Any] | None) -> ResetOptions:
    """Check ``reset(options=...)``.

    Raises:
        ConfigError: On an unknown key or a wrong value, with a did-you-mean.
    """
    if options is None:
        return ResetOptions()
    if not isinstance(options, Mapping):
        raise ConfigError(f"options must be a mapping, got {type(options).__name__}.")
    for key in options:
        one_of("reset option", key, OPTIONS)
    index = options.get("index")
    if index is not None and (not is_int(index) or not 0 <= index < MAX_INDEX):
        raise ConfigError(f"index must be a whole number from 0 to 2**31 - 1, got {shown(index)}.")
    stage = options.get("stage")
    for key, known in (("outcome", OUTCOMES), ("size", SIZES)):
        if options.get(key) is not None:
            one_of(key, options[key], known)
    for key in ("task", "state_id"):
        value = options.get(key)
        if value is not None and not isinstance(value, str):
            raise ConfigError(f"Reset option {key} must be a string, got {type(value).__name__}.")
    return ResetOptions(
        task=options.get("task"),
        stage=None if stage is None else Stage.parse(stage),
        outcome=options.get("outcome"),
        state_id=options.get("state_id"),
        index=None if index is None else int(index),
        size=options.get("size"),
    )


def one_of(kind: str, value: object, known: Iterable[str]) -> None:
    """Raise the did-you-mean error unless ``value`` is one of ``known``."""
    names = tuple(known)
    if not isinstance(value, str) or value not in names:
        raise unknown_name(kind, value, names)


def is_int(value: object) -> bool:
    """Whether ``value`` is a whole number (numpy's too) and no truth value."""
    return hasattr(value, "__index__") and not isinstance(value, bool)
