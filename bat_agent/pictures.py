"""Pictures of recorded episodes: their actions are played again and the result is drawn."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bat_agent.files import write_bytes
from bat_agent.rollout import ResetSpec
from bat_env.errors import BatError
from bat_env.trajectory import Trajectory, read_trajectory


def picture_episode(trajectory: Path, spec: ResetSpec, out: Path) -> Path:
    """Play a recorded episode again and save its slices with the outputs drawn in.

    Equal seed and actions give the same workspace, so the picture shows what was scored.

    Args:
        trajectory: The recorded episode.
        spec: How it had started.
        out: PNG file to write.

    Returns:
        ``out``.

    Raises:
        BatError: If the second play does not give the recorded score.
    """
    import gymnasium as gym
    from PIL import Image

    record = read_trajectory(trajectory)
    env = gym.make(
        spec.env_id, disable_env_checker=True, render_mode="rgb_array", **dict(spec.env_kwargs)
    )
    try:
        env.reset(seed=spec.seed, options=dict(spec.options))
        info: dict[str, Any] = {}
        for action in actions(record):
            _, _, terminated, truncated, info = env.step(action)
            if terminated or truncated:
                break
        else:
            if record.status == "truncated":
                *_, info = env.unwrapped.truncate("tokens")  # type: ignore[attr-defined]
        recorded = (record.result or {}).get("score")
        came = (info.get("result") or {}).get("score")
        if came != recorded:
            raise BatError(
                f"Expected the replay of {trajectory.name} to score {recorded}, came {came}: the "
                "episode is not deterministic."
            )
        frame = env.render()
    finally:
        env.close()
    stream = io.BytesIO()
    Image.fromarray(frame).save(stream, format="PNG", optimize=True)  # type: ignore[arg-type]
    write_bytes(out, stream.getvalue())
    return out


def actions(record: Trajectory) -> Iterator[Any]:
    """The actions of a recorded episode, in order."""
    for step in record.steps:
        if step["source"] != "agent":
            continue
        calls: list[Mapping[str, Any]] = step.get("tool_calls") or []
        if calls:
            yield {"name": calls[0]["function_name"], "arguments": dict(calls[0]["arguments"])}
        else:
            yield step.get("message", "")
