"""Which frozen held-out instances an evaluation plays, and how the episode of each starts.

Repeat *r* of a task is its *r*-th frozen held-out instance, for every agent, with the same episode
seed: two evaluations of one target pair instance by instance.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

from bat_agent.files import derived_seed, digest_of
from bat_agent.rollout import ResetSpec
from bat_env import TRACK_IDS
from bat_env.errors import ConfigError, TaskError
from bat_env.tasks.instance import Size

FULL_SUITES: Final = ("seg", "lite")
"""Where ``task=`` looks for frozen full-size instances, in this order."""


@dataclass(frozen=True, slots=True)
class Target:
    """One cell to evaluate; ``digest`` is that of the frozen instance, "" if none is frozen."""

    task: str
    size: str
    index: int
    repeat: int
    digest: str = ""

    @property
    def track(self) -> str:
        """First part of the task id."""
        return self.task.split("/", 1)[0]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is evaluated: a suite or a task, by its frozen instances."""

    name: str
    digest: str
    targets: tuple[Target, ...]


def plan_targets(
    *, suite: str | None = None, task: str | None = None, repeats: int | None = None
) -> Plan:
    """The cells of a suite, or of one task at full size.

    Args:
        suite: Name of a frozen suite.
        task: Task id or name; its instances are those of the full-size suite.
        repeats: The first so many instances of each task; all of them if ``None``.

    Raises:
        ConfigError: If not exactly one of suite and task is given, or fewer instances are frozen
            than ``repeats`` asks for.
        UnknownNameError: If there is no such suite or task.
    """
    from bat_env.tasks import load_suite, load_task

    if (suite is None) == (task is None):
        raise ConfigError("Expected exactly one of suite and task; give --suite or --task.")
    if repeats is not None and repeats < 1:
        raise ConfigError(f"Expected at least 1 repeat, came {repeats}.")
    wanted = load_task(task).spec.id if task is not None else None
    if wanted is None:
        manifest = load_suite(str(suite))
        entries = manifest.entries
    else:
        full = [load_suite(name) for name in FULL_SUITES]
        holds = [each for each in full if each.of_tasks({wanted}).entries]
        manifest = holds[0] if holds else full[-1]
        entries = manifest.of_tasks({wanted}).entries
    by_task: dict[str, list[Target]] = {}
    for entry in entries:
        row = by_task.setdefault(entry.task, [])
        row.append(Target(entry.task, entry.size, entry.index, len(row), entry.digest))
    if wanted is not None and not by_task:
        # A task that no suite has frozen: its own held-out namespace, from the beginning.
        by_task[wanted] = [Target(wanted, "full", i, i) for i in range(repeats or 1)]
    for name, row in by_task.items():
        if repeats is not None and repeats > len(row):
            raise ConfigError(
                f"Expected at most {len(row)} repeats, came {repeats}: {name} has only "
                f"{len(row)} frozen held-out instances in {manifest.name!r}."
            )
    # Tracks take turns: episodes that run side by side load the machine in different ways.
    turns = zip_longest(*(row[:repeats] for row in by_task.values()))
    targets = tuple(target for turn in turns for target in turn if target is not None)
    if wanted is None:
        return Plan(manifest.name, manifest.digest, targets)
    return Plan(wanted, digest_of([manifest.digest, wanted]), targets)


def reset_spec(
    plan: Plan, target: Target, *, tier: str, sandbox: str, pool_size: int | None = None
) -> ResetSpec:
    """How the episode of one cell starts; the same for every agent but for the warm sandboxes."""
    kwargs = {"split": "heldout", "tier": tier, "size": target.size, "sandbox": sandbox}
    return ResetSpec(
        env_id=f"bat_env:{TRACK_IDS[target.track]}",
        seed=derived_seed("evaluation", plan.digest, target.task, target.index),
        options={"task": target.task, "index": target.index, "size": target.size},
        env_kwargs=kwargs if pool_size is None else {**kwargs, "pool_size": pool_size},
    )


def check_frozen(target: Target, digest: str) -> None:
    """Check what was drawn against what was frozen.

    Raises:
        TaskError: If it is another instance.
    """
    if target.digest and digest and digest != target.digest:
        raise TaskError(
            f"Expected instance {target.index} of {target.task} to have the frozen digest "
            f"{target.digest[:12]}, came {digest[:12]}: scores would not compare. Restore the "
            "generator, or freeze a new suite under a new task version."
        )


def size_of(size: str) -> Size:
    """The size as tasks name it."""
    return "mini" if size == "mini" else "full"
