"""The client of our OpenEnv server: tool calls as they are, observations with their flags."""

from __future__ import annotations

from typing import Any, Final

from openenv.core.client_types import StepResult
from openenv.core.env_client import EnvClient

from bat_env.serve.openenv import BatAction, BatObservation, BatState

STEP_S: Final = 3600.0
"""Seconds to wait for a step: a cell may take minutes, the grading of a hand-in too."""


class BatEnvClient(EnvClient):  # type: ignore[misc]
    """One session with a server started by ``bat-env serve openenv``.

    The action is a tool call: a dictionary like that of the Gymnasium environment, or a
    :class:`~bat_env.serve.openenv.BatAction`. ``reset(seed=..., **options)`` takes the reset
    options. ``result.observation.truncated`` tells a budget's end from a hand-in;
    ``result.reward`` is ``None`` until ``result.done``, then the score.

    Args:
        base_url: Address of the server.
        message_timeout_s: Longest wait for an answer, seconds.
        more: Further arguments of OpenEnv's client.
    """

    def __init__(self, base_url: str, *, message_timeout_s: float = STEP_S, **more: Any) -> None:
        super().__init__(base_url=base_url, message_timeout_s=message_timeout_s, **more)

    def _step_payload(self, action: dict[str, Any] | BatAction) -> dict[str, Any]:
        if isinstance(action, BatAction):
            return dict(action.model_dump(exclude={"metadata"}, exclude_unset=True))
        return dict(action)

    def _parse_result(self, payload: dict[str, Any]) -> Any:
        done, reward = bool(payload.get("done", False)), payload.get("reward")
        seen = BatObservation(**payload["observation"], done=done, reward=reward)
        return StepResult(
            observation=seen, reward=reward, done=done, metadata=payload.get("metadata")
        )

    def _parse_state(self, payload: dict[str, Any]) -> BatState:
        return BatState(**payload)
