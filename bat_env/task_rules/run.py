"""All rules over one task, as far as there is time for."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, TypeAlias

from bat_env.errors import BatError, SandboxError
from bat_env.stages import Stage
from bat_env.task_rules import episodes as rules
from bat_env.task_rules.briefs import briefs
from bat_env.task_rules.bundle import bundle
from bat_env.task_rules.contract import contract
from bat_env.task_rules.floors import floors, full_marks
from bat_env.task_rules.instances import determinism, normal_cases, splits, variety, world
from bat_env.task_rules.playing import Player
from bat_env.task_rules.privacy import privacy
from bat_env.task_rules.scripts import choices, scripts
from bat_env.tasks import Task
from bat_env.tasks.scripts import Mistake

FolderRule: TypeAlias = Callable[[Task], None]
Depth: TypeAlias = Literal["files", "quick", "all"]
DEPTHS: Final[tuple[Depth, ...]] = ("files", "quick", "all")
"""No episode; a sample of the episodes of the reduced size; everything, the full size too."""

FOLDER_RULES: Final[tuple[FolderRule, ...]] = (
    contract,
    splits,
    world,
    variety,
    normal_cases,
    determinism,
    privacy,
    bundle,
    briefs,
    choices,
    scripts,
    full_marks,
    floors,
)
"""Rules that need no sandbox."""

SAMPLE: Final = 4
"""Mistakes of a quick check."""


OnCost: TypeAlias = Callable[[Mistake, Mapping[str, float]], None]
"""Told of each mistake that was played: the mistake, and part -> what it really lost."""


def run_rules(
    task: Task, *, depth: Depth = "all", sandbox: str = "auto", on_cost: OnCost | None = None
) -> Iterator[tuple[str, str]]:
    """Check everything; yields ``(rule, what is wrong or "")`` as it goes.

    Args:
        task: The task.
        depth: ``"files"`` plays nothing, ``"quick"`` some 15 episodes, ``"all"`` everything.
        sandbox: Backend of the episodes.
        on_cost: Called with the true costs of the mistakes, after their rule.
    """
    first: dict[str, str] = {}
    for rule in FOLDER_RULES:
        wrong = _wrong(partial(rule, task))
        known = first.setdefault(wrong, rule.__name__)
        # One missing file stops many rules.
        yield rule.__name__, wrong if not wrong or known == rule.__name__ else f"as {known}"
    if depth == "files":
        return
    player = Player(task, sandbox)
    try:
        for name, check in _episodes(player, depth):
            yield name, _wrong(check)
            if on_cost is not None and name == "listed_mistakes":
                for mistake in task.mistakes:
                    if mistake.id in player.lost:
                        on_cost(mistake, player.lost[mistake.id])
    finally:
        player.close()


def _episodes(player: Player, depth: Depth) -> Iterator[tuple[str, Callable[[], None]]]:
    task, quick = player.task, depth == "quick"
    chosen = sample(task) if quick else None
    yield "oracle_scores", partial(rules.oracle_scores, player)
    yield "naive_scores", partial(rules.naive_scores, player)
    yield "naive_from_states", partial(rules.naive_from_states, player)
    yield "listed_mistakes", partial(rules.listed_mistakes, player, chosen)
    yield "cpu_time", partial(rules.cpu_time, player)
    if quick:
        yield "repair", partial(rules.repair, player, (Stage.S3,))
        return
    yield "repair", partial(rules.repair, player)
    others = [tier for tier in task.spec.tiers if tier != "lite"]
    yield "oracle_scores in every tier", partial(rules.oracle_scores, player, tiers=others)
    yield "oracle_scores full", partial(rules.oracle_scores, player, "full")
    yield "naive_scores full", partial(rules.naive_scores, player, "full")
    yield "cpu_time full", partial(rules.full_cpu_time, player)


def sample(task: Task) -> Sequence[Mistake]:
    """A few mistakes of one task, others for each task, always the same ones."""
    able = [m for m in task.mistakes if not m.outcome and m.tier == "lite"]
    order = sorted(able, key=lambda m: zlib.crc32(f"{task.id} {m.id}".encode()))
    return order[:SAMPLE]


def _wrong(rule: Callable[[], Any]) -> str:
    try:
        rule()
    except AssertionError as error:
        return str(error).split("\nassert ")[0] or "failed"
    except SandboxError:
        raise  # Nothing that the folder could mend.
    except BatError as error:
        return str(error)
    except Exception as error:  # A folder's own code runs here; its other rules are still worth it.
        return f"raised {type(error).__name__}: {error}"
    return ""
