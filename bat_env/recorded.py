"""What a trajectory file says of its scores, held against what its evidence gives."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from bat_env.evidence import Rescored
from bat_env.info import final_result
from bat_env.trajectory import Trajectory, plain


def differences(trajectory: Trajectory, scored: Rescored) -> tuple[str, ...]:
    """Where the numbers of a file are not those of its evidence, in words.

    Every number that somebody may quote from the file is looked at: rewards and scores of steps,
    the return, the status and the whole final result.

    Args:
        trajectory: The file.
        scored: Its episode, scored again from the evidence.

    Returns:
        One sentence a difference; none if the file tells what its evidence gives.
    """
    return tuple(_differences(trajectory, scored))


def _differences(trajectory: Trajectory, scored: Rescored) -> Iterator[str]:
    steps = trajectory.steps[1:]
    if len(steps) != len(scored.rewards):
        yield _told("number of steps", len(steps), len(scored.rewards))
    total = 0.0
    for number, (step, reward) in enumerate(zip(steps, scored.rewards, strict=False)):
        total += reward
        told = step["extra"]
        if told["reward"] != reward:
            yield _told(f"reward of step {number}", told["reward"], reward)
        if told.get("score", total) != total:
            yield _told(f"score after step {number}", told["score"], total)
    extra = trajectory.document["extra"]
    if extra.get("return") != scored.score:
        yield _told("return", extra.get("return"), scored.score)
    if trajectory.status != scored.episode.status:
        yield _told("status", trajectory.status, scored.episode.status)
    spec = scored.context.spec
    whole = final_result(scored.episode, scored.rubric, scored.score, spec)
    # As the file went: through JSON, where a tuple is a list.
    now: dict[str, Any] = json.loads(json.dumps(plain(whole)))
    then = trajectory.result or {}
    for key in sorted({*now, *then}):
        if then.get(key) != now.get(key):
            yield _told(f"result, {key}", then.get(key), now.get(key))


def _told(what: str, recorded: object, now: object) -> str:
    return f"{what}: recorded {_short(recorded)}, the evidence gives {_short(now)}"


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."
